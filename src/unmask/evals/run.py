"""Measures the cells of a recipe, one model after the other, in a folder that can be left and taken up at any moment.

A complete cell is not measured again, be it of this run or of one beside it. A model whose cells are all complete is
not even loaded. A recipe may grow in its folder: run.json lists the cells of its latest form.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any
from warnings import warn

from unmask import sandbox
from unmask.evals import tiny_suite
from unmask.evals.cell import Cell, ModelInfo
from unmask.evals.digests import changed, code_digest, records_digest, versions
from unmask.evals.executor import WARM_UP, Executor, LocalExecutor
from unmask.evals.expand import expand
from unmask.evals.harness import BENCHMARKS, BenchmarkTask, questions_of
from unmask.evals.loop import measure
from unmask.evals.recipe import Checkpoint, Recipe
from unmask.evals.run_folder import begin_with_fewer_items, locked, note_cells, open_run, other_results, reuse, save_run
from unmask.evals.store import CellFolder, intact
from unmask.models.checkpoint.fingerprint import fingerprint

RUN_CODE = {"humaneval", "mbpp", "list_functions"}  # tasks whose answers are programs


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands."""

    cell: Cell
    number: int  # of the cell, from 1
    cells: int
    done: int  # items of the cell
    items: int
    share: float  # of the whole run, by expected forward passes
    beside: tuple[Cell, ...]  # all cells of the model
    reused: int  # cells of other runs so far
    status: str  # of the executor; empty: nothing to say


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A run that came to its end."""

    cells: list[CellFolder]
    new_cells: int  # how many this call brought to their end; 0 where there was nothing left to do
    new_items: int  # how many it decoded
    reused: dict[str, int]  # how many cells of which other run it reused
    changed: list[str]  # of a run with nothing left to do, what has changed since: code, questions


def run(
    recipe: Recipe,
    *,
    out: Path,
    load: Callable[[Checkpoint], Executor] = LocalExecutor.load,
    command: str = "",
    fresh: bool = False,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    on_load: Callable[[str], None] = lambda model: None,
    say: Callable[[str], None] = warn,
) -> Finished:
    """Measure the cells of the recipe that the folder lacks; with `fresh`, all of them.

    `load` makes the executor of a model; `on_load` is called with the name of each model before it is loaded, and
    `say` with a line on each file that was found damaged.
    """
    with locked(out), sandbox.allow_unsandboxed() if recipe.allow_unsandboxed else nullcontext():
        if RUN_CODE & set(recipe.tasks):
            sandbox.require()
        job = _Job(recipe, out, open_run(out, recipe, command), fresh, on_progress, say)
        cells = {model: [] if fresh else job.complete_cells(model) for model in recipe.models}
        left = [model for model in recipe.models if not cells[model]]
        done = [folder for found in cells.values() for folder in found]
        stale = [(folder.cell.model, name) for folder in done for name in job.changed(folder)]
        if stale and left:
            raise other_results(out, stale)
        for task in recipe.tasks if left else ():
            job.questions(task)  # data that cannot be read is reported before a model is loaded
        for model in left:
            on_load(model.name)
            executor = load(model)
            try:
                cells[model] = job.measure_model(model, executor)
            finally:
                executor.close()  # the next model needs the memory of this one
        save_run(out, job.about)
    return Finished(
        cells=[folder for found in cells.values() for folder in found],
        new_cells=job.new_cells,
        new_items=job.new_items,
        reused=dict(job.reused),
        changed=sorted({name for _, name in stale}),
    )


class _Job:
    """A recipe at work in its folder."""

    def __init__(
        self,
        recipe: Recipe,
        out: Path,
        about: dict[str, Any],
        fresh: bool,
        on_progress: Callable[[Progress], None],
        say: Callable[[str], None],
    ) -> None:
        self.recipe, self.out, self.about, self.fresh = recipe, out, about, fresh
        self.on_progress, self.say = on_progress, say
        self.data = None if recipe.data_dir is None else Path(recipe.data_dir)
        self.questions = cache(partial(_questions, data=self.data))
        self.new_cells = self.new_items = 0
        self.reused: Counter[str] = Counter()

    def complete_cells(self, model: Checkpoint) -> list[CellFolder]:
        """The model's cells, if run.json knows the model and every cell is complete; else none."""
        known = self.about["models"].get(model.name)
        if known is None or model.dtype not in (None, known["dtype"]):
            return []
        if (model.device or known["device"]).partition(":")[0] != known["device"]:
            return []
        keys = [cell.key for cell in expand(self.recipe, model, ModelInfo(**known))]
        if not all(intact(self.out / "cells" / key) for key in keys):
            return []
        note_cells(self.about, keys)
        return [CellFolder(self.out / "cells" / key) for key in keys]

    def changed(self, folder: CellFolder) -> list[str]:
        """Which of code and questions changed since a complete cell was measured.

        The questions of our benchmarks on the hub are not read for this.
        """
        cell = folder.cell
        on_hub = self.data is None and cell.task in BENCHMARKS
        now = {"code": code_digest(cell.decoding()[0])} | ({} if on_hub else self.questions(cell.task))
        return changed(folder.about, now)

    def measure_model(self, model: Checkpoint, executor: Executor) -> list[CellFolder]:
        """Measure the model's cells, and return them complete."""
        info = executor.info
        cells = expand(self.recipe, model, info)
        for cell in cells:
            executor.check(*cell.decoding())
        here = {"versions": versions(), "device_name": info.device_name, "threads": info.threads, "warm_up": WARM_UP}
        here["weights"] = fingerprint(model.path, revision=model.revision)
        folders = [self._open(cell, here) for cell in cells]
        self.about["models"][model.name] = asdict(info)
        note_cells(self.about, [cell.key for cell in cells])
        save_run(self.out, self.about)
        return [
            folder
            if folder.complete
            else self._measure_cell(executor, folder, partial(self._tell, executor, model, cells, at))
            for at, folder in enumerate(folders)
        ]

    def _tell(self, executor: Executor, model: Checkpoint, cells: list[Cell], at: int, done: int, items: int) -> None:
        """Report progress. Every model counts the same, since the cells of a model not loaded yet are unknown."""
        models, before = len(self.recipe.models), self.recipe.models.index(model)
        work = [_passes(cell) for cell in cells]
        share = (sum(work[:at]) + work[at] * done / max(1, items)) / sum(work)
        progress = Progress(
            cell=cells[at],
            number=before * len(cells) + at + 1,
            cells=models * len(cells),
            done=done,
            items=items,
            share=(before + share) / models,
            beside=tuple(cells),
            reused=self.reused.total(),
            status=executor.status,
        )
        self.on_progress(progress)

    def _open(self, cell: Cell, here: dict[str, Any]) -> CellFolder:
        if self.fresh:
            shutil.rmtree(self.out / "cells" / cell.key, ignore_errors=True)
        about = {**here, "code": code_digest(cell.decoding()[0]), **self.questions(cell.task)}
        folder = CellFolder.open(self.out, cell, about, self.say)
        if differ := changed(folder.about, about):
            raise other_results(self.out, [(cell.model, name) for name in differ])
        return folder

    def _measure_cell(self, executor: Executor, folder: CellFolder, on_item: Callable[[int, int], None]) -> CellFolder:
        """Take the cell from a run beside this one, which may have finished it meanwhile, or measure it."""
        shared = self.recipe.shared or executor.shared
        if not self.fresh:
            if name := reuse(folder, shared=shared):
                self.reused[name] += 1
                return CellFolder(folder.folder)
            begin_with_fewer_items(folder, shared=shared)
        if shared:
            folder.note(shared=True)
        cell, before = folder.cell, len(folder.generations)
        tiny = tiny_suite.knows(cell.task)
        task = tiny_suite.TinyTask(cell, executor) if tiny else BenchmarkTask(cell, executor, self.data)
        measure(executor, task, folder, on_item=on_item)
        self.new_cells += 1
        self.new_items += len(folder.generations) - before
        return folder


def _questions(task: str, *, data: Path | None) -> dict[str, str]:
    """The digest of a task's questions, for cell.json; none for a tiny task, whose questions come from code."""
    return {} if tiny_suite.knows(task) else {"questions": records_digest(questions_of(task, data))}


def _passes(cell: Cell) -> float:
    """The passes that an item is likely to take: exact for a fixed number of tokens a pass, else a guess."""
    length, tokens = cell.settings["max_tokens"], cell.policy.get("tokens_per_pass", 8)
    passes = cell.policy.get("passes")
    return passes * length / cell.settings["block_size"] if passes else length / tokens
