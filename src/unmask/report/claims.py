"""The paper's claims that do not depend on hardware, held against the runs at hand: passes (NFE) and their order.

A claim holds where every one of its comparisons comes out as claimed, beyond chance: the measured means, unrounded,
differ that way and the paired 95 % interval of the difference leaves out zero. It does not hold where one comes out
the other way beyond chance, or where all items are equal. Between the two it is undecided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, pairwise
from typing import Any

from unmask.evals.statistics import Estimate
from unmask.report import compare as c
from unmask.report.compare import ablations, groups, is_one_token_a_pass, questions, sweep_of, unique
from unmask.report.measured import Measured, common_items, estimate_of, value_of
from unmask.report.table import Column, Table, estimate, words

Cells = Sequence[Measured]
Look = Callable[[Cells], list["Check"]]
Compare = Callable[[Measured, Measured, float | int], dict[str, Estimate | None]]

HOLDS, FAILS, OPEN, UNKNOWN = "holds", "does not hold", "undecided", "not measured"
SLOWLY = 10  # percent, "rises slowly": by less than that for two more updates; the paper's own rises are below 3 %
NOTE = (
    "A claim holds where all its differences in passes per item are above zero, and does not where one is not: each "
    "beyond chance, with a paired 95 % interval that leaves out zero. Else it is undecided."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A claim, where it was looked for, and what was found: differences that the claim wants to be positive."""

    claim: str = ""
    place: str = ""
    values: str = ""
    differences: dict[str, Estimate] = field(default_factory=dict)
    exact: bool | None = None  # a claim of equality, which has no interval

    @property
    def verdict(self) -> str:
        found = self.differences.values()
        if self.exact is None and not found:
            return UNKNOWN
        if self.exact is False or any(one.beyond_chance and one.value <= 0 for one in found):
            return FAILS
        return HOLDS if all(one.beyond_chance for one in found) else OPEN

    @property
    def against(self) -> str:
        """The differences that do not speak for the claim."""
        weak = {what: one for what, one in self.differences.items() if one.value <= 0 or not one.beyond_chance}
        return "; ".join(f"{what}: {estimate(one, 2)}" for what, one in weak.items())

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"verdict": self.verdict}


def checks(cells: Cells) -> list[Check]:
    """Every claim at every place where the runs can speak to it; once as not measured where none can."""
    pool = [cell for cell in unique(cells) if cell.complete and cell.passes() is not None]
    found = []
    for claim, look in CLAIMS.items():
        here = [check for same in groups(pool, questions) for check in look(same)]
        # The same cells with other items, as where speed was measured on a few, may say the very same.
        once = {(check.place, check.values): replace(check, claim=claim) for check in here}
        found += list(once.values()) or [Check(claim=claim)]
    return found


def claims_tables(found: Sequence[Check]) -> list[Table]:
    """A row for each claim and place; nothing where no claim was measured."""
    known = [check for check in found if check.verdict != UNKNOWN]
    titles = {"claim": "claim", "place": "where", "verdict": "verdict", "against": "against it", "values": "NFE here"}
    columns = [Column(key, title, words=True, spare=int(key == "values")) for key, title in titles.items()]
    rows = [{key: words(getattr(check, key)) for key in titles} for check in known]
    starts = [at for at, (one, other) in enumerate(pairwise(known), 1) if one.claim != other.claim]
    missing = len(found) - len(known)
    notes = [NOTE] + [f"{missing} of the paper's {len(CLAIMS)} claims were not measured in these runs."] * (missing > 0)
    title = "The paper's claims about passes"
    table = Table(name="claims", title=title, columns=columns, rows=rows, notes=notes, sections=starts)
    return [table] if known else []


def _difference(more: Measured, fewer: Measured, percent: tuple[int, int] = (100, 100)) -> Estimate | None:
    """Passes per item of the first less those of the second, each times its percentage, on the items of both."""
    first, second = percent
    # Whole numbers, so that a claim which fails by nothing at all is not saved by rounding.
    found = estimate_of(lambda a, b: (first * a["passes"] - second * b["passes"]) / (100 * a["items"]), more, fewer)
    # One item cannot tell how items differ.
    return found if found is None or len(common_items([more, fewer])[0]) > 1 else Estimate(value=found.value)


def _check(cells: dict[str, Measured], found: dict[str, Estimate | None], exact: bool | None = None) -> list[Check]:
    """What was found in these cells; nothing where a comparison cannot be made."""
    known = {what: difference for what, difference in found.items() if difference is not None}
    if len(known) < len(found) or (exact is None and not known):
        return []
    first, *_ = cells.values()
    place = [first.model, first.cell.task]
    fields = [cell.cell.settings | cell.cell.policy for cell in cells.values() if cell.policy == "mean_field"]
    for name, sign in (("threshold", "τ ="), ("block_size", "block")):
        # The setting, as far as all cells share it.
        shared = {field.get(name) for field in fields}
        place += [f"{sign} {value}" for value in shared if len(shared) == 1 and value is not None]
    values = ", ".join(f"{name}: {estimate(cell.passes(), 2)}" for name, cell in cells.items())
    return [Check(place=", ".join(place), values=values, differences=known, exact=exact)]


def _along(knob: str, sign: str, compare: Compare) -> Look:
    """A claim about neighbours in a sweep of mean-field; of its updates, only even numbers."""

    def look(same: Cells) -> list[Check]:
        sweep = {value_of(cell, knob): cell for cell in sweep_of(same, knob)}
        values = [value for value in sweep if knob != "iterations" or value % 2 == 0]
        found = {}
        for a, b in pairwise(values):
            step = f"{sign.removesuffix(' =')} {a} → {b}"
            found |= {f"{step}{what}": one for what, one in compare(sweep[a], sweep[b], b - a).items()}
        return _check({f"{sign} {value}": sweep[value] for value in values}, found)

    return look


def _order(fewer: str, more: str, times: int = 1) -> Look:
    """A claim about two variants of an ablation."""

    def look(same: Cells) -> list[Check]:
        pairs = [(variants[fewer], variants[more]) for variants in ablations(same) if {fewer, more} <= variants.keys()]
        what = f"{more} over {'twice ' * (times - 1)}{fewer}"
        found = [_check({fewer: a, more: b}, {what: _difference(b, a, (100, 100 * times))}) for a, b in pairs]
        return list(chain.from_iterable(found))

    return look


def _rises_slowly(few: Measured, many: Measured, updates: float | int) -> dict[str, Estimate | None]:
    limit = 100 + SLOWLY * int(updates) // 2
    return {" rises": _difference(many, few), " slowly": _difference(few, many, (limit, 100))}


def _a_pass_a_token(same: Cells) -> list[Check]:
    found = []
    for cell in same:
        if cell.policy == "entropy" and is_one_token_a_pass(cell) and not cell.cell.settings.get("early_stop"):
            length = cell.cell.settings["max_tokens"]
            found += _check({f"G = {length}, entropy": cell}, {}, exact=bool((cell.columns["passes"] == length).all()))
    return found


CLAIMS: dict[str, Look] = {
    "NFE falls as τ falls": _along("threshold", "τ =", lambda low, high, _: {"": _difference(high, low)}),
    "NFE rises with even R, slowly (less than 10 % for R + 2)": _along("iterations", "R =", _rises_slowly),
    "NFE(R = 1) is more than twice NFE(R = 2)": _order(c.FULL, c.ONE_SHOT, times=2),
    "NFE(no interaction) < NFE(uniform)": _order(c.NONE, c.UNIFORM),
    "NFE(uniform) < NFE(mean-field)": _order(c.UNIFORM, c.FULL),
    "NFE(mean-field) < NFE(R = 1)": _order(c.FULL, c.ONE_SHOT),
    "NFE(R = 1) < NFE(one token a pass)": _order(c.ONE_SHOT, c.BASELINE),
    "NFE(entropy) = G, the number of tokens": _a_pass_a_token,
    "Larger blocks give fewer NFE": _along("block_size", "block", lambda few, many, _: {"": _difference(few, many)}),
}
