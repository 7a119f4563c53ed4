"""Runs the cells of a recipe, one model after the other, into a folder that can be left and taken up at any moment.

    RUN/run.json   the recipe as it was resolved, versions, device, command, the keys of its cells
    RUN/cells/     see store.py
    RUN/.lock      held while a process works here

What is complete is not done again, be it here or in a run beside this one (see neighbours.py); the model of a complete
part is not even loaded. A recipe may grow in its folder: run.json says which of the cells it has now.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from unmask import sandbox
from unmask.engine.generator import Generator
from unmask.engine.load import load
from unmask.engine.request import check_compatible, preset_name
from unmask.errors import UnknownName, UnmaskError
from unmask.evals import tiny_suite
from unmask.evals.cell import Cell, ModelInfo
from unmask.evals.expand import expand
from unmask.evals.harness import BENCHMARKS, check_task, questions_digest, run_benchmark
from unmask.evals.neighbours import WAYS_OUT, begin_with_fewer, check_origins, discard, take_over
from unmask.evals.origins import code_digest
from unmask.evals.recipe import Checkpoint, Recipe
from unmask.evals.run_folder import alone_in, note_cells, note_model, open_run, save_run, versions
from unmask.evals.store import CellFolder
from unmask.models.device import choose_device
from unmask.models.fingerprint import fingerprint

WARM_UP = "one generation before the first item of each model and policy, not timed"

RUN_CODE = {"humaneval", "mbpp", "list_functions"}  # tasks whose answers are programs


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands."""

    cell: Cell
    number: int  # of the cell, from 1
    cells: int
    done: int  # items of the cell
    items: int
    share: float  # of the work that was left when the run began, by expected forward passes
    beside: tuple[Cell, ...]  # all cells of its model, from which a label tells it
    taken: int = 0  # cells taken over from other runs so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A run that came to its end."""

    folder: Path
    cells: list[CellFolder]
    new_cells: int  # how many this call brought to their end; 0 where there was nothing left to do
    new_items: int  # how many it decoded
    taken: dict[str, int]  # how many cells it took over from which run
    changed: tuple[str, ...] = ()  # of a run with nothing left to do, what is no longer as it was: code, questions


def run(
    recipe: Recipe,
    *,
    out: Path,
    command: str = "",
    fresh: bool = False,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    on_load: Callable[[str], None] = lambda model: None,
) -> Finished:
    """Do what is missing of the recipe in that folder; `fresh`: all of it, whatever the folder holds of it.

    `on_load` hears the name of every model that has to be loaded.
    """
    with alone_in(out), sandbox.allow_unsandboxed() if recipe.allow_unsandboxed else nullcontext():
        _check_equipment(recipe.tasks)
        about = open_run(recipe, out, command)
        job = _Job(recipe, out, about, fresh=fresh)
        complete = [None if fresh else job.complete_cells(checkpoint) for checkpoint in recipe.models]
        changed = job.changed_since([folder for folders in complete for folder in folders or ()])
        if changed and None in complete:
            raise UnmaskError(f"{out} holds results with other {' and '.join(changed)}; {WAYS_OUT}")
        found: list[CellFolder] = []
        tracker = _Tracker(len(recipe.models), on_progress)
        for checkpoint, folders in zip(recipe.models, complete, strict=True):
            if folders is not None:
                tracker.skip_model(len(folders))
                found += folders
                continue
            job.read_questions()
            on_load(checkpoint.name)
            found += _run_model(job, checkpoint, tracker)
            # The next model needs the memory of this one.
            gc.collect()
            torch.cuda.empty_cache()
        save_run(out, about)
    counts = {"new_cells": tracker.ended, "new_items": tracker.items}
    return Finished(folder=out, cells=found, taken=tracker.taken, changed=changed, **counts)


def _check_equipment(tasks: tuple[str, ...]) -> None:
    """Say at once what would be missing later, when a large model has been loaded and items decoded."""
    if RUN_CODE & set(tasks):
        sandbox.require()
    benchmarks = [task for task in tasks if not tiny_suite.knows(task)]
    if benchmarks and find_spec("lm_eval") is None:
        raise UnmaskError("benchmarks need lm-eval, which is missing: pip install 'unmask[eval]'")
    for task in benchmarks:
        check_task(task)


def backend_named(name: str) -> Callable[..., Finished]:
    """What runs a recipe: `run`, or a function of the same arguments that a package offers as an entry point."""
    if name == "local":
        return run
    found = {point.name: point for point in entry_points(group="unmask.backends")}
    if name not in found:
        raise UnknownName("backend", name, ["local", *found], listed_as="installed")
    try:
        return found[name].load()
    except Exception as error:
        raise UnmaskError(f"the plug-in {found[name].value!r} for backend {name!r} failed: {error}") from error


class _Job:
    """A recipe at work in a folder, and what is noted of every cell."""

    def __init__(self, recipe: Recipe, out: Path, about: dict[str, Any], *, fresh: bool) -> None:
        self.recipe, self.out, self.about, self.fresh = recipe, out, about, fresh
        self.data = None if recipe.data_dir is None else Path(recipe.data_dir)
        self._questions: dict[str, str] = {}

    def complete_cells(self, checkpoint: Checkpoint) -> list[CellFolder] | None:
        """The model's cells, if an earlier part of the run knew them and left nothing to do."""
        info = _remembered(checkpoint, self.about)
        if info is None:
            return None
        cells = expand(self.recipe, checkpoint, info)
        note_cells(self.about, [cell.key for cell in cells])
        folders = [_folder(self.out, cell) for cell in cells]
        complete = [folder for folder in folders if folder is not None and folder.complete]
        return complete if len(complete) == len(folders) else None

    def changed_since(self, folders: Iterable[CellFolder]) -> tuple[str, ...]:
        """What was noted of these cells and would be noted otherwise now, as far as that costs next to nothing."""
        changed = set()
        for folder in folders:
            if folder.about.get("code", now := code_digest(folder.cell.decoding()[0])) != now:
                changed.add("code")
            hub = self.data is None and folder.cell.task in BENCHMARKS
            if not hub and folder.about.get("questions", now := self.questions(folder.cell.task)) != now:
                changed.add("questions")
        return tuple(sorted(changed))

    def questions(self, task: str) -> str | None:
        """The digest of a benchmark's records; the items of a tiny task come from code."""
        if tiny_suite.knows(task):
            return None
        if task not in self._questions:
            self._questions[task] = questions_digest(task, self.data)
        return self._questions[task]

    def read_questions(self) -> None:
        """Before a model is loaded: what cannot be read is told at once."""
        for task in self.recipe.tasks:
            self.questions(task)

    def noted(self, cell: Cell, weights: str) -> dict[str, Any]:
        """The circumstances under which the cell would be measured now."""
        about = {"versions": versions((cell.task,)), "device_name": self.about["device_name"]}
        about |= {"threads": torch.get_num_threads(), "warm_up": WARM_UP, "weights": weights}
        about["code"] = code_digest(cell.decoding()[0])
        return about if tiny_suite.knows(cell.task) else about | {"questions": self.questions(cell.task)}

    def open(self, cell: Cell, noted: dict[str, Any], tracker: _Tracker) -> CellFolder:
        """The cell's folder, with what a run beside this one, or this one with a lower limit, holds of it."""
        if not self.fresh:
            here = noted | {"shared": self.recipe.shared}
            if (name := take_over(self.out, cell, here)) is not None:
                tracker.taken[name] = tracker.taken.get(name, 0) + 1
            begin_with_fewer(self.out, cell, here)
        return CellFolder.open(self.out, cell, noted)


def _run_model(job: _Job, checkpoint: Checkpoint, tracker: _Tracker) -> list[CellFolder]:
    llm = load(
        checkpoint.path,
        device=checkpoint.device,
        dtype=checkpoint.dtype,
        quantize=checkpoint.quantize,
        revision=checkpoint.revision,
    )
    info, weights = info_of(llm), fingerprint(checkpoint.path, revision=checkpoint.revision)
    cells = expand(job.recipe, checkpoint, info)
    for cell in cells:
        policy, settings = cell.decoding()
        check_compatible(policy, llm.model, settings)
    note_model(job.about, checkpoint.name, asdict(info), llm.model.device)
    noted = {cell.key: job.noted(cell, weights) for cell in cells}
    if job.fresh:
        discard(job.out, cells)
    check_origins(job.out, [(cell, noted[cell.key]) for cell in cells])
    note_cells(job.about, noted)
    save_run(job.out, job.about)
    opened = [job.open(cell, noted[cell.key], tracker) for cell in cells]
    tracker.begin_model(opened)
    warm: set[str] = set()
    for number, folder in enumerate(opened):
        if not folder.complete:
            # A run beside this one may have finished it in the meantime.
            opened[number] = job.open(folder.cell, noted[folder.cell.key], tracker)
            if opened[number].complete:
                tracker.skip_cell(folder)
            else:
                _run_cell(job, llm, opened[number], tracker, warm)
                tracker.ended += 1
        tracker.next_cell()
    return opened


def _run_cell(job: _Job, llm: Generator, folder: CellFolder, tracker: _Tracker, warm: set[str]) -> None:
    if job.recipe.shared:
        folder.note(shared=True)
    policy, settings = folder.cell.decoding()
    if (name := folder.cell.policy["name"]) not in warm:
        llm.generate("warm-up", policy=policy, settings=settings)
        warm.add(name)
    tracker.begin_cell(folder)

    def on_item(done: int, items: int) -> None:
        tracker.advance(folder.cell, done, items)

    if tiny_suite.knows(folder.cell.task):
        tiny_suite.run_tiny(llm, folder, policy=policy, settings=settings, on_item=on_item)
    else:
        run_benchmark(llm, folder, policy=policy, settings=settings, data_dir=job.data, on_item=on_item)
    folder.finish()


class _Tracker:
    """Turns finished items into a share of the whole work. A model not seen yet is taken to cost what this one does."""

    def __init__(self, models: int, report: Callable[[Progress], None]) -> None:
        self.models, self.report = models, report
        self.number, self.cells = 1, 0
        self.work = self.spent = 0.0
        self.items = self.before = self.ended = 0
        self.taken: dict[str, int] = {}
        self.beside: tuple[Cell, ...] = ()

    def skip_model(self, cells: int) -> None:
        self.models -= 1
        self.cells += cells
        self.number += cells

    def begin_model(self, folders: list[CellFolder]) -> None:
        left = sum(_cost(folder.cell) * max(0, folder.cell.items - len(folder.generations)) for folder in folders)
        self.work = self.spent + left * self.models
        self.cells = self.number - 1 + len(folders) * self.models
        self.models -= 1
        self.beside = tuple(folder.cell for folder in folders)

    def skip_cell(self, folder: CellFolder) -> None:
        self.spent += _cost(folder.cell) * max(0, folder.cell.items - len(folder.generations))

    def begin_cell(self, folder: CellFolder) -> None:
        self.before = len(folder.generations)
        self._tell(folder.cell, self.before, folder.cell.items)

    def advance(self, cell: Cell, done: int, items: int) -> None:
        self.items += done - self.before
        self.spent += _cost(cell) * (done - self.before)
        self.before = done
        self._tell(cell, done, items)

    def next_cell(self) -> None:
        self.number += 1

    def _tell(self, cell: Cell, done: int, items: int) -> None:
        share = min(1.0, self.spent / self.work) if self.work else 1.0
        numbers = {"number": self.number, "cells": self.cells, "done": done, "items": items}
        taken = sum(self.taken.values())
        self.report(Progress(cell=cell, share=share, beside=self.beside, taken=taken, **numbers))


def _cost(cell: Cell) -> float:
    """Forward passes that an item is likely to take: exact for a fixed number of tokens a pass, else a guess."""
    length, tokens = cell.settings["max_tokens"], cell.policy.get("tokens_per_pass", 8)
    passes = cell.policy.get("passes")
    return passes * length / cell.settings["block_size"] if passes else length / tokens


def info_of(llm: Generator) -> ModelInfo:
    """What the cells need to know of a loaded model."""
    spec = llm.spec
    return ModelInfo(
        family=spec.convention,
        preset=preset_name(spec),
        dtype=str(llm.model.dtype).removeprefix("torch."),
        device=llm.model.device.type,
        max_tokens=spec.max_tokens,
        block_size=spec.block_size,
    )


def _remembered(checkpoint: Checkpoint, about: dict[str, Any]) -> ModelInfo | None:
    """What an earlier part of the run knew of the model, if it would be the same here and now."""
    known = about["models"].get(checkpoint.name)
    if known is None or choose_device(checkpoint.device).type != known["device"]:
        return None
    if checkpoint.dtype not in (None, known["dtype"]):
        return None
    return ModelInfo(**known)


def _folder(out: Path, cell: Cell) -> CellFolder | None:
    path = out / "cells" / cell.key
    return CellFolder(path) if (path / "cell.json").exists() else None
