"""The paper's claims that do not depend on hardware, held against the runs at hand: passes (NFE) and their order.

A claim holds where every one of its differences comes out as claimed, beyond chance: the measured means, unrounded,
differ that way and the paired 95 % interval of the difference leaves out zero. It does not hold where one comes out
the other way beyond chance, or where all items are equal. Between the two it is undecided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from unmask.report.statistics import Estimate
from unmask.report import compare
from unmask.report.measured import Measured, common_items, estimate_of, value_of
from unmask.report.table import Column, Table, estimate, words

Cells = Sequence[Measured]
Chain = dict[str, Measured]  # named cells, the one with the fewest passes first, as the claim has it

HOLDS, FAILS, OPEN, UNKNOWN = "holds", "does not hold", "undecided", "not measured"
SLOWLY = 10  # percent, "rises slowly": by less than that for two more updates; the paper's own rises are below 3 %
NOTE = (
    "A claim holds where all its differences in passes per item are above zero, and does not hold where one is zero or "
    "below: each beyond chance, so that its paired 95 % interval leaves out zero. Else it is undecided."
)


class Claim(NamedTuple):
    """Where to look, and by how much neighbours in a chain must differ."""

    chains: Callable[[Cells], list[Chain]]
    factor: int = 1  # by more than this factor
    slowly: bool = False  # and by less than `SLOWLY`


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A claim, where it was looked for, and what was found: differences that the claim wants to be positive."""

    claim: str
    place: str = ""
    values: str = ""
    differences: dict[str, Estimate] = field(default_factory=dict)
    exact: bool | None = None  # of a claim of equality, which has no interval

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
    done = [cell for cell in compare.unique(cells) if cell.complete and cell.passes() is not None]
    tasks = compare.groups(done, compare.questions)
    found = []
    for text, claim in CLAIMS.items():
        here = [check for same in tasks for chain in claim.chains(same) if (check := _check(text, claim, chain))]
        # The same cells with other items, as where speed was measured on a few, may say the very same.
        once = {(check.place, check.values): check for check in here}
        found += list(once.values()) or [Check(claim=text)]
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


def _check(text: str, claim: Claim, chain: Chain) -> Check | None:
    """What the cells of a chain say; None where two of them share no item."""
    found: dict[str, Estimate | None] = {}
    for (a, fewer), (b, more) in pairwise(chain.items()):
        found[f"{'twice ' * (claim.factor - 1)}{a} → {b}"] = _difference(more, fewer, 100, 100 * claim.factor)
        if claim.slowly:
            updates = int(value_of(more, "iterations") - value_of(fewer, "iterations"))
            found[f"{a} → {b}, slowly"] = _difference(fewer, more, 100 + SLOWLY * updates // 2, 100)
    differences = {what: one for what, one in found.items() if one is not None}
    first, *others = chain.values()
    place = [first.model, first.cell.task]
    settings = [cell.cell.settings | cell.cell.policy for cell in chain.values() if cell.policy == "mean_field"]
    for name, sign in (("threshold", "τ ="), ("block_size", "block")):
        shared = {setting.get(name) for setting in settings}
        place += [f"{sign} {value}" for value in shared if len(shared) == 1 and value is not None]
    values = ", ".join(f"{name}: {estimate(cell.passes(), 2)}" for name, cell in chain.items())
    exact = None if others else bool((first.columns["passes"] == first.cell.settings["max_tokens"]).all())
    check = Check(claim=text, place=", ".join(place), values=values, differences=differences, exact=exact)
    return check if len(differences) == len(found) else None


def _difference(more: Measured, fewer: Measured, first: int, second: int) -> Estimate | None:
    """Passes per item of one cell less those of another, each times its percentage, on the items of both."""
    # Whole numbers, so that a claim which fails by nothing at all is not saved by rounding.
    found = estimate_of(lambda a, b: (first * a["passes"] - second * b["passes"]) / (100 * a["items"]), more, fewer)
    # One item cannot tell how items differ.
    return found if found is None or len(common_items([more, fewer])[0]) > 1 else Estimate(value=found.value)


def _sweep(knob: str, sign: str, step: int = 1) -> Callable[[Cells], list[Chain]]:
    """Mean-field as one knob is turned: up, or down for a negative step; of its updates, only even numbers."""

    def chains(same: Cells) -> list[Chain]:
        values = {value_of(cell, knob): cell for cell in compare.sweep_of(same, knob)}
        chosen = [(value, cell) for value, cell in values.items() if knob != "iterations" or value % 2 == 0]
        return [{f"{sign} {value}": cell for value, cell in chosen[::step]}] if len(chosen) > 1 else []

    return chains


def _variants(*names: str) -> Callable[[Cells], list[Chain]]:
    """These variants of an ablation, wherever they are all there."""
    return lambda same: [{n: v[n] for n in names} for v in compare.ablations(same) if v.keys() >= set(names)]


def _plain_entropy(same: Cells) -> list[Chain]:
    slow = [cell for cell in same if cell.policy == "entropy" and compare.is_one_token_a_pass(cell)]
    stopped = [cell for cell in slow if not cell.cell.settings.get("early_stop")]
    return [{f"G = {cell.cell.settings['max_tokens']}, entropy": cell} for cell in stopped]


CLAIMS = {
    "NFE falls as τ falls": Claim(_sweep("threshold", "τ =")),
    "NFE rises with even R, slowly (less than 10 % for R + 2)": Claim(_sweep("iterations", "R ="), slowly=True),
    "NFE(R = 1) is more than twice NFE(R = 2)": Claim(_variants(compare.FULL, compare.ONE_SHOT), factor=2),
    "NFE(no interaction) < NFE(uniform)": Claim(_variants(compare.NONE, compare.UNIFORM)),
    "NFE(uniform) < NFE(mean-field)": Claim(_variants(compare.UNIFORM, compare.FULL)),
    "NFE(mean-field) < NFE(R = 1)": Claim(_variants(compare.FULL, compare.ONE_SHOT)),
    "NFE(R = 1) < NFE(one token a pass)": Claim(_variants(compare.ONE_SHOT, compare.BASELINE)),
    "NFE(entropy) = G, the number of tokens": Claim(_plain_entropy),
    "Larger blocks give fewer NFE": Claim(_sweep("block_size", "block", step=-1)),
}
