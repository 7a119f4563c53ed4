"""The folder of a run: its lock, run.json, which says how the run was made, and cells taken from the runs beside it.

RUN/run.json   the recipe as it was resolved, versions, models, command, the keys of its cells
RUN/cells/     see store.py
RUN/.lock      held while a process works here
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError
from unmask.evals.cell import ModelInfo
from unmask.evals.digests import CIRCUMSTANCES, changed, versions
from unmask.evals.recipe import Recipe
from unmask.evals.store import CELL, DONE, CellFolder, has_items, intact, read_whole, write_whole
from unmask.locks import lock

SCHEMA = "unmask.run/1"
RUN, LOCK = "run.json", ".lock"

# Keys of a recipe that may differ when a run is taken up again: no result depends on them.
FREE = ("name", "title", "table", "data_dir", "allow_unsandboxed", "shared")
LISTS = ("models", "policies", "settings", "tasks")  # these may grow, and so may the limit


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
    """The content for run.json: the file's, if its recipe is this very one; else that of a new or grown recipe."""
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
    if not any(has_items(folder) for folder in (out / "cells").glob("*")):
        return new
    if not path.exists():
        raise UnmaskError(f"{out} holds cells but no run.json; choose another --out")
    found = read_whole(path, SCHEMA)
    _check_form(path, found)
    before = found["resolved"]
    if clash := [key for key in resolved if not _covers(key, before.get(key), resolved[key])]:
        hint = "choose another --out; finished cells that are equal are reused"
        raise UnmaskError(f"{out} holds a run with other values of {', '.join(clash)}; {hint}")
    return found if before == resolved else new | {"models": found["models"]}


def _check_form(path: Path, found: dict[str, Any]) -> None:
    """Refuse a run.json that lacks what a run goes on with."""
    try:
        lists = [*(found["resolved"][key] for key in LISTS), found["cells"]]
        for info in found["models"].values():
            ModelInfo(**info)
    except (KeyError, TypeError, AttributeError) as error:
        raise UnmaskError(f"{path} is damaged, a field is missing or wrong: {error}; choose another --out") from error
    if not all(isinstance(each, list) for each in lists):
        raise UnmaskError(f"{path} is damaged, {', '.join((*LISTS, 'cells'))} must be lists; choose another --out")


def _covers(key: str, before: Any, now: Any) -> bool:
    """Whether everything that was asked for before is asked for now."""
    if key in LISTS:
        return all(item in now for item in before)
    grown = key == "limit" and before is not None and (now is None or now >= before)
    return before == now or key in FREE or grown


def note_cells(about: dict[str, Any], keys: Iterable[str]) -> None:
    """Add keys to the cells of the recipe; the folder may also hold cells from before the recipe grew."""
    about["cells"] = list(dict.fromkeys([*about["cells"], *keys]))


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
    """Copy the cell from a run beside this one that measured it in the same way; returns the name of that run."""
    run = own.folder.resolve().parents[1]
    for done in sorted(run.parent.glob(f"*/cells/{own.folder.name}/{DONE}")):
        if found := _measured_alike(done.parent, own, shared=shared):
            found.setdefault("taken_from", done.relative_to(run.parent).parts[0])
            part = run / ".copying"
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(done.parent, part)
            write_whole(part / CELL, found)
            shutil.rmtree(own.folder)
            part.rename(own.folder)  # a copy that is cut short never gets here
            return found["taken_from"]
    return None


def begin_with_fewer_items(own: CellFolder, *, shared: bool) -> None:
    """Copy the items of the same cell under a lower limit, if they were decoded one by one.

    Items decoded in batches might come out differently in other batches.
    """
    if own.cell.batch_size > 1 or own.generations:
        return
    for done in sorted(own.folder.parent.glob(f"*/{DONE}")):
        found = _measured_alike(done.parent, own, shared=shared)
        if found and found["cell"] == own.about["cell"] | {"items": found["cell"]["items"]}:
            fewer = CellFolder(done.parent)
            own.add(list(fewer.generations.values()))
            own.add_scores(fewer.scores)
            return


def _measured_alike(folder: Path, own: CellFolder, *, shared: bool) -> dict[str, Any] | None:
    """The notes of a complete cell, if it was measured as `own` would be now; None if it was not, or is damaged.

    Times of a shared device are good enough only where the device is shared here as well.
    """
    try:
        found = read_whole(folder / CELL, own.about["schema"])
    except UnmaskError:
        return None
    differs = changed(found, own.about, CIRCUMSTANCES) or (found.get("shared") and not shared)
    return found if not differs and intact(folder) else None
