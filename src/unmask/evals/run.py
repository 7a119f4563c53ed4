"""Measures the cells of a recipe, one model after the other, in a folder that can be left and taken up at any moment.

A complete cell is not measured again, be it of this run or of one beside it. A model whose cells are all complete is
not even loaded. The folder takes any recipe: run.json lists the cells of the latest.
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any
from warnings import warn

from unmask import sandbox
from unmask.evals import tiny_suite
from unmask.evals.cell import Cell, ModelInfo, code_digest, records_digest, versions
from unmask.evals.executor import WARM_UP, Executor, LocalExecutor, batches
from unmask.evals.harness import BENCHMARKS, BenchmarkTask, questions_of
from unmask.evals.recipe import Checkpoint, Recipe, expand
from unmask.evals.store import CellFolder, changed, complete_cell, known_models, locked, other_results, reuse, save_run
from unmask.models.checkpoint.folder import fingerprint

RUN_CODE = {"humaneval", "mbpp", "list_functions", "code_gaps"}  # tasks whose answers are programs


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands."""

    cell: Cell
    number: int  # of the cell, from 1
    cells: int
    done: int  # items of the cell
    items: int
    share: float  # of the whole run, by expected forward passes
    reused: int  # cells of other runs so far
    status: str  # of the executor; empty: nothing to say


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
) -> Job:
    """Measure the cells of the recipe that the folder lacks; with `fresh`, all of them.

    `load` makes the executor of a model; `on_load` is called with the name of each model before it is loaded, and
    `say` with a line on each file that was found damaged.
    """
    with locked(out), sandbox.allow_unsandboxed() if recipe.allow_unsandboxed else nullcontext():
        if RUN_CODE & set(recipe.tasks):
            sandbox.require()
        about: dict[str, Any] = {"recipe": recipe.name, "table": recipe.table, "title": recipe.title}
        about |= {"command": command, "resolved": json.loads(json.dumps(asdict(recipe))), "versions": versions()}
        about |= {"models": known_models(out), "cells": []}
        job = Job(recipe, out, about, fresh, on_progress, say)
        cells = {model: [] if fresh else job.complete_cells(model) for model in recipe.models}
        left = [model for model in recipe.models if not cells[model]]
        for task in recipe.tasks:
            # The questions of tiny tasks come from code. Data that cannot be read is an error before a model is loaded.
            # Our benchmarks on the hub are read only if there is something to measure.
            if task not in tiny_suite.names() and (left or recipe.data_dir or task not in BENCHMARKS):
                job.questions[task] = records_digest(questions_of(task, recipe.data_dir))
        stale = [
            (each.cell.model, name)
            for found in cells.values()
            for each in found
            for name in changed(each.about, job.digests(each.cell))
        ]
        if stale and left:
            raise other_results(out, stale)
        for model in left:
            on_load(model.name)
            executor = load(model)
            try:
                cells[model] = job.measure_model(model, executor)
            finally:
                executor.close()  # the next model needs the memory of this one
        save_run(out, job.about)
    job.cells = [folder for found in cells.values() for folder in found]
    job.changed = sorted({name for _, name in stale})
    return job


@dataclass(eq=False)
class Job:
    """A recipe at work in its folder, and what came of it."""

    recipe: Recipe
    out: Path
    about: dict[str, Any]  # the content for run.json
    fresh: bool
    on_progress: Callable[[Progress], None]
    say: Callable[[str], None]
    questions: dict[str, str] = field(default_factory=dict)  # task -> digest of its questions
    cells: list[CellFolder] = field(default_factory=list)
    new_cells: int = 0  # how many this call brought to their end; 0 where there was nothing left to do
    new_items: int = 0  # how many it decoded
    reused: Counter[str] = field(default_factory=Counter)  # how many cells of which other run it reused
    changed: list[str] = field(default_factory=list)  # of a run with nothing left to do, what has changed since

    def complete_cells(self, model: Checkpoint) -> list[CellFolder]:
        """The model's cells, if run.json knows the model and every cell is complete; else none."""
        known = self.about["models"].get(model.name)
        if known is None or model.dtype not in (None, known["dtype"]):
            return []
        if (model.device or known["device"]).partition(":")[0] != known["device"]:
            return []
        cells = expand(self.recipe, model, ModelInfo(**known))
        found = [folder for cell in cells if (folder := complete_cell(self.out / "cells" / cell.key))]
        if len(found) < len(cells):
            return []
        self.about["cells"] += [cell.key for cell in cells if cell.key not in self.about["cells"]]
        return found

    def digests(self, cell: Cell) -> dict[str, str]:
        """The digests of what a cell's answers depend on beside the weights."""
        found = {"code": code_digest(type(cell.decoding()[0]))}
        return found | ({"questions": self.questions[cell.task]} if cell.task in self.questions else {})

    def measure_model(self, model: Checkpoint, executor: Executor) -> list[CellFolder]:
        """Measure the model's cells, and return them complete."""
        info = executor.info
        cells = expand(self.recipe, model, info)
        for cell in cells:
            executor.check(*cell.decoding())
        here = {"versions": versions(), "device_name": info.device_name, "threads": info.threads, "warm_up": WARM_UP}
        here["weights"] = fingerprint(model.path, revision=model.revision)
        folders = []
        for cell in cells:
            if self.fresh:
                shutil.rmtree(self.out / "cells" / cell.key, ignore_errors=True)
            about = here | self.digests(cell)
            folders.append(CellFolder.open(self.out, cell, about, self.say))
            if differ := changed(folders[-1].about, about):
                raise other_results(self.out, [(cell.model, name) for name in differ])
        self.about["models"][model.name] = asdict(info)
        self.about["cells"] += [cell.key for cell in cells if cell.key not in self.about["cells"]]
        save_run(self.out, self.about)
        # Every model counts the same, since the cells of a model not loaded yet are unknown.
        models, before = len(self.recipe.models), self.recipe.models.index(model)
        work = [_passes(cell) for cell in cells]
        for at, folder in enumerate(folders):
            for done, items in () if folder.complete else self._measure_cell(executor, folder):
                share = (sum(work[:at]) + work[at] * done / max(1, items)) / sum(work)
                progress = Progress(
                    cell=folder.cell,
                    number=before * len(cells) + at + 1,
                    cells=models * len(cells),
                    done=done,
                    items=items,
                    share=(before + share) / models,
                    reused=self.reused.total(),
                    status=executor.status,
                )
                self.on_progress(progress)
        return folders

    def _measure_cell(self, executor: Executor, folder: CellFolder) -> Iterator[tuple[int, int]]:
        """Take the cell from a run beside this one, which may have finished it meanwhile, or measure it."""
        shared = self.recipe.shared or executor.shared
        if not self.fresh and (name := reuse(folder, shared=shared)):
            self.reused[name] += 1
            return
        if shared:
            folder.note(shared=True)
        cell, before = folder.cell, len(folder.generations)
        tiny = cell.task in tiny_suite.names()
        task = tiny_suite.TinyTask(cell, executor) if tiny else BenchmarkTask(cell, executor, self.recipe.data_dir)
        yield from measure(executor, task, folder)
        self.new_cells += 1
        self.new_items += len(folder.generations) - before


def measure(
    executor: Executor, task: tiny_suite.TinyTask | BenchmarkTask, folder: CellFolder
) -> Iterator[tuple[int, int]]:
    """Answer and score what the cell's folder lacks. Yields the items done and the items in all, after each batch.

    Every batch is on disk before its items are scored.
    """
    asked = {question.id for question in task.questions}
    policy, settings = folder.cell.decoding()
    cut = batches(task.questions, policy=policy, settings=settings, batch_size=folder.cell.batch_size)
    left = [batch for batch in cut if any(question.id not in folder.generations for question in batch.questions)]
    decoded = [row for row in folder.generations.values() if row.id in asked]
    for rows in chain([decoded], executor.map(left)):
        # A kill may have cut a batch short on disk: the items on disk stay as they are.
        folder.add([row for row in rows if row.id not in folder.generations])
        if new := [row for row in rows if row.id not in folder.scores]:
            folder.add_scores(task.score(new))
        yield len(folder.scores.keys() & asked), len(asked)
    folder.finish()


def _passes(cell: Cell) -> float:
    """The passes that an item is likely to take: exact for a fixed number of tokens a pass, else a guess."""
    length, tokens = cell.settings["max_tokens"], cell.policy.get("tokens_per_pass", 8)
    passes = cell.policy.get("passes")
    return passes * length / cell.settings["block_size"] if passes else length / tokens
