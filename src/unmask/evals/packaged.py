"""What `unmask eval` can be given by name: the recipes that come with the package, tasks, benchmarks and policies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from unmask.errors import UnknownName, counted
from unmask.evals import tiny_suite
from unmask.evals.lm_tasks.loaders import BENCHMARKS
from unmask.policies.presets import installed

_PACKAGE = Path(__file__).parents[1]
FOLDERS = (_PACKAGE / "recipes", _PACKAGE.parents[1] / "recipes")  # of a wheel, and of a clone


def recipes() -> dict[str, Path]:
    """The recipes of the package by name, such as `tiny/main`."""
    folder = next((folder for folder in FOLDERS if folder.is_dir()), FOLDERS[0])
    found = sorted(folder.rglob("*.yaml"), key=lambda path: (len(path.parts), path))
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in found}


def recipe_file(name: str) -> Path:
    """The file of a recipe: a path, or the name of one in the package, also in the form `recipes/tiny/main.yaml`."""
    if Path(name).is_file():
        return Path(name)
    known = recipes()
    bare = Path(name).with_suffix("").as_posix().removeprefix("recipes/")
    if bare not in known and Path(name).suffix not in (".yaml", ".yml"):
        raise UnknownName("recipe", name, known, listed_as="in the package")
    return known.get(bare, Path(name))


def run_name(file: Path) -> str:
    """What a run of that recipe is called: its name in the package, or the file's own."""
    names = {path.resolve(): name for name, path in recipes().items()}
    return names.get(file.resolve(), file.stem).replace("/", "-")


def listing() -> list[dict[str, Any]]:
    """Everything that has a name, with a word about it."""
    heads = {name: yaml.safe_load(path.read_text(encoding="utf-8")) for name, path in recipes().items()}
    rows = [("recipe", name, str(head.get("title", ""))) for name, head in heads.items()]
    rows += [("task", name, "generated, checked exactly") for name in tiny_suite.names()]
    rows += [
        ("benchmark", name, f"{known.items:,} items, {counted(known.shots, 'shot')}")
        for name, known in BENCHMARKS.items()
    ]
    rows += [("policy", row["name"], row["about"]) for row in installed()]
    return [{"kind": kind, "name": name, "about": about} for kind, name, about in rows]
