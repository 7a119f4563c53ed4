"""What a cell may be mixed with: only what was measured under the same circumstances, here or in a run beside this one.

Tables share cells: the baseline of one is a row of another. `Cell.key` says whether two cells are the same question;
here it is decided whether the answer would be the same too.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError
from unmask.evals.cell import Cell
from unmask.evals.store import CELL, DONE, ITEMS, write_whole

# What may differ between two runs of one cell and would show in the answers or in their times.
CIRCUMSTANCES = ("weights", "code", "questions", "device_name", "threads", "versions")

# What must not differ within one run, and how it is called; its times may come from several machines.
ORIGINS = {"weights": "other weights", "code": "other code", "questions": "other questions"}
WAYS_OUT = "choose another --out, or discard them with --fresh"


def check_origins(out: Path, noted: Iterable[tuple[Cell, Mapping[str, Any]]]) -> None:
    """Refuse to go on in a run that was begun with another checkpoint of the same name, other code or other questions.

    `noted` is, of every cell, what would be noted of it now. One that was opened and has no item yet is forgotten.
    """
    for cell, now in noted:
        folder = out / "cells" / cell.key
        if (about := _about(folder)) is None:
            continue
        differ = [said for name, said in ORIGINS.items() if about.get(name) != now.get(name)]
        if differ and has_items(folder):
            raise UnmaskError(f"{out} holds results of {cell.model} with {' and '.join(differ)}; {WAYS_OUT}")
        if differ:
            shutil.rmtree(folder)


def discard(out: Path, cells: Iterable[Cell]) -> None:
    """Forget what a run holds of these cells."""
    for cell in cells:
        shutil.rmtree(out / "cells" / cell.key, ignore_errors=True)


def has_items(folder: Path) -> bool:
    """Whether anything was measured there."""
    items = folder / ITEMS
    return (folder / DONE).exists() or (items.exists() and items.stat().st_size > 0)


def take_over(out: Path, cell: Cell, noted: Mapping[str, Any]) -> str | None:
    """Copy the cell from a run in the same parent folder that holds it complete; the name of the run it comes from.

    `noted` is what would be noted if it were measured here. Times taken on a shared device are good enough only where
    the device is shared here as well.
    """
    own, parent = out / "cells" / cell.key, out.resolve().parent
    if (own / DONE).exists():
        return None
    for done in sorted(parent.glob(f"*/cells/{cell.key}/{DONE}")):
        about = _about(done.parent)
        if about is not None and _alike(about, noted):
            about.setdefault("taken_from", done.relative_to(parent).parts[0])
            _replace(done.parent, own, about, part=out / ".taking")
            return about["taken_from"]
    return None


def begin_with_fewer(out: Path, cell: Cell, noted: Mapping[str, Any]) -> None:
    """Where the limit of a run was raised: begin the cell with the items of the one that had fewer.

    Only of items that were decoded one by one is it sure that they would come out the same.
    """
    own, asked = out / "cells" / cell.key, json.loads(json.dumps(cell.to_dict()))
    if cell.batch_size != 1 or has_items(own):
        return
    for done in sorted((out / "cells").glob(f"*/{DONE}")):
        about = _about(done.parent) or {"cell": {}}
        fewer = 0 < about["cell"].get("items", 0) < cell.items and about["cell"] | {"items": cell.items} == asked
        if fewer and _alike(about, noted):
            about.pop("taken_from", None)
            _replace(done.parent, own, about | {"cell": asked}, part=out / ".taking", whole=False)
            return


def _alike(about: Mapping[str, Any], noted: Mapping[str, Any]) -> bool:
    if about.get("shared") and not noted.get("shared"):
        return False
    return all(about.get(name) == noted.get(name) for name in CIRCUMSTANCES)


def _replace(found: Path, own: Path, about: dict[str, Any], *, part: Path, whole: bool = True) -> None:
    """Put a copy in the place of what is there, a part of the same; a copy cut short never gets to that place."""
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(found, part)
    if not whole:
        (part / DONE).unlink()
    write_whole(part / CELL, json.dumps(about, indent=1))
    own.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(own, ignore_errors=True)
    part.rename(own)


def _about(folder: Path) -> dict[str, Any] | None:
    try:
        return json.loads((folder / CELL).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
