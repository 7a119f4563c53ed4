"""Cells that are measured already, in a run beside this one or here with a lower limit, and need not be measured again.

Tables share cells: the baseline of one is a row of another. `Cell.key` tells whether two cells ask the same; a cell is
reused if the answers would be the same too, and were timed under the same circumstances.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError
from unmask.evals.cell import SCHEMA, Cell
from unmask.evals.store import CELL, DONE, has_items, read_whole, write_whole

DIGESTS = ("weights", "code", "questions")
CIRCUMSTANCES = (*DIGESTS, "device_name", "threads", "versions")


def changed(about: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Which digests of a measured cell are not those of `now`, as far as it has them."""
    return [name for name in DIGESTS if name in now and about.get(name) != now[name]]


def reuse(out: Path, cell: Cell, noted: Mapping[str, Any]) -> str | None:
    """Copy what there is of the cell to its place in this run; the name of the run that measured it whole.

    `noted` is what would be noted of it now. Of a cell with a lower limit the items are kept only if they were decoded
    one by one: in other batches they might come out differently.
    """
    own, parent = out / "cells" / cell.key, out.resolve().parent
    if (own / DONE).exists():
        return None
    for done in sorted(parent.glob(f"*/cells/{cell.key}/{DONE}")):
        if about := _equal(done.parent, noted):
            about.setdefault("taken_from", done.relative_to(parent).parts[0])
            _copy(done.parent, own, about, done=True)
            return about["taken_from"]
    asked = json.loads(json.dumps(cell.to_dict()))
    smaller = sorted((out / "cells").glob(f"*/{DONE}")) if cell.batch_size == 1 and not has_items(own) else ()
    for done in smaller:
        about = _equal(done.parent, noted)
        if about and 0 < about["cell"]["items"] < cell.items and about["cell"] | {"items": cell.items} == asked:
            about.pop("taken_from", None)
            _copy(done.parent, own, about | {"cell": asked}, done=False)
            break
    return None


def _equal(folder: Path, noted: Mapping[str, Any]) -> dict[str, Any] | None:
    """What is noted of a cell that was measured as it would be now; nothing if it was not, or is damaged.

    Times of a shared device are good enough only where the device is shared here as well.
    """
    try:
        about = read_whole(folder / CELL, SCHEMA)
    except (OSError, UnmaskError):
        return None
    alike = all(about.get(name) == noted.get(name) for name in CIRCUMSTANCES)
    return about if alike and (noted.get("shared") or not about.get("shared")) else None


def _copy(found: Path, own: Path, about: dict[str, Any], *, done: bool) -> None:
    """Replace what is there, a part of the same; a copy that is cut short never gets to its place."""
    part = own.parents[1] / ".copying"
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(found, part)
    if not done:
        (part / DONE).unlink()
    write_whole(part / CELL, json.dumps(about, indent=1))
    own.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(own, ignore_errors=True)
    part.rename(own)
