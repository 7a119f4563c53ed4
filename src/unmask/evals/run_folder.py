"""The folder of a run, apart from its cells: the lock, and run.json, which says how the run was made."""

from __future__ import annotations

import json
import platform
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from unmask import __version__
from unmask.errors import UnmaskError, WorkFailed
from unmask.evals import tiny_suite
from unmask.evals.recipe import Recipe
from unmask.evals.store import has_items, read_whole, write_whole

SCHEMA = "unmask.run/1"
RUN, LOCK = "run.json", ".lock"

# Keys of a recipe that may differ when a run is taken up again: they change no result, or only how it is shown.
FREE, SHOWN = ("name", "data_dir", "allow_unsandboxed", "shared"), ("title", "table")
LISTS = ("models", "policies", "settings", "tasks")  # these may grow, and so may the limit


@contextmanager
def locked(out: Path) -> Generator[None]:
    """Refuse a folder in which another process is at work; a killed process leaves no lock behind.

    Work that failed before it began leaves no trace.
    """
    import fcntl

    made = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = (out / LOCK).open("w")
    except OSError as error:
        raise UnmaskError(f"cannot write to {out}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise WorkFailed(f"another process is at work in {out}; wait for it, or choose another --out") from error
        try:
            yield
        finally:
            if [path.name for path in out.iterdir()] == [LOCK]:
                (out / LOCK).unlink()
                if made:
                    out.rmdir()


def open_run(recipe: Recipe, out: Path, command: str) -> dict[str, Any]:
    """What run.json is to say: what it says, if the folder holds this very recipe, else that the recipe has grown."""
    path, resolved = out / RUN, recipe.to_dict()
    new = {
        "schema": SCHEMA,
        "recipe": recipe.name,
        "table": recipe.table,
        "title": recipe.title,
        "command": command,
        "resolved": resolved,
        "versions": versions(recipe.tasks),
        "models": {},
        "cells": [],
    }
    if not any(has_items(folder) for folder in (out / "cells").glob("*")):
        return new
    if not path.exists():
        raise UnmaskError(f"{out} holds cells but no run.json; choose another --out")
    about = read_whole(path, SCHEMA)
    before = about["resolved"]
    differ = [key for key in resolved if key not in FREE and before.get(key) != resolved[key]]
    if clash := [key for key in differ if not _grown(key, before.get(key), resolved[key])]:
        hint = "choose another --out; finished cells that are equal are reused"
        raise UnmaskError(f"{out} holds a run with other values of {', '.join(clash)}; {hint}")
    return new | {"models": about["models"]} if differ else about


def _grown(key: str, before: Any, now: Any) -> bool:
    """Whether everything that was asked for before is asked for now."""
    if key in LISTS:
        return all(item in now for item in before)
    return key in SHOWN or (key == "limit" and before is not None and (now is None or now >= before))


def note_cells(about: dict[str, Any], keys: Iterable[str]) -> None:
    """Which cells belong to the recipe as it is now; the folder may hold others from when it was smaller."""
    about["cells"] = list(dict.fromkeys([*about["cells"], *keys]))


def save_run(out: Path, about: dict[str, Any]) -> None:
    """Write run.json where it says something else."""
    path, text = out / RUN, json.dumps(about, indent=1)
    if not path.exists() or path.read_text(encoding="utf-8").rstrip() != text:
        write_whole(path, text)


def versions(tasks: Iterable[str]) -> dict[str, str]:
    """Of what the numbers depend on."""
    found = {"python": platform.python_version(), "unmask": __version__, "torch": torch.__version__}
    if not all(tiny_suite.knows(task) for task in tasks):
        for name in ("lm_eval", "math-verify"):
            with suppress(PackageNotFoundError):
                found[name] = version(name)
    return found
