"""How sure a number is: intervals for rates and for ratios of sums, a paired test, and the area under a curve (AUP).

An interval is a pair (low, high) that holds 95 % unless told otherwise. Resampling draws items with replacement, from a
fixed seed, so that a report made twice is the same report. Knows numbers only: nothing of cells or files.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

Interval = tuple[float, float]
Number = int | float

RESAMPLES = 2000
SEED = 0
_Z = 1.959963984540054  # two-sided 95 % of the normal distribution

AUP_STEEPNESS = 3.0
AUP_TOLERANCE = 5.0  # points of accuracy that a faster setting may lose against the slowest


def wilson(successes: Number, n: int) -> Interval:
    """The interval of a rate, as fractions of one; nothing is known of a rate without items."""
    if n == 0:
        return 0.0, 1.0
    rate, scale = successes / n, 1 + _Z**2 / n
    middle = (rate + _Z**2 / (2 * n)) / scale
    half = _Z * math.sqrt(rate * (1 - rate) / n + _Z**2 / (4 * n**2)) / scale
    # The ends are exact where nothing or everything succeeds; rounding must not step over them.
    return (0.0 if successes == 0 else middle - half), (1.0 if successes == n else middle + half)


def resampled_sums(columns: Any) -> Any:
    """Sums over items drawn with replacement, (resamples, columns), of a table with a row per item.

    The draws depend on the number of items alone. So two tables of the same items in the same order are drawn alike,
    and what is computed from the sums of both is a paired comparison.
    """
    columns = np.asarray(columns, dtype=np.float64)
    return _draws(len(columns), RESAMPLES, SEED) @ columns


def interval_of(values: Any) -> Interval | None:
    """What holds 95 % of the resampled values; None where there is no value at all."""
    values = np.asarray(values)
    values = values[np.isfinite(values)]
    if len(values) == 0:
        return None
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def bootstrap(columns: Any, statistic: Callable[[Any], Any]) -> Interval | None:
    """The interval of a statistic that maps sums (resamples, columns) to values (resamples,), e.g. a ratio of sums."""
    if len(columns) == 0:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        return interval_of(statistic(resampled_sums(columns)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """Two policies on the same items: how often only one was right, and how likely such a split is by chance."""

    only_first: int
    only_second: int
    p: float


def mcnemar(first: Sequence[bool], second: Sequence[bool]) -> Paired:
    """The exact two-sided test of McNemar: under equal policies each disagreement falls either way like a coin."""
    pairs = list(zip(first, second, strict=True))
    only_first = sum(bool(a) and not b for a, b in pairs)
    only_second = sum(bool(b) and not a for a, b in pairs)
    n, fewer = only_first + only_second, min(only_first, only_second)
    ways, total = 1, 0
    for k in range(fewer + 1):
        total += ways
        ways = ways * (n - k) // (k + 1)
    # Whole numbers up to the last division: the probabilities of 5,000 coins are below what a float can hold.
    return Paired(only_first=only_first, only_second=only_second, p=min(1.0, 2 * total / 2**n))


def holm(p_values: Sequence[float]) -> list[float]:
    """The same p-values, raised for having been looked for so many times (Holm's step-down method)."""
    found, worst = [0.0] * len(p_values), 0.0
    for rank, at in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        worst = max(worst, min(1.0, (len(p_values) - rank) * p_values[at]))
        found[at] = worst
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Aup:
    """The area, and which of the points given (by their number) were too far below the slowest to count."""

    value: float
    dropped: tuple[int, ...] = ()


def aup(points: Sequence[tuple[Number, Number]], best: Number) -> Aup:
    """Accuracy under parallelism of (tokens per pass, accuracy in percent) points.

    `best` is the best accuracy of any method compared on that task. The slowest point counts in full; from there on the
    area under the accuracy, weighted by how near to the best it is. A point that loses more than five points of
    accuracy against the slowest is left out.
    """
    if not points:
        raise ValueError("AUP needs at least one point")
    speed, accuracy = np.asarray(points, dtype=np.float64).T
    value, kept = _aup(speed[None], accuracy[None], np.asarray([best]))
    return Aup(value=float(value[0]), dropped=tuple(np.flatnonzero(~kept[0]).tolist()))


def aup_intervals(curves: Sequence[Sequence[tuple[Any, Any, Any]]]) -> list[Interval | None]:
    """Intervals of the AUP of all curves of one task, on items that all of them share.

    A point of a curve is (tokens, passes, score), arrays over the same items in the same order. Every resample is a
    table of its own: the best accuracy is found again, and so are the points that fall out.
    """
    flat = [column for curve in curves for point in curve for column in point]
    if not flat or len(flat[0]) == 0:
        return [None] * len(curves)
    items = len(flat[0])
    sums = resampled_sums(np.column_stack(flat))
    with np.errstate(divide="ignore", invalid="ignore"):
        speed, accuracy = sums[:, 0::3] / sums[:, 1::3], 100 * sums[:, 2::3] / items
    best, found, first = accuracy.max(1), [], 0
    for curve in curves:
        span = slice(first, first + len(curve))
        first += len(curve)
        value, _ = _aup(speed[:, span], accuracy[:, span], best)
        found.append(interval_of(value))
    return found


def _aup(speed: Any, accuracy: Any, best: Any) -> tuple[Any, Any]:
    """The areas of many curves (curves, points), and which points were kept, in the order given."""
    # Of two equally slow points the better one is the slowest: what falls out must not depend on their order.
    order = np.lexsort((-accuracy, speed), axis=-1)
    speed, accuracy = np.take_along_axis(speed, order, -1), np.take_along_axis(accuracy, order, -1)
    # Half a billionth of a point forgives the rounding of a loss of exactly five.
    kept = accuracy >= accuracy[:, :1] - AUP_TOLERANCE - 5e-10
    share = np.divide(accuracy, best[:, None], out=np.ones_like(accuracy), where=best[:, None] > 0)
    weighted = accuracy * np.minimum(np.exp(-AUP_STEEPNESS * (1 - share)), 1.0)
    area, last_speed, last = speed[:, 0] * accuracy[:, 0], speed[:, 0], weighted[:, 0]
    for i in range(1, speed.shape[1]):
        strip = 0.5 * (speed[:, i] - last_speed) * (weighted[:, i] + last)
        area = np.where(kept[:, i], area + strip, area)
        last_speed, last = np.where(kept[:, i], speed[:, i], last_speed), np.where(kept[:, i], weighted[:, i], last)
    where_given = np.zeros_like(kept)
    np.put_along_axis(where_given, order, kept, -1)
    return area, where_given


@lru_cache(maxsize=2)
def _draws(items: int, resamples: int, seed: int) -> Any:
    """How often each item is drawn in each resample, (resamples, items)."""
    chosen = np.random.default_rng(seed).integers(items, size=(resamples, items))
    flat = (chosen + items * np.arange(resamples)[:, None]).ravel()
    return np.bincount(flat, minlength=resamples * items).reshape(resamples, items).astype(np.float64)
