"""The paper's claims that do not depend on hardware, held against the runs at hand: passes (NFE) and their order.

A claim holds where every one of its comparisons comes out as claimed, beyond chance: the measured means, unrounded,
differ that way and the paired 95 % interval of the difference leaves out zero. It does not hold where one comes out
the other way beyond chance, or where all items are equal. Between the two it is undecided; what the means say is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from unmask.evals.statistics import Interval
from unmask.report.measured import Measured, estimate_of, together, value_of
from unmask.report.results import groups, questions
from unmask.report.sweeps import ablations, sweep_of, unique
from unmask.report.table import Column, Table, words

HOLDS, FAILS, OPEN, UNKNOWN = "holds", "does not hold", "undecided", "not measured"
VERDICTS = {HOLDS: HOLDS, FAILS: FAILS, OPEN: f"{OPEN} (within chance)"}
SLOWLY = 10  # percent, "rises slowly": by less than that for two more updates; the paper's own rises are below 3 %


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One difference that the claim wants to be positive."""

    what: str
    difference: float
    interval: Interval | None

    @property
    def as_claimed(self) -> bool:
        return self.difference > 0

    @property
    def beyond_chance(self) -> bool:
        """Whether the interval leaves out zero; a difference of nothing on every item is no chance either."""
        if self.interval is None:
            return False
        low, high = self.interval
        return low > 0 or high < 0 or low == high == self.difference

    @property
    def told(self) -> str:
        if self.difference == 0 and self.beyond_chance:
            return "0 on every item"
        return f"{_figure(self.difference)}{_bracket(self.interval)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A claim, where it was looked for, and what was found."""

    claim: str
    place: str = ""
    values: str = ""
    comparisons: tuple[Comparison, ...] = ()
    exact: bool | None = None  # a claim of equality, which has no interval

    @property
    def verdict(self) -> str:
        if self.exact is not None:
            return HOLDS if self.exact else FAILS
        if not self.comparisons:
            return UNKNOWN
        if any(found.beyond_chance and not found.as_claimed for found in self.comparisons):
            return FAILS
        return HOLDS if all(found.beyond_chance for found in self.comparisons) else OPEN

    @property
    def by_means(self) -> str:
        """What the means say, chance or not."""
        if self.exact is not None or not self.comparisons:
            return self.verdict
        return HOLDS if all(found.as_claimed for found in self.comparisons) else FAILS

    @property
    def certainty(self) -> str:
        """How much of the verdict is beyond chance, in words."""
        if self.exact is not None or not self.comparisons:
            return "exact" if self.exact is not None else ""
        sure = sum(found.beyond_chance for found in self.comparisons)
        count = len(self.comparisons)
        text = (
            f"{sure} of {count} differences beyond chance" if count > 1 else f"{'beyond' if sure else 'within'} chance"
        )
        return f"{text}; against: {self.against}" if self.against else text

    @property
    def against(self) -> str:
        """The comparisons that came out the other way, each with how sure that is."""
        return ", ".join(f"{found.what}: {found.told}" for found in self.comparisons if not found.as_claimed)

    def to_dict(self) -> dict[str, Any]:
        plain = {"claim": self.claim, "place": self.place, "values": self.values, "verdict": self.verdict}
        comparisons = [
            {"what": found.what, "difference": found.difference, "interval": found.interval, "claimed": "positive"}
            for found in self.comparisons
        ]
        return plain | {"by_means": self.by_means, "certainty": self.certainty, "comparisons": comparisons}


def checks(cells: Sequence[Measured]) -> list[Check]:
    """Every claim at every place where the runs can speak to it; once as not measured where none can."""
    pool = [cell for cell in unique(cells) if cell.complete and cell.passes() is not None]
    places = groups(pool, questions)
    found = []
    for claim, look in CLAIMS.items():
        here = [check for same in places for check in look(claim, same)]
        # The same cells with other items, as where speed was measured on a few, may say the very same.
        found += list({(check.place, check.values): check for check in here}.values()) or [Check(claim=claim)]
    return found


def checks_tables(found: Sequence[Check]) -> list[Table]:
    """A line for each claim that was measured, then one for each place; nothing where none was."""
    known = [check for check in found if check.verdict != UNKNOWN]
    unknown = len(found) - len(known)
    return [_summary(known, unknown), _places(known)] if known else []


def _summary(found: Sequence[Check], unknown: int) -> Table:
    columns = [Column(key="claim", title="claim", words=True)]
    columns += [Column(key=verdict, title=title, words=True) for verdict, title in VERDICTS.items()]
    rows = []
    for same in groups(found, lambda check: check.claim):
        lines = {verdict: [check for check in same if check.verdict == verdict] for verdict in VERDICTS}
        row = {verdict: words("; ".join(_told(check) for check in lines[verdict])) for verdict in lines}
        rows.append({"claim": words(same[0].claim), **row})
    notes = [
        "A claim holds where every comparison comes out as claimed, and does not where one comes out the other way: on "
        "the measured means, unrounded, and with a 95 % interval, resampled item by item, that leaves out zero. Else "
        "it is undecided. In brackets, what speaks against it: a difference in passes per item that should be above "
        "zero. The details have every value, and what the means alone say.",
    ]
    if unknown:
        notes.append(f"{unknown} of the paper's {len(CLAIMS)} claims were not measured in these runs.")
    return Table(name="shape", title="The paper's claims about passes", columns=columns, rows=rows, notes=notes)


def _told(check: Check) -> str:
    """The place, with what speaks against the claim there, or how much of it may be chance."""
    if check.against:
        return f"{check.place} ({check.against})"
    return f"{check.place} ({check.certainty})" if check.verdict == OPEN else check.place


def _places(found: Sequence[Check]) -> Table:
    titles = ("claim", "where", "verdict", "by the means", "certainty", "NFE here")
    columns = [Column(key=key, title=key, words=True) for key in titles]
    rows = [
        {
            "claim": words(check.claim),
            "where": words(check.place),
            "verdict": words(check.verdict),
            "by the means": words(check.by_means),
            "certainty": words(check.certainty),
            "NFE here": words(check.values),
        }
        for check in found
    ]
    title = "The paper's claims about passes: details"
    return Table(name="shape-details", title=title, columns=columns, rows=rows, details=True)


def _falls_with_threshold(claim: str, same: Sequence[Measured]) -> list[Check]:
    sweep = sweep_of(same, "threshold")
    steps = [_compare(high, low, f"τ {_at(low)} → {_at(high)}") for low, high in _neighbours(sweep)]
    return _check(claim, sweep, steps, [f"τ = {_at(cell)}" for cell in sweep])


def _rises_with_updates(claim: str, same: Sequence[Measured]) -> list[Check]:
    sweep = [cell for cell in sweep_of(same, "iterations") if _updates(cell) >= 2 and _updates(cell) % 2 == 0]
    steps = []
    for few, many in _neighbours(sweep):
        pairs = (_updates(many) - _updates(few)) // 2
        steps.append(_compare(many, few, f"R {_updates(few)} → {_updates(many)} rises"))
        limit = (100 + SLOWLY * pairs, 100, 100)
        steps.append(_compare(few, many, f"R {_updates(few)} → {_updates(many)} slowly", times=limit))
    return _check(claim, sweep, steps, [f"R = {_updates(cell)}" for cell in sweep])


def _one_update_is_slow(claim: str, same: Sequence[Measured]) -> list[Check]:
    found = []
    for variants in ablations(same):
        if {"one_shot", "full"} <= variants.keys():
            one, two = variants["one_shot"], variants["full"]
            steps = [_compare(one, two, "R = 1 less twice R = 2", times=(1, 2, 1))]
            found += _check(claim, [one, two], steps, ["R = 1", "R = 2"])
    return found


def _order_of_variants(first: str, second: str) -> Callable[[str, Sequence[Measured]], list[Check]]:
    def look(claim: str, same: Sequence[Measured]) -> list[Check]:
        found = []
        for variants in ablations(same):
            if {first, second} <= variants.keys():
                fewer, more = variants[first], variants[second]
                steps = [_compare(more, fewer, f"{NAMES[second]} over {NAMES[first]}")]
                found += _check(claim, [fewer, more], steps, [NAMES[first], NAMES[second]])
        return found

    return look


def _entropy_takes_a_pass_a_token(claim: str, same: Sequence[Measured]) -> list[Check]:
    found = []
    for cell in same:
        policy, settings = cell.cell.policy, cell.cell.settings
        plain = policy.get("tokens_per_pass", 1) == 1 and policy.get("passes") is None
        if cell.policy == "entropy" and plain and not settings.get("early_stop"):
            exact = bool((cell.columns["passes"] == settings["max_tokens"]).all())
            values = f"entropy {_passes(cell)}, G = {settings['max_tokens']}"
            found.append(Check(claim=claim, place=_place([cell]), values=values, exact=exact))
    return found


def _falls_with_block(claim: str, same: Sequence[Measured]) -> list[Check]:
    sweep = sweep_of(same, "block_size")
    sizes = [int(value_of(cell, "block_size")) for cell in sweep]
    steps = [
        _compare(small, large, f"block {a} → {b}")
        for (small, large), a, b in zip(_neighbours(sweep), sizes, sizes[1:], strict=False)
    ]
    return _check(claim, sweep, steps, [f"block {size}" for size in sizes])


NAMES = {
    "baseline": "one token a pass",
    "none": "no interaction",
    "uniform": "uniform",
    "one_shot": "R = 1",
    "full": "mean-field",
}

CLAIMS: dict[str, Callable[[str, Sequence[Measured]], list[Check]]] = {
    "NFE falls as τ falls": _falls_with_threshold,
    "NFE rises with even R, slowly (less than 10 % for R + 2)": _rises_with_updates,
    "NFE(R = 1) is more than twice NFE(R = 2)": _one_update_is_slow,
    "NFE(no interaction) < NFE(uniform)": _order_of_variants("none", "uniform"),
    "NFE(uniform) < NFE(mean-field)": _order_of_variants("uniform", "full"),
    "NFE(mean-field) < NFE(R = 1)": _order_of_variants("full", "one_shot"),
    "NFE(R = 1) < NFE(one token a pass)": _order_of_variants("one_shot", "baseline"),
    "NFE(entropy) = G, the number of tokens": _entropy_takes_a_pass_a_token,
    "Larger blocks give fewer NFE": _falls_with_block,
}


def _compare(
    more: Measured, fewer: Measured, what: str, *, times: tuple[int, int, int] = (1, 1, 1)
) -> Comparison | None:
    """Passes per item of the first less those of the second, on the items of both.

    `times` (a, b, c) makes it (a x first - b x second) / c. Whole numbers, so that a claim which fails by nothing at
    all is not saved by rounding.
    """
    first, second, unit = times
    sums = together(more, fewer)
    found = sums and estimate_of(lambda a, b: (first * a["passes"] - second * b["passes"]) / (unit * a["items"]), *sums)
    if sums is None or found is None:
        return None
    # One item cannot tell how items differ.
    interval = found.interval if sums[0].observed["items"] > 1 else None
    return Comparison(what=what, difference=found.value, interval=interval)


def _check(
    claim: str, cells: Sequence[Measured], steps: Sequence[Comparison | None], names: Sequence[str]
) -> list[Check]:
    known = tuple(step for step in steps if step is not None)
    if not known or len(known) < len(steps):
        return []
    values = ", ".join(f"{name}: {_passes(cell)}" for name, cell in zip(names, cells, strict=True))
    return [Check(claim=claim, place=_place(cells), values=values, comparisons=known)]


def _neighbours(cells: Sequence[Measured]) -> list[tuple[Measured, Measured]]:
    return list(pairwise(cells))


def _place(cells: Sequence[Measured]) -> str:
    """Model and task, and the setting as far as all cells share it."""
    parts = [cells[0].model, cells[0].cell.task]
    for name, sign in (("threshold", "τ ="), ("block_size", "block")):
        values = {(cell.cell.settings | cell.cell.policy).get(name) for cell in cells if cell.policy == "mean_field"}
        parts += [f"{sign} {value}" for value in values if len(values) == 1 and value is not None]
    return ", ".join(parts)


def _passes(cell: Measured) -> str:
    found = cell.passes()
    return "" if found is None else f"{_figure(found.value)}{_bracket(found.interval)}"


def _bracket(interval: Interval | None) -> str:
    """An interval in brackets; one without width says nothing."""
    wide = interval is not None and interval[0] < interval[1]
    return f" [{_figure(interval[0])}, {_figure(interval[1])}]" if interval is not None and wide else ""


def _figure(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def _at(cell: Measured) -> float | int:
    return value_of(cell, "threshold")


def _updates(cell: Measured) -> int:
    return int(value_of(cell, "iterations"))
