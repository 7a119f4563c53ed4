"""One cell, measured once: a run takes over what a run beside it has already finished under the same circumstances.

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
from unmask.evals.store import CELL, DONE, write_whole

# What may differ between two runs of one cell and would show in the answers or in their times.
CIRCUMSTANCES = ("weights", "device_name", "threads", "versions")


def check_weights(out: Path, cells: Iterable[Cell], weights: str) -> None:
    """Refuse to go on in a run whose cells were begun with another checkpoint of the same name."""
    for cell in cells:
        about = _about(out / "cells" / cell.key)
        if about is not None and about.get("weights") != weights:
            raise UnmaskError(f"{out} holds results of {cell.model} with other weights; choose another --out")


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
        if about is None or (about.get("shared") and not noted.get("shared")):
            continue
        if all(about.get(name) == noted.get(name) for name in CIRCUMSTANCES):
            about.setdefault("taken_from", done.relative_to(parent).parts[0])
            _replace(done.parent, own, about, part=out / ".taking")
            return about["taken_from"]
    return None


def _replace(found: Path, own: Path, about: dict[str, Any], *, part: Path) -> None:
    """Put a copy in the place of what is there, a part of the same; a copy cut short never gets to that place."""
    shutil.rmtree(part, ignore_errors=True)
    shutil.copytree(found, part)
    write_whole(part / CELL, json.dumps(about, indent=1))
    own.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(own, ignore_errors=True)
    part.rename(own)


def _about(folder: Path) -> dict[str, Any] | None:
    try:
        return json.loads((folder / CELL).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
