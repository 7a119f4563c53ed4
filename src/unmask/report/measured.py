"""A cell as numbers, and how sure they are: intervals of rates and of ratios of sums, a paired test, the area AUP.

TPS is a ratio of sums, all tokens over all seconds, as the public wrappers print it; never a mean of ratios. An
interval is a pair (low, high) that holds 95 %. Resampling draws items with replacement from a fixed seed: a report made
twice is the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from unmask.errors import UnmaskError
from unmask.evals.store import CellFolder

RESAMPLES = 2000
SEED = 0
Z = 1.959963984540054  # two-sided 95 % of the normal distribution
AUP_STEEPNESS = 3.0
AUP_TOLERANCE = 5.0  # points of accuracy that a faster setting may lose against the slowest
COUNTS = ("reference", "answer")  # the two ways to count tokens
PARTS = ("model", "policy", "rest")  # of an item's seconds
FIELDS = {"passes": "passes", "reference": "tokens_reference", "answer": "tokens_answer", "truncated": "truncated"}
SUMMED = ("passes", "reference", "answer", "correct", "seconds")
Sums = dict[str, Any]  # name -> the sum over all items as measured, then the sum of each resample


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number and its 95 % interval; None where there is no interval (a count, a single item)."""

    value: float
    interval: tuple[float, float] | None = None

    @property
    def beyond_chance(self) -> bool:
        """Whether the interval leaves out zero. Exactly zero on every item is beyond chance as well."""
        low, high = self.interval or (-1.0, 1.0)
        return low > 0 or high < 0 or low == high == self.value

    def to_dict(self) -> dict[str, float | None]:
        low, high = self.interval or (None, None)
        return {"value": self.value, "low": low, "high": high}


def wilson(successes: float | int, n: int) -> tuple[float, float]:
    """The interval of a rate, as fractions of one."""
    rate, scale = successes / n, 1 + Z**2 / n
    middle = (rate + Z**2 / (2 * n)) / scale
    half = Z * math.sqrt(rate * (1 - rate) / n + Z**2 / (4 * n**2)) / scale
    # The ends are exact where nothing or everything succeeds; rounding must not step over them.
    return (0.0 if successes == 0 else middle - half), (1.0 if successes == n else middle + half)


def sums(columns: Any) -> Any:
    """Sums over the items of a table (items, columns): row 0 as measured, then one row for each resample.

    The draws depend on the number of items alone. Two tables of the same items in the same order are drawn alike, so a
    statistic of the sums of both is a paired comparison.
    """
    columns = np.asarray(columns, dtype=np.float64)
    return np.vstack([columns.sum(0), _draws(len(columns)) @ columns])


def estimate(values: Any) -> Estimate | None:
    """The first value, with the interval of the others: one value for each row of `sums`. None if it is not finite."""
    values = np.asarray(values)
    if not np.isfinite(values[0]):
        return None
    resampled = values[1:][np.isfinite(values[1:])]
    low, high = np.percentile(resampled, [2.5, 97.5]) if len(resampled) else (0.0, 0.0)
    return Estimate(value=float(values[0]), interval=(float(low), float(high)) if len(resampled) else None)


class Paired(NamedTuple):
    """A cell and its baseline: items that only one of them solves, and how likely such a split is by chance."""

    only_this: int
    only_baseline: int
    p: float


def mcnemar(correct: Any, baseline: Any) -> Paired:
    """The exact two-sided test of McNemar: between equal policies each disagreement falls either way like a coin."""
    ours, theirs = np.asarray(correct, dtype=bool), np.asarray(baseline, dtype=bool)
    won, lost = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    # Whole numbers up to the last division: the probabilities of 5,000 coins are below what a float can hold.
    ways = sum(math.comb(won + lost, k) for k in range(min(won, lost) + 1))
    return Paired(won, lost, p=min(1.0, 2 * ways / 2 ** (won + lost)))


def holm(p_values: Sequence[float]) -> list[float]:
    """The same p-values, corrected for their number by Holm's step-down method."""
    p = np.asarray(p_values, dtype=np.float64)
    order, corrected = np.argsort(p, kind="stable"), np.empty_like(p)
    corrected[order] = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)).clip(max=1.0)
    return corrected.tolist()


def aup(speed: Any, accuracy: Any, best: Any) -> tuple[Any, Any]:
    """Accuracy under parallelism of many curves at once (curves, points), and which of their points count.

    Speed is in tokens per pass, accuracy in percent; `best` (curves,) is the best accuracy of any method compared on
    the task. The slowest point counts in full. From there on, the area under the accuracy counts, weighted by how near
    to the best it is. A point that loses more than five points of accuracy against the slowest does not count.
    """
    # Of two equally slow points the better one is the slowest: the result must not depend on their order.
    order = np.lexsort((-accuracy, speed), axis=-1)
    slowest = np.take_along_axis(accuracy, order[:, :1], -1)
    # Half a billionth of a point forgives the rounding of a loss of exactly five.
    kept = accuracy >= slowest - AUP_TOLERANCE - 5e-10
    share = np.divide(accuracy, best[:, None], out=np.ones_like(accuracy), where=best[:, None] > 0)
    height = accuracy * np.minimum(np.exp(-AUP_STEEPNESS * (1 - share)), 1.0)
    # A point that does not count repeats the one before it, and so adds a strip without width.
    counting = np.where(np.take_along_axis(kept, order, -1), np.arange(order.shape[1]), 0)
    order = np.take_along_axis(order, np.maximum.accumulate(counting, -1), -1)
    speed, height = np.take_along_axis(speed, order, -1), np.take_along_axis(height, order, -1)
    strips = 0.5 * np.diff(speed) * (height[:, 1:] + height[:, :-1])
    return np.concatenate([speed[:, :1] * slowest, strips], -1).sum(-1), kept


@lru_cache(maxsize=2)
def _draws(items: int) -> Any:
    """How often each item is drawn in each resample, (resamples, items)."""
    chosen = np.random.default_rng(SEED).integers(items, size=(RESAMPLES, items))
    flat = (chosen + items * np.arange(RESAMPLES)[:, None]).ravel()
    return np.bincount(flat, minlength=RESAMPLES * items).reshape(RESAMPLES, items).astype(np.float64)


class Measured:
    """A cell with its finished items. An item is finished when it is decoded and scored; items are sorted by id."""

    def __init__(self, run: str, folder: CellFolder) -> None:
        self.run, self.cell, self.about = run, folder.cell, folder.about
        self.ids = tuple(sorted(folder.generations.keys() & folder.scores.keys()))
        self.done = len(self.ids)
        self.complete = folder.complete and self.done > 0
        # The number of finished items, with the number asked for where some are missing.
        self.items = self.done if self.complete else f"{self.done} of {self.cell.items or '?'}"
        self.policy: str = self.cell.policy["name"]
        self.model = self.cell.model.rstrip("/").rsplit("/", 1)[-1]
        self.device = str(self.about.get("device_name") or self.cell.device)
        self.timed = not self.about.get("shared")  # other work on the device spoils times
        self.own_time = self.cell.batch_size == 1  # items of a batch share its time: resampling them says nothing
        # What must be equal for two speeds to be comparable within a run.
        self.speed_key = self.cell.device, self.device, self.cell.dtype, self.cell.batch_size
        items = [folder.generations[number] for number in self.ids]
        scores = [folder.scores[number] for number in self.ids]
        names = sorted(set.intersection(*map(set, scores))) if scores else [self.cell.headline]
        if self.cell.headline not in names:
            raise UnmaskError(f"{folder.folder} has items without the score {self.cell.headline!r} of its table")
        # A number per item: the scores by name; FIELDS, PARTS, 'seconds' and 'correct'.
        self.scores: dict[str, Any] = {name: np.array([found[name] for found in scores], float) for name in names}
        columns = {name: [getattr(item, of_item) for item in items] for name, of_item in FIELDS.items()}
        columns |= {part: [item.seconds.get(part, 0.0) for item in items] for part in PARTS}
        self.columns: dict[str, Any] = {name: np.array(column, float) for name, column in columns.items()}
        self.columns["seconds"] = sum(self.columns[part] for part in PARTS)
        self.columns["correct"] = self.scores[self.cell.headline]

    def of_items(self, name: str, ids: Sequence[int]) -> Any:
        """A column for these items only."""
        return self.columns[name][np.searchsorted(self.ids, ids)]

    def accuracy(self, score: str | None = None) -> Estimate | None:
        """The mean score in percent: a Wilson interval where every score is right or wrong, else by resampling."""
        scores = self.scores[score or self.cell.headline]
        if not self.done:
            return None
        if not np.isin(scores, (0.0, 1.0)).all():
            return estimate(100 * sums(scores[:, None])[:, 0] / self.done)
        low, high = wilson(int(scores.sum()), self.done)
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
    return dict(zip(SUMMED, sums(table).T, strict=True)) | {"items": float(len(table))}


def estimate_of(statistic: Callable[..., Any], *cells: Measured) -> Estimate | None:
    """A statistic of the cells' sums over the items that all of them have finished, with its paired interval."""
    sums = common_sums(cells)
    with np.errstate(divide="ignore", invalid="ignore"):
        return estimate(statistic(*sums)) if sums else None
