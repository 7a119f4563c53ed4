"""Runs the cells of a recipe, one model after the other, into a folder that can be left and taken up at any moment.

    RUN/run.json   the recipe as it was resolved, versions, device, command
    RUN/cells/     see store.py
    RUN/.lock      held while a process works here

What is complete is not done again, be it here or in a run beside this one (see neighbours.py); the model of a complete
part is not even loaded.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from unmask import sandbox
from unmask.engine.decode import check_compatible
from unmask.engine.generator import Generator
from unmask.engine.load import load
from unmask.engine.request import preset_name
from unmask.errors import UnknownName, UnmaskError
from unmask.evals import tiny_suite
from unmask.evals.cell import Cell
from unmask.evals.expand import Facts, decoding_of, expand
from unmask.evals.harness import run_benchmark
from unmask.evals.neighbours import check_weights, take_over
from unmask.evals.recipe import Checkpoint, Recipe
from unmask.evals.run_folder import alone_in, note_model, open_run
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
    taken: int = 0  # cells taken over from other runs so far


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A run that came to its end."""

    folder: Path
    cells: list[CellFolder]
    new_cells: int  # how many this call brought to their end; 0 where there was nothing left to do
    new_items: int  # how many it decoded
    taken: dict[str, int]  # how many cells it took over from which run


def run(
    recipe: Recipe, *, out: Path, command: str = "", on_progress: Callable[[Progress], None] = lambda progress: None
) -> Finished:
    """Do what is missing of the recipe in that folder."""
    with alone_in(out), sandbox.allow_unsandboxed() if recipe.allow_unsandboxed else nullcontext():
        _check_equipment(recipe.tasks)
        about = open_run(recipe, out, command)
        found: list[CellFolder] = []
        tracker = _Tracker(len(recipe.models), on_progress)
        for checkpoint in recipe.models:
            found += _run_model(recipe, checkpoint, out, about, tracker)
            # The next model needs the memory of this one.
            gc.collect()
            torch.cuda.empty_cache()
    return Finished(folder=out, cells=found, new_cells=tracker.ended, new_items=tracker.items, taken=tracker.taken)


def _check_equipment(tasks: tuple[str, ...]) -> None:
    """Say at once what would be missing later, when a large model has been loaded and items decoded."""
    if RUN_CODE & set(tasks):
        sandbox.require()
    if not all(tiny_suite.knows(task) for task in tasks) and find_spec("lm_eval") is None:
        raise UnmaskError("benchmarks need lm-eval, which is missing: pip install 'unmask[eval]'")


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


def _run_model(
    recipe: Recipe, checkpoint: Checkpoint, out: Path, about: dict[str, Any], tracker: _Tracker
) -> list[CellFolder]:
    facts = _remembered(checkpoint, about)
    if facts is not None:
        folders = [_folder(out, cell) for cell in expand(recipe, checkpoint, facts)]
        if all(folder is not None and folder.complete for folder in folders):
            tracker.skip_model(len(folders))
            return [folder for folder in folders if folder is not None]
    llm = load(checkpoint.path, device=checkpoint.device, dtype=checkpoint.dtype, revision=checkpoint.revision)
    facts, weights = facts_of(llm), fingerprint(checkpoint.path, revision=checkpoint.revision)
    cells = expand(recipe, checkpoint, facts)
    check_weights(out, cells, weights)
    for cell in cells:
        policy, settings = decoding_of(cell)
        check_compatible(policy, llm.model, settings)
    note_model(out, about, checkpoint.name, asdict(facts), llm.model.device)
    noted = {key: about[key] for key in ("versions", "device_name")}
    noted |= {"threads": torch.get_num_threads(), "warm_up": WARM_UP, "weights": weights}
    opened = [_open(recipe, out, cell, noted, tracker) for cell in cells]
    tracker.begin_model(opened)
    warm: set[str] = set()
    for number, folder in enumerate(opened):
        if not folder.complete:
            # A run beside this one may have finished it in the meantime.
            opened[number] = _open(recipe, out, folder.cell, noted, tracker)
            if opened[number].complete:
                tracker.skip_cell(folder)
            else:
                _run_cell(recipe, llm, opened[number], tracker, warm)
                tracker.ended += 1
        tracker.next_cell()
    return opened


def _open(recipe: Recipe, out: Path, cell: Cell, noted: dict[str, Any], tracker: _Tracker) -> CellFolder:
    """The cell's folder, with what a run beside this one holds of it."""
    if (name := take_over(out, cell, noted | {"shared": recipe.shared})) is not None:
        tracker.taken[name] = tracker.taken.get(name, 0) + 1
    return CellFolder.open(out, cell, noted)


def _run_cell(recipe: Recipe, llm: Generator, folder: CellFolder, tracker: _Tracker, warm: set[str]) -> None:
    if recipe.shared:
        folder.note(shared=True)
    policy, settings = decoding_of(folder.cell)
    if (name := folder.cell.policy["name"]) not in warm:
        llm.generate("warm-up", policy=policy, settings=settings)
        warm.add(name)
    tracker.begin_cell(folder)

    def on_item(done: int, items: int) -> None:
        tracker.advance(folder.cell, done, items)

    if tiny_suite.knows(folder.cell.task):
        tiny_suite.run_tiny(llm, folder, policy=policy, settings=settings, on_item=on_item)
    else:
        data = None if recipe.data_dir is None else Path(recipe.data_dir)
        run_benchmark(llm, folder, policy=policy, settings=settings, data_dir=data, on_item=on_item)
    folder.finish()


class _Tracker:
    """Turns finished items into a share of the whole work. A model not seen yet is taken to cost what this one does."""

    def __init__(self, models: int, report: Callable[[Progress], None]) -> None:
        self.models, self.report = models, report
        self.number, self.cells = 1, 0
        self.work = self.spent = 0.0
        self.items = self.before = self.ended = 0
        self.taken: dict[str, int] = {}

    def skip_model(self, cells: int) -> None:
        self.models -= 1
        self.cells += cells
        self.number += cells

    def begin_model(self, folders: list[CellFolder]) -> None:
        left = sum(_cost(folder.cell) * max(0, folder.cell.items - len(folder.generations)) for folder in folders)
        self.work = self.spent + left * self.models
        self.cells = self.number - 1 + len(folders) * self.models
        self.models -= 1

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
        self.report(Progress(cell=cell, share=share, taken=sum(self.taken.values()), **numbers))


def _cost(cell: Cell) -> float:
    """Forward passes that an item is likely to take: exact for a fixed number of tokens a pass, else a guess."""
    length, tokens = cell.settings["max_tokens"], cell.policy.get("tokens_per_pass", 8)
    passes = cell.policy.get("passes")
    return passes * length / cell.settings["block_size"] if passes else length / tokens


def facts_of(llm: Generator) -> Facts:
    """What the cells need to know of a loaded model."""
    dtype = str(llm.model.dtype).removeprefix("torch.")
    return Facts(family=llm.spec.convention, preset=preset_name(llm.spec), dtype=dtype, device=llm.model.device.type)


def _remembered(checkpoint: Checkpoint, about: dict[str, Any]) -> Facts | None:
    """What an earlier part of the run knew of the model, if it would be the same here and now."""
    known = about["models"].get(checkpoint.name)
    if known is None or choose_device(checkpoint.device).type != known["device"]:
        return None
    if checkpoint.dtype not in (None, known["dtype"]):
        return None
    return Facts(**known)


def _folder(out: Path, cell: Cell) -> CellFolder | None:
    path = out / "cells" / cell.key
    return CellFolder(path) if (path / "cell.json").exists() else None
