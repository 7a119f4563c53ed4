"""Results on disk, safe at any moment: a finished batch is written at once, one line for each item.

    RUN/cells/KEY/cell.json      the cell, versions, device, digests of weights, code and a benchmark's questions;
                                 whether other work shared the device (`shared`); the run that measured it, where
                                 the items are copies (`taken_from`)
    RUN/cells/KEY/items.jsonl    a Generation a line
    RUN/cells/KEY/scores.jsonl   {"id": 3, "scores": {"correct": 1.0}} a line
    RUN/cells/KEY/done.json      how many items there are, and a digest of both files above; written when the last
                                 item is scored
    RUN/damaged/                 cells that something else has damaged; they are measured again

A line that a kill cut short is dropped when the cell is measured on, and its item is done again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any
from warnings import warn

from unmask.errors import UnmaskError
from unmask.evals.cell import SCHEMA, Cell, Generation

CELL, ITEMS, SCORES, DONE, DAMAGED = "cell.json", "items.jsonl", "scores.jsonl", "done.json", "damaged"


class CellFolder:
    """The files of one cell."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.about = read_whole(folder / CELL, SCHEMA)
        try:
            self.cell = Cell(**self.about["cell"])
            self.key = self.cell.key  # fails if the policy has no name
            self.generations = {row["id"]: Generation(**row) for row in _lines(folder / ITEMS)}
            self.scores: dict[int, dict[str, float]] = {row["id"]: row["scores"] for row in _lines(folder / SCORES)}
        except (KeyError, TypeError, AttributeError) as error:
            raise UnmaskError(
                f"{folder} is damaged, a field is missing or too many: {error}; remove the folder"
            ) from error

    @classmethod
    def open(cls, run: Path, cell: Cell, about: dict[str, Any], say: Callable[[str], None] = warn) -> CellFolder:
        """The cell's folder in that run, made where it holds nothing; `about` is what else to note of the cell.

        A damaged folder is put aside, and `say` is told.
        """
        folder = run / "cells" / cell.key
        try:
            begun = _content(folder / ITEMS) or (folder / DONE).exists()
            if begun:
                _checked(folder)
        except UnmaskError as damage:
            aside = next(path for n in count(1) if not (path := run / DAMAGED / f"{cell.key}-{n}").exists())
            aside.parent.mkdir(exist_ok=True)
            folder.rename(aside)
            say(f"{str(damage).partition(';')[0]}; the cell was moved to {aside} and is measured again")
            begun = False
        if not begun:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / CELL, {"schema": SCHEMA, "cell": asdict(cell), **about})
        for path in (folder / ITEMS, folder / SCORES):
            if rest := len(_content(path).rpartition(b"\n")[2]):
                os.truncate(path, path.stat().st_size - rest)
                say(f"{path} ends in half a line ({rest} bytes); its item is done again")
        return cls(folder)

    @property
    def complete(self) -> bool:
        """Whether no item is left, and nothing has changed since; a task may have fewer items than were asked for.

        Older versions wrote the number of items alone.
        """
        if not (self.folder / DONE).exists():
            return False
        done, summary = _read(self.folder / DONE), self._summary()
        older = {"items": summary["items"]} if self.generations.keys() == self.scores.keys() else None
        return done in (summary, older)

    def _summary(self) -> dict[str, Any]:
        """The content of done.json."""
        digest = blake2b(digest_size=16)
        for name in (ITEMS, SCORES):
            content = _content(self.folder / name)
            digest.update(len(content).to_bytes(8, "big") + content)
        return {"items": len(self.generations.keys() & self.scores.keys()), "digest": digest.hexdigest()}

    def note(self, **values: Any) -> None:
        """Add to the notes on how the cell was measured."""
        self.about |= values
        write_whole(self.folder / CELL, self.about)

    def finish(self) -> None:
        """Note that no item is left."""
        write_whole(self.folder / DONE, self._summary())

    def add(self, generations: Sequence[Generation]) -> None:
        """Write finished items to disk, then add them to `generations`."""
        _append(self.folder / ITEMS, [asdict(row) for row in generations])
        self.generations |= {row.id: row for row in generations}

    def add_scores(self, scores: dict[int, dict[str, float]]) -> None:
        _append(self.folder / SCORES, [{"id": number, "scores": found} for number, found in scores.items()])
        self.scores |= scores


def complete_cell(folder: Path) -> CellFolder | None:
    """The cell in a folder if it is complete; None if it is missing, unfinished or damaged."""
    with suppress(UnmaskError):
        found = _checked(folder)
        return found if found.complete else None
    return None


def _checked(folder: Path) -> CellFolder:
    """The cell in a folder; raises an error if its files contradict each other."""
    found = CellFolder(folder)
    if found.key != folder.name:
        raise UnmaskError(f"{folder} is damaged: its {CELL} describes another cell")
    if (folder / DONE).exists() and not found.complete:
        raise UnmaskError(f"{folder} is damaged: its items or scores are not those that {DONE} lists")
    return found


def cells_of(run: Path) -> list[CellFolder]:
    """Every cell of a run, finished or not."""
    return [CellFolder(path.parent) for path in sorted((run / "cells").glob(f"*/{CELL}"))]


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a file."""
    for number, line in enumerate(_content(path).split(b"\n")[:-1], 1):
        try:
            yield json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UnmaskError(f"{path}, line {number} is damaged: {error}; remove the line") from error


def _append(path: Path, rows: list[dict[str, Any]]) -> None:
    _write(path, "a", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def write_whole(path: Path, about: dict[str, Any]) -> None:
    """Replace a file at once: a reader never sees half of it."""
    part = path.with_suffix(".part")
    _write(part, "w", json.dumps(about, indent=1) + "\n")
    part.replace(path)


def _write(path: Path, mode: str, text: str) -> None:
    with path.open(mode, encoding="utf-8", errors="surrogatepass") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def read_whole(path: Path, schema: str) -> dict[str, Any]:
    """The content that `write_whole` wrote; it must have that schema."""
    about = _read(path)
    if not isinstance(about, dict) or about.get("schema") != schema:
        raise UnmaskError(f"{path} is not of the form {schema}")
    return about


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UnmaskError(f"{path} is damaged: {error}; remove the folder {path.parent}") from error
