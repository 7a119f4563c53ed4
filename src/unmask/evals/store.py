"""Results on disk, safe at any moment: a finished batch is written at once, one line for each item.

    RUN/run.json                 the recipe as it was resolved, versions, models, command, the keys of its cells
    RUN/.lock                    held while a process works here
    RUN/cells/KEY/cell.json      the cell, versions, device, digests of weights, code and a benchmark's questions;
                                 whether other work shared the device (`shared`); the run that measured it, where
                                 the items are copies (`taken_from`)
    RUN/cells/KEY/items.jsonl    a Generation a line
    RUN/cells/KEY/scores.jsonl   {"id": 3, "scores": {"correct": 1.0}} a line
    RUN/cells/KEY/done.json      how many items there are, and a digest of both files above; written when the last
                                 item is scored
    RUN/damaged/                 cells that something else has damaged; they are measured again

Cells of earlier recipes stay in the folder. A line that a kill cut short is dropped when the cell is measured
on, and its item is done again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from hashlib import blake2b
from itertools import count
from pathlib import Path
from typing import Any
from warnings import warn

from unmask.errors import UnmaskError
from unmask.evals.cell import SCHEMA, Cell, Generation, ModelInfo
from unmask.locks import lock

RUN_SCHEMA = "unmask.run/1"
RUN, LOCK, DAMAGED = "run.json", ".lock", "damaged"
CELL, ITEMS, SCORES, DONE = "cell.json", "items.jsonl", "scores.jsonl", "done.json"
DIGESTS = ("weights", "code", "questions")  # of what answers depend on beside the cell
CIRCUMSTANCES = (*DIGESTS, "device_name", "threads", "versions")  # on which times depend as well


class CellFolder:
    """The files of one cell. It is `complete` when no item is left; a task may have fewer than were asked for."""

    def __init__(self, folder: Path) -> None:
        """Read the files; raises an error if one is damaged. A cell whose files differ from done.json is unfinished."""
        self.folder = folder
        # It is written last, so it is read first: another process may be at work.
        done = read_whole(folder / DONE) if (folder / DONE).exists() else None
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
        summary = self._summary()
        # Older versions wrote the number alone.
        older = {"items": summary["items"]} if self.generations.keys() == self.scores.keys() else summary
        self.complete = done in (summary, older)

    @classmethod
    def open(cls, run: Path, cell: Cell, about: dict[str, Any], say: Callable[[str], None] = warn) -> CellFolder:
        """The cell's folder in that run, made where it holds nothing; `about` is what else to note of the cell.

        A damaged folder is put aside, and `say` is told.
        """
        folder, found = run / "cells" / cell.key, None
        try:
            if _content(folder / ITEMS) or (folder / DONE).exists():
                found = _checked(folder)
        except UnmaskError as damage:
            aside = next(path for n in count(1) if not (path := run / DAMAGED / f"{cell.key}-{n}").exists())
            aside.parent.mkdir(exist_ok=True)
            folder.rename(aside)
            say(f"{str(damage).partition(';')[0]}; the cell was moved to {aside} and is measured again")
        if found is None:
            folder.mkdir(parents=True, exist_ok=True)
            write_whole(folder / CELL, {"schema": SCHEMA, "cell": asdict(cell), **about})
            found = cls(folder)
        for path in (folder / ITEMS, folder / SCORES):
            if rest := len(_content(path).rpartition(b"\n")[2]):
                os.truncate(path, path.stat().st_size - rest)
                say(f"{path} ends in half a line ({rest} bytes); its item is done again")
        return found

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
        self.complete = True

    def add(self, generations: Sequence[Generation]) -> None:
        """Write finished items to disk, then add them to `generations`."""
        _write(self.folder / ITEMS, "a", [json.dumps(asdict(row), ensure_ascii=False) for row in generations])
        self.generations |= {row.id: row for row in generations}

    def add_scores(self, scores: dict[int, dict[str, float]]) -> None:
        _write(self.folder / SCORES, "a", [json.dumps({"id": id, "scores": found}) for id, found in scores.items()])
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


def known_models(out: Path) -> dict[str, Any]:
    """The models that run.json knows, as they describe themselves."""
    models = read_whole(out / RUN, RUN_SCHEMA).get("models") if (out / RUN).exists() else {}
    try:
        for info in models.values():
            ModelInfo(**info)
    except (TypeError, AttributeError) as error:
        raise UnmaskError(f"{out / RUN} is damaged, its models are wrong: {error}; choose another --out") from error
    return models


def save_run(out: Path, about: dict[str, Any]) -> None:
    """Write run.json, unless it has the same recipe, models and cells already."""
    found = read_whole(out / RUN, RUN_SCHEMA) if (out / RUN).exists() else {}
    if any(found.get(key) != about[key] for key in ("resolved", "models", "cells")):
        write_whole(out / RUN, {"schema": RUN_SCHEMA, **about})


def changed(about: Mapping[str, Any], now: Mapping[str, Any], names: Sequence[str] = DIGESTS) -> list[str]:
    """The names whose value in a cell's notes differs from the value in `now`; names that `now` lacks do not count."""
    return [name for name in names if name in now and about.get(name) != now[name]]


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
        if found is None or found.cell.items > own.cell.items or replace(found.cell, items=own.cell.items) != own.cell:
            continue
        # Times of a shared device are good enough only where the device is shared here as well.
        if changed(found.about, own.about, CIRCUMSTANCES) or (found.about.get("shared") and not shared):
            continue
        missing = sorted(found.scores.keys() - own.scores.keys())
        own.add([found.generations[number] for number in missing])  # also in place of one whose score is missing
        own.add_scores({number: found.scores[number] for number in missing})
        if found.key == own.key:
            own.note(**{"taken_from": done.relative_to(run.parent).parts[0]} | found.about)
            own.finish()
            return own.about["taken_from"]
    return None


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a file."""
    for number, line in enumerate(_content(path).split(b"\n")[:-1], 1):
        try:
            yield json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UnmaskError(f"{path}, line {number} is damaged: {error}; remove the line") from error


def _write(path: Path, mode: str, lines: Sequence[str]) -> None:
    with path.open(mode, encoding="utf-8", errors="surrogatepass") as file:
        file.writelines(f"{line}\n" for line in lines)
        file.flush()
        os.fsync(file.fileno())


def write_whole(path: Path, about: dict[str, Any]) -> None:
    """Replace a file at once: a reader never sees half of it."""
    part = path.with_suffix(".part")
    _write(part, "w", [json.dumps(about, indent=1)])
    part.replace(path)


def read_whole(path: Path, schema: str | None = None) -> Any:
    """The content that `write_whole` wrote; it must have that schema, if one is given."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UnmaskError(f"{path} is damaged: {error}; remove the folder {path.parent}") from error
    if schema and (not isinstance(about, dict) or about.get("schema") != schema):
        raise UnmaskError(f"{path} is not of the form {schema}")
    return about
