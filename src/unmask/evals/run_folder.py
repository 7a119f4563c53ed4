"""The folder of a run, apart from its cells: who works in it, and what run.json says about how it was made."""

from __future__ import annotations

import json
import platform
from collections.abc import Generator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from unmask import __version__
from unmask.errors import UnmaskError, WorkFailed
from unmask.evals import tiny_suite
from unmask.evals.recipe import Recipe
from unmask.evals.store import write_whole
from unmask.models.device import device_name

SCHEMA = "unmask.run/1"
RUN = "run.json"

# Keys of a recipe that may differ when a run is taken up again: they change no result.
FREE = ("name", "data_dir", "allow_unsandboxed", "shared", "title")


@contextmanager
def alone_in(out: Path) -> Generator[None]:
    """Refuse a folder in which another process is at work; a killed process leaves no lock behind."""
    import fcntl

    try:
        out.mkdir(parents=True, exist_ok=True)
        lock = (out / ".lock").open("w")
    except OSError as error:
        raise UnmaskError(f"cannot write to {out}: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise WorkFailed(f"another process is at work in {out}; wait for it, or choose another --out") from error
        yield


def open_run(recipe: Recipe, out: Path, command: str) -> dict[str, Any]:
    """What run.json says: as it is, if the folder holds this very recipe, else new."""
    path, resolved = out / RUN, recipe.to_dict()
    if path.exists():
        about = json.loads(path.read_text(encoding="utf-8"))
        if about.get("schema") != SCHEMA:
            raise UnmaskError(f"{path} is not of the form {SCHEMA}")
        differ = [key for key in resolved if key not in FREE and about["resolved"].get(key) != resolved[key]]
        if differ:
            raise UnmaskError(f"{out} holds a run with other values of {', '.join(differ)}; choose another --out")
        return about
    if (out / "cells").exists():
        raise UnmaskError(f"{out} holds cells but no run.json; choose another --out")
    about = {
        "schema": SCHEMA,
        "recipe": recipe.name,
        "table": recipe.table,
        "title": recipe.title,
        "command": command,
        "resolved": resolved,
        "versions": versions(recipe.tasks),
        "models": {},
    }
    write_whole(path, json.dumps(about, indent=1))
    return about


def note_model(out: Path, about: dict[str, Any], name: str, facts: dict[str, Any], device: torch.device) -> None:
    """Add what a loaded model told to run.json, so that a complete part is known without loading it again."""
    about["models"][name] = facts
    about["device_name"] = device_name(device)
    write_whole(out / RUN, json.dumps(about, indent=1))


def versions(tasks: tuple[str, ...]) -> dict[str, str]:
    """Of what the numbers depend on."""
    found = {"python": platform.python_version(), "unmask": __version__, "torch": torch.__version__}
    if not all(tiny_suite.knows(task) for task in tasks):
        for name in ("lm_eval", "math-verify"):
            try:
                found[name] = version(name)
            except PackageNotFoundError:
                continue
    return found
