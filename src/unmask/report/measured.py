"""Run folders, as `unmask eval` writes them, as numbers: rates and ratios of sums of each cell, with their intervals.

TPS is a ratio of sums, all tokens over all seconds, as the public wrappers print it; never a mean of ratios.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, final

import numpy as np

from unmask.errors import UnmaskError, check_known
from unmask.evals.cell import TABLES, Cell
from unmask.evals.store import CellFolder, cells_of
from unmask.report import statistics
from unmask.report.statistics import Estimate

COUNTS = ("reference", "answer")  # the two ways to count tokens
PARTS = ("model", "policy", "rest")  # of an item's seconds
FIELDS = {"passes": "passes", "reference": "tokens_reference", "answer": "tokens_answer", "truncated": "truncated"}
SUMMED = ("passes", "reference", "answer", "correct", "seconds")
# The order of rows: one token a pass, then policies by age, mean-field last as in the paper. Others follow by name.
POLICIES = ("entropy", "fixed", "margin", "random", "threshold", "factor", "eb")
POLICIES += ("klass", "local_leap", "dawn", "dapd", "wino", "mean_field")
TASKS = ("gsm8k", "math", "math500", "humaneval", "mbpp", "sudoku", "word_problems", "countdown", "list_functions")

Sums = dict[str, Any]  # name -> the sum over all items as measured, then the sum of each resample


@final
@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """A cell with its finished items. An item is finished when it is decoded and scored; items are sorted by id."""

    run: str
    cell: Cell
    about: dict[str, Any] = field(default_factory=dict)
    ids: tuple[int, ...] = ()
    complete: bool = False
    columns: dict[str, Any] = field(default_factory=dict)  # a number per item: FIELDS, PARTS, 'seconds' and 'correct'
    scores: dict[str, Any] = field(default_factory=dict)  # a number per item

    @property
    def done(self) -> int:
        return len(self.ids)

    @property
    def items(self) -> int | str:
        """The number of finished items, with the number asked for where some are missing."""
        return self.done if self.complete else f"{self.done} of {self.cell.items or '?'}"

    @property
    def policy(self) -> str:
        return self.cell.policy["name"]

    @property
    def model(self) -> str:
        return self.cell.model.rstrip("/").rsplit("/", 1)[-1]

    @property
    def timed(self) -> bool:
        """Whether the times mean anything: other work on the device spoils them."""
        return not self.about.get("shared")

    @property
    def own_time(self) -> bool:
        """Whether every item was timed by itself. Items of a batch share its time: resampling them says nothing."""
        return self.cell.batch_size == 1

    @property
    def device(self) -> str:
        return str(self.about.get("device_name") or self.cell.device)

    @property
    def speed_key(self) -> tuple[Any, ...]:
        """What must be equal for two speeds to be comparable within a run."""
        return self.cell.device, self.device, self.cell.dtype, self.cell.batch_size

    def of_items(self, name: str, ids: Sequence[int]) -> Any:
        """A column for these items only."""
        return self.columns[name][np.searchsorted(self.ids, ids)]

    def accuracy(self, score: str | None = None) -> Estimate | None:
        """The mean score in percent: a Wilson interval where every score is right or wrong, else by resampling."""
        scores = self.scores[score or self.cell.headline]
        if not self.done:
            return None
        if not np.isin(scores, (0.0, 1.0)).all():
            return statistics.estimate(100 * statistics.sums(scores[:, None])[:, 0] / self.done)
        low, high = statistics.wilson(int(scores.sum()), self.done)
        return Estimate(value=float(100 * scores.mean()), interval=(100 * low, 100 * high))

    def passes(self) -> Estimate | None:
        """Forward passes per item (NFE)."""
        return self.ratio("passes", "items")

    def ratio(self, above: str, below: str = "", *, over: Measured | None = None) -> Estimate | None:
        """A ratio of sums, perhaps divided by that of another cell on the items that both have finished.

        None where nothing was counted, as in a choice between given answers, and where times cannot be compared.
        """
        cells = [self] if over is None else [self, over]
        of_time = below == "seconds"
        alike = len({(cell.run, cell.speed_key) for cell in cells}) == 1
        if of_time and not (alike and all(cell.timed for cell in cells)):
            return None

        def statistic(*sums: Sums) -> Any:
            rates = [own[above] / (own[below] if below else 1.0) for own in sums]
            return rates[0] if over is None else rates[0] / rates[1]

        found = estimate_of(statistic, *cells) if self.columns[above].any() else None
        return Estimate(value=found.value) if found and of_time and not self.own_time else found


def measured(run: str, folder: CellFolder) -> Measured:
    """The numbers of a cell's folder."""
    cell, scores = folder.cell, folder.scores
    ids = tuple(sorted(folder.generations.keys() & scores.keys()))
    items = [folder.generations[number] for number in ids]
    names = sorted(set.intersection(*(set(scores[number]) for number in ids))) if ids else [cell.headline]
    if cell.headline not in names:
        raise UnmaskError(f"{folder.folder} has items without the score {cell.headline!r} that its table shows")
    by_name = {name: np.array([scores[number][name] for number in ids], float) for name in names}
    columns: dict[str, Any] = {
        name: np.array([getattr(item, of_item) for item in items], float) for name, of_item in FIELDS.items()
    }
    columns |= {part: np.array([item.seconds.get(part, 0.0) for item in items], float) for part in PARTS}
    columns |= {"seconds": sum(columns[part] for part in PARTS), "correct": by_name[cell.headline]}
    complete = folder.complete and len(ids) > 0
    return Measured(run=run, cell=cell, about=folder.about, ids=ids, complete=complete, columns=columns, scores=by_name)


def common_items(cells: Sequence[Measured]) -> tuple[int, ...]:
    """The ids of the items that all of the cells have finished."""
    return tuple(sorted(set.intersection(*(set(cell.ids) for cell in cells))))


def common_sums(cells: Sequence[Measured]) -> list[Sums]:
    """The sums of each cell over the items that all have finished, drawn alike. Empty where they share no item."""
    ids = common_items(cells) if cells else ()
    return [_sums(cell, ids) for cell in cells] if ids else []


@lru_cache(maxsize=1024)
def _sums(cell: Measured, ids: tuple[int, ...]) -> Sums:
    table = np.column_stack([cell.of_items(name, ids) for name in SUMMED])
    return dict(zip(SUMMED, statistics.sums(table).T, strict=True)) | {"items": float(len(table))}


def estimate_of(statistic: Callable[..., Any], *cells: Measured) -> Estimate | None:
    """A statistic of the cells' sums over the items that all of them have finished, with its paired interval."""
    sums = common_sums(cells)
    with np.errstate(divide="ignore", invalid="ignore"):
        return statistics.estimate(statistic(*sums)) if sums else None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """A run folder: which table it is for, and its cells."""

    name: str
    table: str
    title: str | None
    command: str
    cells: list[Measured]


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs at these paths, each once, in the order given. A folder of runs stands for the runs in it."""
    folders = list(dict.fromkeys(folder for path in paths for folder in _run_folders(path.resolve())))
    names = [folder.name for folder in folders]
    # Runs with the same name have that of their parent folder in front.
    runs = [_read(f, f"{f.parent.name}/{f.name}" if names.count(f.name) > 1 else f.name) for f in folders]
    if not any(cell.done for run in runs for cell in run.cells):
        raise UnmaskError(f"no finished items yet in {', '.join(str(folder) for folder in folders)}")
    return runs


def _run_folders(path: Path) -> list[Path]:
    if not path.is_dir():
        raise UnmaskError(f"no run at {path}: not a folder")
    inside = [path] if (path / "cells").is_dir() else sorted(cells.parent for cells in path.glob("*/cells/"))
    if not inside:
        raise UnmaskError(f"{path} is not a run: it has no folder 'cells', as `unmask eval --out {path.name}` makes it")
    return inside


def _read(folder: Path, name: str) -> Run:
    path = folder / "run.json"
    try:
        about = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        # A recipe that grew in its folder leaves the cells of a smaller one behind.
        wanted = about.get("cells")
        cells = [measured(name, found) for found in cells_of(folder) if not wanted or found.folder.name in wanted]
    except UnmaskError:
        raise
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UnmaskError(f"cannot read the run {folder}: {error}") from error
    table, command = about.get("table") or "main", str(about.get("command") or "")
    check_known(f"table in {path}", [table], TABLES)
    return Run(name=name, table=table, title=about.get("title"), command=command, cells=sorted(cells, key=_order))


def _order(cell: Measured) -> tuple[Any, ...]:
    asked = cell.cell
    rank = POLICIES.index(cell.policy) if cell.policy in POLICIES else len(POLICIES)
    task = next((at for at, name in enumerate(TASKS) if asked.task.startswith(name)), len(TASKS))
    values = [*asked.policy.values(), asked.settings.get("block_size")]
    numbers = [float(value) if isinstance(value, int | float) else 0.0 for value in values]
    return asked.model, task, asked.task, rank, cell.policy, numbers
