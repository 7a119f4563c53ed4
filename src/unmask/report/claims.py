"""The paper's claims that do not depend on hardware, held against the runs at hand: passes (NFE) and their order.

A claim orders cells by their passes. It holds where every cell has more passes than the one before it, beyond chance:
the paired 95 % interval of the difference leaves out zero. It does not hold where a cell has fewer passes, beyond
chance, or as many on every item. Otherwise it is undecided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from unmask.report import compare
from unmask.report.compare import BASELINE, FULL, NONE, ONE_SHOT, UNIFORM, Cells
from unmask.report.measured import Measured, common_items, estimate_of, value_of
from unmask.report.statistics import Estimate
from unmask.report.table import Column, Table, printed

Order = dict[str, Measured]  # named cells, the one with the fewest passes first, as the claim has it

HOLDS, FAILS, OPEN, UNKNOWN = "holds", "does not hold", "undecided", "not measured"
SLOWLY = 10  # percent, "rises slowly": by less than that for two more updates; the paper's own rises are below 3 %
NOTE = (
    "A claim holds where all its differences in passes per item are above zero, and does not hold where one is zero or "
    "below: each beyond chance, so that its paired 95 % interval leaves out zero. Else it is undecided."
)


class Claim(NamedTuple):
    """Which cells of a task to compare, and by how much neighbours must differ."""

    orders: Callable[[Cells], list[Order]]
    factor: int = 1  # by more than this factor
    slowly: bool = False  # and by less than `SLOWLY`


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A claim, the place where it was tested, and the differences found there, all positive if the claim is true."""

    claim: str
    verdict: str = UNKNOWN
    place: str = ""
    values: str = ""
    differences: dict[str, Estimate] = field(default_factory=dict)

    @property
    def against(self) -> str:
        """The differences that do not speak for the claim."""
        weak = {step: one for step, one in self.differences.items() if one.value <= 0 or not one.beyond_chance}
        return "; ".join(f"{step}: {_text(one)}" for step, one in weak.items())


def checks(cells: Cells) -> list[Check]:
    """A check for each claim at each place where the runs can test it, or one that says `not measured`."""
    done = [cell for cell in compare.unique(cells) if cell.complete and cell.passes() is not None]
    tasks = compare.groups(done, compare.questions)
    found = []
    for text, claim in CLAIMS.items():
        here = [check for same in tasks for order in claim.orders(same) if (check := _check(text, claim, order))]
        # The same cells on other items, as in a study of speed, may give an equal check: it is kept once.
        found += list({repr(check): check for check in here}.values()) or [Check(claim=text)]
    return found


def claims_tables(found: Sequence[Check]) -> list[Table]:
    """A row for each claim and place; nothing where no claim was measured."""
    known = [check for check in found if check.verdict != UNKNOWN]
    titles = {"claim": "claim", "place": "where", "verdict": "verdict", "against": "against it", "values": "NFE here"}
    columns = [Column(key, title) for key, title in titles.items()]
    rows = [{key: getattr(check, key) for key in titles} for check in known]
    starts = [at for at, (one, other) in enumerate(pairwise(known), 1) if one.claim != other.claim]
    missing = len(found) - len(known)
    notes = [NOTE] + [f"{missing} of the paper's {len(CLAIMS)} claims were not measured in these runs."] * (missing > 0)
    title = "The paper's claims about passes"
    table = Table(name="claims", title=title, columns=columns, rows=rows, notes=notes, sections=starts)
    return [table] if known else []


def _check(text: str, claim: Claim, order: Order) -> Check | None:
    """What the cells say of the claim; None where two of them share no item."""
    found: dict[str, Estimate | None] = {}
    for (a, fewer), (b, more) in pairwise(order.items()):
        found[f"{'twice ' * (claim.factor - 1)}{a} → {b}"] = _difference(more, fewer, 100, 100 * claim.factor)
        if claim.slowly:
            updates = int(value_of(more, "iterations") - value_of(fewer, "iterations"))
            found[f"{a} → {b}, slowly"] = _difference(fewer, more, 100 + SLOWLY * updates // 2, 100)
    differences = {step: one for step, one in found.items() if one is not None}
    if len(differences) < len(found):
        return None
    first, *others = order.values()
    if others:
        fails = any(one.beyond_chance and one.value <= 0 for one in differences.values())
        verdict = FAILS if fails else HOLDS if all(one.beyond_chance for one in differences.values()) else OPEN
    else:
        # One cell alone: its passes must be the number of tokens.
        verdict = HOLDS if (first.columns["passes"] == first.cell.settings["max_tokens"]).all() else FAILS
    place = [first.model, first.cell.task]
    settings = [cell.cell.settings | cell.cell.policy for cell in order.values() if cell.policy == "mean_field"]
    for name, sign in (("threshold", "τ ="), ("block_size", "block")):
        shared = {setting.get(name) for setting in settings}
        place += [f"{sign} {value}" for value in shared if len(shared) == 1 and value is not None]
    values = ", ".join(f"{name}: {_text(cell.passes())}" for name, cell in order.items())
    return Check(claim=text, verdict=verdict, place=", ".join(place), values=values, differences=differences)


def _text(passes: Estimate | None) -> str:
    return " ".join(printed(passes, Column("passes", "NFE", 2))).rstrip()


def _difference(more: Measured, fewer: Measured, first: int, second: int) -> Estimate | None:
    """Passes per item of one cell less the passes of another, each times its percentage, on the items of both."""
    # Whole numbers, so that rounding cannot turn a difference of exactly zero into a positive one.
    found = estimate_of(lambda a, b: (first * a["passes"] - second * b["passes"]) / (100 * a["items"]), more, fewer)
    # One item cannot tell how items differ.
    return found if found is None or len(common_items([more, fewer])) > 1 else Estimate(value=found.value)


def _sweep(knob: str, sign: str, step: int = 1) -> Callable[[Cells], list[Order]]:
    """Mean-field as one knob is turned up, or down for a negative step. Odd numbers of updates are left out."""

    def orders(same: Cells) -> list[Order]:
        sweep = [(value_of(cell, knob), cell) for cell in compare.sweep_of(same, knob)]
        chosen = [(value, cell) for value, cell in sweep if knob != "iterations" or value % 2 == 0]
        return [{f"{sign} {value}": cell for value, cell in chosen[::step]}] if len(chosen) > 1 else []

    return orders


def _variants(*names: str) -> Callable[[Cells], list[Order]]:
    """These variants of an ablation, at every setting that has all of them."""
    return lambda same: [{n: v[n] for n in names} for v in compare.ablations(same) if v.keys() >= set(names)]


def _entropy(same: Cells) -> list[Order]:
    slow = [cell for cell in same if cell.policy == "entropy" and compare.is_one_token_a_pass(cell)]
    whole = [cell for cell in slow if not cell.cell.settings.get("early_stop")]
    return [{f"G = {cell.cell.settings['max_tokens']}, entropy": cell} for cell in whole]


CLAIMS = {
    "NFE falls as τ falls": Claim(_sweep("threshold", "τ =")),
    "NFE rises with even R, slowly (less than 10 % for R + 2)": Claim(_sweep("iterations", "R ="), slowly=True),
    "NFE(R = 1) is more than twice NFE(R = 2)": Claim(_variants(FULL, ONE_SHOT), factor=2),
    "NFE(no interaction) < NFE(uniform)": Claim(_variants(NONE, UNIFORM)),
    "NFE(uniform) < NFE(mean-field)": Claim(_variants(UNIFORM, FULL)),
    "NFE(mean-field) < NFE(R = 1)": Claim(_variants(FULL, ONE_SHOT)),
    "NFE(R = 1) < NFE(one token a pass)": Claim(_variants(ONE_SHOT, BASELINE)),
    "NFE(entropy) = G, the number of tokens": Claim(_entropy),
    "Larger blocks give fewer NFE": Claim(_sweep("block_size", "block", step=-1)),
}
