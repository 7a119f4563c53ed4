"""A cell's result as numbers: rates, ratios of sums and their intervals, and what it is compared with.

TPS is a ratio of sums, all tokens over all seconds, as the public wrappers print it; never a mean of ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from unmask.errors import UnmaskError
from unmask.evals import statistics
from unmask.evals.cell import Cell
from unmask.evals.statistics import Interval, Paired
from unmask.evals.store import CellFolder

COUNTS = ("reference", "answer")
PARTS = ("model", "policy", "rest")
BASELINES = ("entropy", "fixed")
_SHARED_BY_BASELINE = ("cache", "early_stop", "block_size")


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A number and its 95 % interval, None where there is none (a count, a single item)."""

    value: float
    interval: Interval | None = None

    def to_dict(self) -> dict[str, float | None]:
        low, high = self.interval or (None, None)
        return {"value": self.value, "low": low, "high": high}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Totals over items by name ('items', 'correct', 'passes', 'reference', 'answer', 'seconds'), and as resampled."""

    observed: dict[str, Any]
    resampled: dict[str, Any]


def estimate_of(statistic: Callable[..., Any], *sums: Sums) -> Estimate | None:
    """A statistic of totals with its interval; paired where several cells are asked, see `together`."""
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(*(each.observed for each in sums)))
        if not np.isfinite(value):
            return None
        return Estimate(value=value, interval=statistics.interval_of(statistic(*(each.resampled for each in sums))))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measured:
    """One cell with its finished items (those decoded and scored), a column of numbers for each thing counted."""

    run: str
    cell: Cell
    about: dict[str, Any]
    ids: tuple[int, ...]
    complete: bool
    columns: dict[str, Any]  # 'passes', 'reference', 'answer', 'model', 'policy', 'rest', 'truncated'
    scores: dict[str, Any]
    known: list[Sums] = field(default_factory=list, repr=False)  # resampled once, asked many times

    @property
    def done(self) -> int:
        return len(self.ids)

    @property
    def policy(self) -> str:
        return self.cell.policy["name"]

    @property
    def model(self) -> str:
        return self.cell.model.rstrip("/").rsplit("/", 1)[-1]

    @property
    def timed(self) -> bool:
        """Whether its times mean anything: not where other work used the device meanwhile."""
        return not self.about.get("shared")

    @property
    def own_time(self) -> bool:
        """Whether every item was timed by itself: those of a batch share its time, and resampling them says nothing."""
        return self.cell.batch_size == 1

    @property
    def speed_key(self) -> tuple[Any, ...]:
        """What must be equal for two speeds to be comparable."""
        return self.cell.device, str(self.about.get("device_name")), self.cell.dtype, self.cell.batch_size

    @property
    def correct(self) -> Any:
        return self.scores[self.cell.headline]

    @property
    def seconds(self) -> Any:
        return sum(self.columns[part] for part in PARTS)

    def sums(self) -> Sums:
        if not self.known:
            self.known.append(_sums(self, slice(None)))
        return self.known[0]

    def accuracy(self, variant: str | None = None) -> Estimate | None:
        """The mean score in percent: a Wilson interval where every score is right or wrong, else by resampling."""
        scores = self.scores.get(variant or self.cell.headline)
        if scores is None or not self.done:
            return None
        if np.isin(scores, (0.0, 1.0)).all():
            low, high = statistics.wilson(int(scores.sum()), self.done)
            return Estimate(value=float(100 * scores.mean()), interval=(100 * low, 100 * high))
        interval = statistics.bootstrap(scores[:, None], lambda sums: 100 * sums[:, 0] / self.done)
        return Estimate(value=float(100 * scores.mean()), interval=interval)

    def passes(self) -> Estimate | None:
        """Forward passes per item (NFE)."""
        return self._ratio("passes", "items")

    def tokens_per_second(self, count: str = "reference") -> Estimate | None:
        return _of_time(self._ratio(count, "seconds"), self) if self.timed else None

    def tokens_per_pass(self, count: str = "reference") -> Estimate | None:
        return self._ratio(count, "passes")

    def _ratio(self, numerator: str, denominator: str) -> Estimate | None:
        """A ratio of sums; None where there is nothing to count, as in a choice between given answers."""
        if not self.done or not self.sums().observed[numerator]:
            return None
        return estimate_of(lambda sums: sums[numerator] / sums[denominator], self.sums())

    def seconds_per_item(self, part: str | None = None) -> float | None:
        seconds = self.seconds if part is None else self.columns[part]
        return float(seconds.mean()) if self.done and self.timed else None

    def to_dict(self) -> dict[str, Any]:
        """Every number of the cell, as plain data."""
        plain = {"run": self.run, "cell": self.cell.to_dict(), "done": self.done, "complete": self.complete}
        plain["device_name"] = self.about.get("device_name")
        plain["accuracy"] = {name: _plain(self.accuracy(name)) for name in self.scores}
        plain["passes"] = _plain(self.passes())
        for count in COUNTS:
            plain[f"tokens_{count}"] = int(self.columns[count].sum())
            plain[f"tokens_per_second_{count}"] = _plain(self.tokens_per_second(count))
            plain[f"tokens_per_pass_{count}"] = _plain(self.tokens_per_pass(count))
        plain["shared"] = not self.timed
        plain["seconds"] = {part: float(self.columns[part].sum()) for part in PARTS} if self.timed else None
        plain["truncated"] = int(self.columns["truncated"].sum())
        return plain


def measured(run: str, folder: CellFolder) -> Measured:
    """Keep what is both decoded and scored, in the order of the items."""
    cell, generations, scores = folder.cell, folder.generations, folder.scores
    ids = tuple(sorted(generations.keys() & scores.keys()))
    rows = [generations[number] for number in ids]
    columns = {
        "passes": _column(row.passes for row in rows),
        "reference": _column(row.tokens_reference for row in rows),
        "answer": _column(row.tokens_answer for row in rows),
        "truncated": _column(row.truncated for row in rows),
    }
    columns |= {part: _column(row.seconds.get(part, 0.0) for row in rows) for part in PARTS}
    names = sorted(set.intersection(*(set(scores[number]) for number in ids))) if ids else [cell.headline]
    if cell.headline not in names:
        raise UnmaskError(f"{folder.folder} has items without the score {cell.headline!r} that its table shows")
    by_name = {name: _column(scores[number][name] for number in ids) for name in names}
    complete = folder.complete and len(ids) > 0
    about = folder.about
    return Measured(run=run, cell=cell, about=about, ids=ids, complete=complete, columns=columns, scores=by_name)


def common_items(cells: Sequence[Measured]) -> list[Any]:
    """For each cell the places of the items that all of them have finished, in one order."""
    if not cells:
        return []
    common = sorted(set.intersection(*(set(cell.ids) for cell in cells)))
    found = []
    for cell in cells:
        place = {number: at for at, number in enumerate(cell.ids)}
        found.append(np.asarray([place[number] for number in common], dtype=np.int64))
    return found


def together(first: Measured, second: Measured) -> tuple[Sums, Sums] | None:
    """The sums of both over the items that both have finished, drawn alike; None where they share none."""
    if first.ids == second.ids:
        return (first.sums(), second.sums()) if first.done else None
    at, other_at = common_items([first, second])
    return (_sums(first, at), _sums(second, other_at)) if len(at) else None


def _sums(cell: Measured, at: Any) -> Sums:
    names = ("passes", "reference", "answer")
    columns = [cell.columns[name][at] for name in names] + [cell.correct[at], cell.seconds[at]]
    table = np.column_stack([*columns])
    names = (*names, "correct", "seconds")
    drawn = dict(zip(names, statistics.resampled_sums(table).T, strict=True))
    items = float(len(table))
    whole = dict(zip(names, table.sum(0), strict=True))
    return Sums(observed=whole | {"items": items}, resampled=drawn | {"items": items})


def value_of(cell: Measured, knob: str) -> float | int:
    """The value of a parameter of the policy or of the settings. A block ends where the answer does."""
    if knob == "block_size":
        return min(cell.cell.settings["block_size"], cell.cell.settings["max_tokens"])
    return cell.cell.policy[knob] if knob in cell.cell.policy else cell.cell.settings[knob]


def is_one_token_a_pass(cell: Measured) -> bool:
    policy = cell.cell.policy
    return policy["name"] in BASELINES and policy.get("tokens_per_pass", 1) == 1 and policy.get("passes") is None


def baseline_of(cell: Measured, cells: Sequence[Measured]) -> Measured | None:
    """The one-token-a-pass row of the same run over which this cell's speed-up is told.

    It answers the same items with the same prompt on the same device, dtype and batch size. Among several: the one with
    the same cache, early stop and block, then the one with the most passes, then `entropy`, the paper's own.
    """
    return rival_of(cell, [other for other in cells if other.run == cell.run and other.speed_key == cell.speed_key])


def rival_of(cell: Measured, cells: Sequence[Measured]) -> Measured | None:
    """The baseline where speed does not matter: the same, of any run, device and batch size, its own before others."""
    own = [
        other
        for other in cells
        if is_one_token_a_pass(other)
        and same_questions(other, cell)
        and other.cell.settings.get("max_tokens") == cell.cell.settings.get("max_tokens")
    ]

    def fitness(other: Measured) -> tuple[Any, ...]:
        same = [other.cell.settings.get(key) == cell.cell.settings.get(key) for key in _SHARED_BY_BASELINE]
        average = other.passes()
        return (
            *same,
            other.run == cell.run,
            other.speed_key == cell.speed_key,
            average.value if average else 0.0,
            other.policy == BASELINES[0],
        )

    return max(own, key=fitness, default=None)


def same_questions(first: Measured, second: Measured) -> bool:
    a, b = first.cell, second.cell
    if first.about.get("weights") != second.about.get("weights"):
        return False
    return (a.model, a.task, a.shots, a.template, a.seed) == (b.model, b.task, b.shots, b.template, b.seed)


def speedup(cell: Measured, baseline: Measured | None, count: str = "reference") -> Estimate | None:
    """TPS over the baseline's on the items that both have finished, resampled item by item."""
    if baseline is None or baseline.speed_key != cell.speed_key or not (cell.timed and baseline.timed):
        return None
    if cell is baseline:
        return Estimate(value=1.0) if cell.tokens_per_second(count) else None
    sums = together(cell, baseline)
    found = sums and estimate_of(lambda a, b: (a[count] / a["seconds"]) / (b[count] / b["seconds"]), *sums)
    return _of_time(found, cell)


def fewer_passes(cell: Measured, baseline: Measured | None) -> Estimate | None:
    """The baseline's passes over the cell's, on the items that both have finished: a speed-up without a clock."""
    if baseline is None or cell is baseline:
        return Estimate(value=1.0) if baseline is not None and cell.done else None
    sums = together(cell, baseline)
    return sums and estimate_of(lambda a, b: b["passes"] / a["passes"], *sums)


def paired(cell: Measured, baseline: Measured | None) -> Paired | None:
    """The exact test against the baseline on shared items; None where scores are not right or wrong."""
    if baseline is None or cell is baseline or cell.cell.headline != baseline.cell.headline:
        return None
    at, base_at = common_items([cell, baseline])
    ours, base = cell.correct[at], baseline.correct[base_at]
    if not len(at) or not np.isin(np.concatenate([ours, base]), (0.0, 1.0)).all():
        return None
    return statistics.mcnemar([bool(x) for x in ours], [bool(x) for x in base])


def _of_time(found: Estimate | None, cell: Measured) -> Estimate | None:
    return found if found is None or cell.own_time else Estimate(value=found.value)


def _column(values: Iterable[float]) -> Any:
    return np.asarray(list(values), dtype=np.float64)


def _plain(estimate: Estimate | None) -> dict[str, float | None] | None:
    return None if estimate is None else estimate.to_dict()
