"""How sure a number is: intervals of rates and of ratios of sums, a paired test, and the area under a curve (AUP).

An interval is a pair (low, high) that holds 95 %. Resampling draws items with replacement from a fixed seed: a report
made twice is the same. The functions take numbers; they know neither cells nor files.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, final

import numpy as np

RESAMPLES = 2000
SEED = 0
Z = 1.959963984540054  # two-sided 95 % of the normal distribution
AUP_STEEPNESS = 3.0
AUP_TOLERANCE = 5.0  # points of accuracy that a faster setting may lose against the slowest


@final
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
