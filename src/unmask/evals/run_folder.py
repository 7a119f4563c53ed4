"""The folder of a run: its lock, run.json, which says how the run was made, and items of cells measured before.

RUN/run.json   the recipe as it was resolved, versions, models, command, the keys of its cells
RUN/cells/     see store.py; cells of earlier recipes stay here
RUN/.lock      held while a process works here
"""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError
from unmask.evals.cell import ModelInfo
from unmask.evals.digests import CIRCUMSTANCES, changed, versions
from unmask.evals.recipe import Recipe
from unmask.evals.store import DONE, CellFolder, complete_cell, read_whole, write_whole
from unmask.locks import lock

SCHEMA = "unmask.run/1"
RUN, LOCK = "run.json", ".lock"


@contextmanager
def locked(out: Path) -> Generator[None]:
    """Refuse a folder in which another process is at work; a killed process leaves no lock behind.

    If nothing was written, the lock is removed, and so is a folder that was made here.
    """
    made = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        file = (out / LOCK).open("w")
    except OSError as error:
        raise UnmaskError(f"cannot write to {out}: {error.strerror}") from error
    with file:
        lock(file, f"another process is at work in {out}; wait for it, or choose another --out")
        try:
            yield
        finally:
            if [path.name for path in out.iterdir()] == [LOCK]:
                (out / LOCK).unlink()
                if made:
                    out.rmdir()


def open_run(out: Path, recipe: Recipe, command: str) -> dict[str, Any]:
    """The content for run.json: the file's, if it is of the same recipe; else new, with the file's models."""
    path, resolved = out / RUN, json.loads(json.dumps(asdict(recipe)))
    new = {
        "schema": SCHEMA,
        "recipe": recipe.name,
        "table": recipe.table,
        "title": recipe.title,
        "command": command,
        "resolved": resolved,
        "versions": versions(),
        "models": {},
        "cells": [],
    }
    if not path.exists():
        return new
    found = read_whole(path, SCHEMA)
    if wrong := [key for key in new if type(found.get(key)) is not type(new[key])]:
        raise UnmaskError(f"{path} is damaged, missing or wrong: {', '.join(wrong)}; choose another --out")
    try:
        for info in found["models"].values():
            ModelInfo(**info)
    except TypeError as error:
        raise UnmaskError(f"{path} is damaged, a field is missing or wrong: {error}; choose another --out") from error
    return found if found["resolved"] == resolved else new | {"models": found["models"]}


def save_run(out: Path, about: dict[str, Any]) -> None:
    """Write run.json if its content changes."""
    if not (out / RUN).exists() or read_whole(out / RUN, SCHEMA) != about:
        write_whole(out / RUN, about)


def other_results(out: Path, stale: Sequence[tuple[str, str]]) -> UnmaskError:
    """The error for a folder with stale results; `stale`: pairs of a model and what changed, such as code."""
    models, things = (sorted(set(column)) for column in zip(*stale, strict=True))
    ways_out = "choose another --out, or discard them with --fresh"
    return UnmaskError(f"{out} holds results of {', '.join(models)} with other {' and '.join(things)}; {ways_out}")


def reuse(own: CellFolder, *, shared: bool) -> str | None:
    """Copy the cell from a run beside this one that measured it in the same way; returns the name of that run.

    Else begin with the items of the same cell under a lower limit, if this run has one.
    """
    run, name = own.folder.resolve().parents[1], own.folder.name
    beside = sorted(run.parent.glob(f"*/cells/{name}/{DONE}"))
    # Items decoded in batches might come out differently in other batches.
    fewer = sorted(run.glob(f"cells/{name.rpartition('-')[0]}-*/{DONE}")) if own.cell.batch_size == 1 else []
    for done in (*beside, *fewer):
        found = complete_cell(done.parent)
        if found is None or not _measured_alike(found, own, shared=shared):
            continue
        missing = sorted(found.scores.keys() - own.scores.keys())
        own.add([found.generations[number] for number in missing])  # also in place of one whose score is missing
        own.add_scores({number: found.scores[number] for number in missing})
        if found.key == own.key:
            own.note(**{"taken_from": done.relative_to(run.parent).parts[0]} | found.about)
            own.finish()
            return own.about["taken_from"]
    return None


def _measured_alike(found: CellFolder, own: CellFolder, *, shared: bool) -> bool:
    """Whether items were measured as `own` would be now.

    Times of a shared device are good enough only where the device is shared here as well.
    """
    same = found.cell.items <= own.cell.items and replace(found.cell, items=own.cell.items) == own.cell
    usable = shared or not found.about.get("shared")
    return same and usable and not changed(found.about, own.about, CIRCUMSTANCES)
