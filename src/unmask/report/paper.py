"""The paper beside the runs: its numbers, where they may stand, and its claims, where they can be tested.

A number stands only beside a cell that ran the paper's protocol and setting. Where the paper does not state a setting,
the preset is taken for it; see `unmask.policies.presets`.

A claim orders cells by their passes (NFE), which do not depend on hardware. `NOTE` says when it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from unmask import policies
from unmask.report import compare
from unmask.report.compare import BASELINE, FULL, NONE, ONE_SHOT, UNIFORM, Cells, value_of
from unmask.report.measured import Estimate, Measured, estimate_of
from unmask.report.table import Column, Row, Table, printed

SETTINGS = {"max_tokens": 256, "block_size": 32, "temperature": 0.0, "top_p": 1.0}
HOLDS, FAILS, OPEN, UNKNOWN = "holds", "does not hold", "undecided", "not measured"
SLOWLY = 10  # percent, "rises slowly": by less than that for two more updates; the paper's own rises are below 3 %
SIGNS = {"threshold": "τ =", "iterations": "R =", "block_size": "block"}
TITLES = {"claim": "claim", "place": "where", "verdict": "verdict", "against": "against it", "values": "NFE here"}
NOTE = (
    "A claim holds where all its differences in passes per item are above zero, and does not hold where one is zero or "
    "below: each beyond chance, so that its paired 95 % interval leaves out zero. Else it is undecided."
)

Order = dict[str, Measured]  # named cells, the one with the fewest passes first, as the claim has it


def main(cell: Measured) -> Row:
    """The entry of the main table for that checkpoint, policy and benchmark, by the keys of columns; or nothing."""
    # A checkpoint's name may differ from the paper's in upper and lower case.
    tasks = next((rows for name, rows in values()["main"].items() if name.lower() == cell.model.lower()), {})
    row = tasks.get(cell.policy, {}).get(cell.cell.task)
    return _row(cell, *row, None, tasks["entropy"][cell.cell.task][1]) if row and _is_preset(cell) else {}


def study(kind: str, cell: Measured, knob: str = "") -> Row:
    """The entry of the table 'ablation' or 'sensitivity'; with a knob, among the rows that turn it."""
    table = values()[kind]
    if (cell.model.lower(), cell.cell.task) != (table["model"].lower(), table["task"]):
        return {}
    baseline = table["baseline"]
    if cell.policy == "entropy" and _is_preset(cell):
        return _row(cell, *baseline, baseline[1])
    for changed, *row in table["rows"]:
        own = table["setting"] | changed
        settings = {"block_size": own.pop("block_size")}
        if (not knob or knob in changed) and _ran(cell, policies.get("mean_field", **own), settings):
            return _row(cell, *row, baseline[1])
    return {}


def _row(
    cell: Measured, accuracy: float, speed: float, printed: float | None, passes: float | None, base: float
) -> Row:
    row: Row = {"paper_accuracy": accuracy, "paper_passes": passes}
    if cell.timed and cell.own_time:
        # The ratio of the two TPS: several of the printed speed-ups differ from it.
        row |= {"paper_tokens_per_second": speed, "paper_speedup": speed / base, "printed_speedup": printed}
    return row


def _is_preset(cell: Measured) -> bool:
    """Whether policy and settings are as published for that checkpoint and task."""
    asked = cell.policy, cell.model, cell.cell.task
    return _ran(cell, policies.preset(*asked), policies.preset_settings(*asked))


def _ran(cell: Measured, policy: Any, settings: dict[str, Any]) -> bool:
    """Whether the cell ran the paper's protocol with that policy and these settings."""
    same = cell.cell.policy == policies.describe(policy)
    return same and cell.cell.paper and (SETTINGS | settings).items() <= cell.cell.settings.items()


@cache
def values() -> dict[str, Any]:
    """The paper's numbers, from the file beside this one."""
    return yaml.safe_load(Path(__file__).with_name("paper.yaml").read_text(encoding="utf-8"))


class Claim(NamedTuple):
    """Cells of a task whose passes must rise from one to the next: variants of an ablation, or a sweep of a knob.

    With neither: entropy, one token a pass, whose passes must be the number of tokens.
    """

    variants: tuple[str, ...] = ()
    knob: str = ""
    factor: int = 1  # by more than this factor


CLAIMS = {
    "NFE falls as τ falls": Claim(knob="threshold"),
    "NFE rises with even R, slowly (less than 10 % for R + 2)": Claim(knob="iterations"),
    "NFE(R = 1) is more than twice NFE(R = 2)": Claim((FULL, ONE_SHOT), factor=2),
    "NFE(no interaction) < NFE(uniform)": Claim((NONE, UNIFORM)),
    "NFE(uniform) < NFE(mean-field)": Claim((UNIFORM, FULL)),
    "NFE(mean-field) < NFE(R = 1)": Claim((FULL, ONE_SHOT)),
    "NFE(R = 1) < NFE(one token a pass)": Claim((ONE_SHOT, BASELINE)),
    "NFE(entropy) = G, the number of tokens": Claim(),
    "Larger blocks give fewer NFE": Claim(knob="block_size"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A claim, the place where it was tested, and the differences found there, all positive if the claim is true."""

    claim: str
    verdict: str = UNKNOWN
    place: str = ""
    against: str = ""  # the differences that do not speak for the claim
    values: str = ""
    differences: dict[str, Estimate] = field(default_factory=dict)


def checks(cells: Cells) -> list[Check]:
    """A check for each claim at each place where the runs can test it, or one that says `not measured`."""
    done = [cell for cell in compare.unique(cells) if cell.complete and cell.passes() is not None]
    tasks = compare.groups(done, compare.questions)
    found = []
    for text, claim in CLAIMS.items():
        here = [_check(text, claim, order) for same in tasks for order in _orders(claim, same)]
        # The same cells on other items, as in a study of speed, may give an equal check: it is kept once.
        found += list({repr(check): check for check in here}.values()) or [Check(claim=text)]
    return found


def claims_table(found: Sequence[Check]) -> Table:
    """A row for each claim and place that was measured."""
    known = [check for check in found if check.verdict != UNKNOWN]
    missing = len(found) - len(known)
    left = [f"{missing} of the paper's {len(CLAIMS)} claims were not measured in these runs."] if missing else []
    return Table(
        name="claims",
        title="The paper's claims about passes",
        columns=[Column(key, title) for key, title in TITLES.items()],
        rows=[{key: getattr(check, key) for key in TITLES} for check in known],
        notes=[NOTE, *left],
        sections=[at for at, (one, other) in enumerate(pairwise(known), 1) if one.claim != other.claim],
    )


def _orders(claim: Claim, same: Cells) -> list[Order]:
    """The cells of a task that the claim is about, once for each setting that has them all."""
    if claim.variants:
        found = [each for each in compare.ablations(same, same) if each.keys() >= set(claim.variants)]
        return [{name: each[name] for name in claim.variants} for each in found]
    if not claim.knob:
        slow = [cell for cell in same if cell.policy == "entropy" and compare.is_one_token_a_pass(cell)]
        whole = [cell for cell in slow if not value_of(cell, "early_stop")]
        return [{f"G = {value_of(cell, 'max_tokens')}, entropy": cell} for cell in whole]
    sweep = {value_of(cell, claim.knob): cell for cell in compare.sweep_of(same, claim.knob)}
    values = sorted(sweep, reverse=claim.knob == "block_size")
    if claim.knob == "iterations":
        values = [value for value in values if value % 2 == 0]
    return [{f"{SIGNS[claim.knob]} {value}": sweep[value] for value in values}] if len(values) > 1 else []


def _check(text: str, claim: Claim, order: Order) -> Check:
    """What the cells, which have finished the same items, say of the claim."""
    differences: dict[str, Estimate] = {}
    for (a, fewer), (b, more) in pairwise(order.items()):
        differences[f"{'twice ' * (claim.factor - 1)}{a} → {b}"] = _difference(more, fewer, 100, 100 * claim.factor)
        if claim.knob == "iterations":
            updates = value_of(more, "iterations") - value_of(fewer, "iterations")
            differences[f"{a} → {b}, slowly"] = _difference(fewer, more, 100 + SLOWLY * updates // 2, 100)
    weak = {step: one for step, one in differences.items() if one.value <= 0 or not one.beyond_chance}
    fails = any(one.beyond_chance for one in weak.values())
    first = next(iter(order.values()))
    if len(order) == 1:  # its passes must be the number of tokens
        fails = (first.columns["passes"] != value_of(first, "max_tokens")).any()
    place = [first.model, first.cell.task]
    for knob in ("threshold", "block_size"):
        shared = {value_of(cell, knob) for cell in order.values() if cell.policy == "mean_field"}
        place += [f"{SIGNS[knob]} {value}" for value in shared if len(shared) == 1]
    return Check(
        claim=text,
        verdict=FAILS if fails else OPEN if weak else HOLDS,
        place=", ".join(place),
        against="; ".join(f"{step}: {_text(one)}" for step, one in weak.items()),
        values=", ".join(f"{name}: {_text(cell.passes())}" for name, cell in order.items()),
        differences=differences,
    )


def _text(passes: Estimate | None) -> str:
    return str(printed(passes, Column("passes", "NFE", 2)))


def _difference(more: Measured, fewer: Measured, first: int, second: int) -> Estimate:
    """Passes per item of one cell less the passes of another, each times its percentage."""
    # Whole numbers, so that rounding cannot turn a difference of exactly zero into a positive one.
    found = estimate_of(lambda a, b: (first * a["passes"] - second * b["passes"]) / (100 * a["items"]), more, fewer)
    assert found is not None
    # One item cannot tell how items differ.
    return found if more.done > 1 else Estimate(value=found.value)
