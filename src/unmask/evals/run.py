"""Measures the cells of a recipe, one model after the other, in a folder that can be left and taken up at any moment.

    RUN/run.json   the recipe as it was resolved, versions, models, command, the keys of its cells
    RUN/cells/     see store.py
    RUN/.lock      held while a process works here

A complete cell is not measured again, be it of this run or of one beside it (see reuse.py); a model whose cells are all
complete is not even loaded. A recipe may grow in its folder: run.json says which of the cells it has now.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from unmask import sandbox
from unmask.errors import UnmaskError
from unmask.evals.cell import SCHEMA, Cell, ModelInfo
from unmask.evals.digests import code_digest
from unmask.evals.executor import WARM_UP, Executor, LocalExecutor
from unmask.evals.expand import expand
from unmask.evals.harness import BENCHMARKS, BenchmarkTask, questions_digest
from unmask.evals.loop import measure
from unmask.evals.recipe import Checkpoint, Recipe
from unmask.evals.reuse import changed, reuse
from unmask.evals.run_folder import locked, note_cells, open_run, save_run, versions
from unmask.evals.store import CELL, CellFolder, has_items, read_whole
from unmask.evals.tiny_suite import TinyTask
from unmask.evals.tiny_suite import knows as is_tiny
from unmask.models.checkpoint.fingerprint import fingerprint

RUN_CODE = {"humaneval", "mbpp", "list_functions"}  # tasks whose answers are programs
WAYS_OUT = "choose another --out, or discard them with --fresh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands."""

    cell: Cell
    number: int  # of the cell, from 1
    cells: int
    done: int  # items of the cell
    items: int
    share: float  # of the work that was left when the run began, by expected forward passes
    beside: tuple[Cell, ...]  # all cells of the model
    reused: int  # cells of other runs so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A run that came to its end."""

    folder: Path
    cells: list[CellFolder]
    new_cells: int  # how many this call brought to their end; 0 where there was nothing left to do
    new_items: int  # how many it decoded
    reused: dict[str, int]  # how many cells of which other run it reused
    changed: tuple[str, ...] = ()  # of a run with nothing left to do, what is no longer as it was: code, questions


def run(
    recipe: Recipe,
    *,
    out: Path,
    load: Callable[[Checkpoint], Executor] = LocalExecutor.load,
    command: str = "",
    fresh: bool = False,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    on_load: Callable[[str], None] = lambda model: None,
) -> Finished:
    """Measure what is missing of the recipe in that folder; `fresh`: all of it, whatever the folder holds of it.

    `load` makes the executor of a model; `on_load` hears the name of each one before it is loaded.
    """
    with locked(out), sandbox.allow_unsandboxed() if recipe.allow_unsandboxed else nullcontext():
        if RUN_CODE & set(recipe.tasks):
            sandbox.require()
        job = _Job(recipe, out, open_run(recipe, out, command), fresh, on_progress)
        parts = [[] if fresh else job.complete_cells(checkpoint) for checkpoint in recipe.models]
        differ = sorted({name for part in parts for folder in part for name in job.changed(folder)})
        if differ and not all(parts):
            raise UnmaskError(f"{out} holds results with other {' and '.join(differ)}; {WAYS_OUT}")
        job.cells, job.models = sum(map(len, parts)), parts.count([])
        for number, checkpoint in enumerate(recipe.models):
            if not parts[number]:
                job.read_questions()
                on_load(checkpoint.name)
                executor = load(checkpoint)
                try:
                    parts[number] = job.measure_model(checkpoint, executor)
                finally:
                    executor.close()  # the next model needs the memory of this one
        save_run(out, job.about)
    counts = {"new_cells": job.new_cells, "new_items": job.new_items, "reused": dict(job.reused)}
    return Finished(folder=out, cells=[folder for part in parts for folder in part], changed=tuple(differ), **counts)


class _Job:
    """A recipe at work in its folder."""

    def __init__(
        self, recipe: Recipe, out: Path, about: dict[str, Any], fresh: bool, on_progress: Callable[[Progress], None]
    ) -> None:
        self.recipe, self.out, self.about, self.fresh, self.on_progress = recipe, out, about, fresh, on_progress
        self.data = None if recipe.data_dir is None else Path(recipe.data_dir)
        self.new_cells = self.new_items = 0
        self.cells = self.models = self.measured = 0  # complete cells; models to measure, and measured ones
        self.reused: Counter[str] = Counter()
        self._questions: dict[str, dict[str, str]] = {}

    def complete_cells(self, checkpoint: Checkpoint) -> list[CellFolder]:
        """The model's cells, if an earlier part of the run knew them and left nothing to do."""
        known = self.about["models"].get(checkpoint.name)
        if known is None or checkpoint.dtype not in (None, known["dtype"]):
            return []
        if (checkpoint.device or known["device"]).partition(":")[0] != known["device"]:
            return []
        cells = expand(self.recipe, checkpoint, ModelInfo(**known))
        places = [self.out / "cells" / cell.key for cell in cells]
        folders = [CellFolder(place) for place in places if (place / CELL).exists()]
        if len(folders) < len(cells) or not all(folder.complete for folder in folders):
            return []
        note_cells(self.about, [cell.key for cell in cells])
        return folders

    def read_questions(self) -> None:
        """Before a model is loaded: what cannot be read is told at once."""
        for task in self.recipe.tasks:
            self._questions_of(task)

    def _questions_of(self, task: str) -> dict[str, str]:
        """Their digest, by its name; the items of a tiny task come from code."""
        if task not in self._questions:
            self._questions[task] = {} if is_tiny(task) else {"questions": questions_digest(task, self.data)}
        return self._questions[task]

    def changed(self, folder: CellFolder) -> list[str]:
        """What a complete cell depends on and is no longer as it was, as far as that costs next to nothing."""
        cell = folder.cell
        on_hub = self.data is None and cell.task in BENCHMARKS
        now = {"code": code_digest(cell.decoding()[0])} | ({} if on_hub else self._questions_of(cell.task))
        return changed(folder.about, now)

    def measure_model(self, checkpoint: Checkpoint, executor: Executor) -> list[CellFolder]:
        """The model's cells, all of them complete."""
        cells = expand(self.recipe, checkpoint, executor.info)
        for cell in cells:
            executor.check(*cell.decoding())
        weights = fingerprint(checkpoint.path, revision=checkpoint.revision)
        noted = {cell.key: self._noted(cell, executor.info, weights) for cell in cells}
        for cell in cells:
            self._make_room(cell, noted[cell.key])
        self.about["models"][checkpoint.name] = asdict(executor.info)
        note_cells(self.about, noted)
        save_run(self.out, self.about)
        folders = [self._open(cell, noted[cell.key]) for cell in cells]
        work = [_passes(each.cell) * max(0, each.cell.items - len(each.generations)) for each in folders]
        for at, cell in enumerate(cells):
            if not folders[at].complete:
                folders[at] = self._open(cell, noted[cell.key])  # a run beside this one may have finished it meanwhile
            if not folders[at].complete:
                self._measure_cell(executor, folders[at], partial(self._tell, cells, at, work, len(folders[at].scores)))
        self.cells += len(cells)
        self.measured += 1
        return folders

    def _tell(self, cells: list[Cell], at: int, work: list[float], before: int, done: int, items: int) -> None:
        """Every model counts the same: the cost of one that is not loaded yet is unknown."""
        spent = sum(work[:at]) + work[at] * (done - before) / max(1, items - before)
        progress = Progress(
            cell=cells[at],
            number=self.cells + at + 1,
            cells=self.cells + len(cells) * (self.models - self.measured),
            done=done,
            items=items,
            share=min(1.0, (self.measured + spent / (sum(work) or 1.0)) / self.models),
            beside=tuple(cells),
            reused=self.reused.total(),
        )
        self.on_progress(progress)

    def _noted(self, cell: Cell, info: ModelInfo, weights: str) -> dict[str, Any]:
        """What the answers and times of a cell depend on, if it is measured now."""
        here = {"device_name": info.device_name, "threads": info.threads, "warm_up": WARM_UP, "weights": weights}
        code = {"code": code_digest(cell.decoding()[0])}
        return {"versions": versions([cell.task]), **here, **code, **self._questions_of(cell.task)}

    def _make_room(self, cell: Cell, noted: dict[str, Any]) -> None:
        """Discard the cell if it is to be measured anew; refuse to mix items that depend on other things."""
        place = self.out / "cells" / cell.key
        if self.fresh:
            shutil.rmtree(place, ignore_errors=True)
        elif has_items(place) and (differ := changed(read_whole(place / CELL, SCHEMA), noted)):
            raise UnmaskError(f"{self.out} holds results of {cell.model} with other {' and '.join(differ)}; {WAYS_OUT}")

    def _open(self, cell: Cell, noted: dict[str, Any]) -> CellFolder:
        shared = {"shared": self.recipe.shared}
        if not self.fresh and (name := reuse(self.out, cell, noted | shared)) is not None:
            self.reused[name] += 1
        return CellFolder.open(self.out, cell, noted)

    def _measure_cell(self, executor: Executor, folder: CellFolder, on_item: Callable[[int, int], None]) -> None:
        cell, before = folder.cell, len(folder.generations)
        if self.recipe.shared:
            folder.note(shared=True)
        task = TinyTask(cell, executor) if is_tiny(cell.task) else BenchmarkTask(cell, executor, self.data)
        measure(executor, task, folder, on_item=on_item)
        self.new_cells += 1
        self.new_items += len(folder.generations) - before


def _passes(cell: Cell) -> float:
    """That an item is likely to take: exact for a fixed number of tokens a pass, else a guess."""
    length, tokens = cell.settings["max_tokens"], cell.policy.get("tokens_per_pass", 8)
    passes = cell.policy.get("passes")
    return passes * length / cell.settings["block_size"] if passes else length / tokens
