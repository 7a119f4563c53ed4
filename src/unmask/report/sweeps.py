"""Which cells differ in one thing only: the rows of an ablation, a sensitivity study or a comparison of block sizes."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from unmask.report.measured import Measured, baseline_of, is_one_token_a_pass, value_of
from unmask.report.results import groups

VARIANTS = {
    "baseline": "one token a pass",
    "none": "no pairwise interaction",
    "uniform": "uniform interaction matrix",
    "one_shot": "one-shot update, R = 1",
    "full": "mean-field",
}


def unique(cells: Sequence[Measured]) -> list[Measured]:
    """Each cell once, in its most finished form: studies share cells, and several runs may hold them."""
    return [max(same, key=lambda cell: cell.done) for same in groups(cells, _measurement)]


def without_copies(cells: Sequence[Measured]) -> list[Measured]:
    """Each measurement once: a run that took over the cells of another holds the very same items, times included.

    The same cell, measured twice, stays two.
    """
    found: list[Measured] = []
    for same in groups(cells, _measurement):
        kept: list[Measured] = []
        for cell in sorted(same, key=lambda cell: ("taken_from" in cell.about, -cell.done)):
            if not any(_holds(other, cell) or _holds(cell, other) for other in kept):
                kept.append(cell)
        # Of a copy that went on by itself the longer one counts.
        for one in kept:
            copies = [cell for cell in same if _holds(cell, one)]
            found.append(max(copies, key=lambda cell: (cell.done, "taken_from" not in cell.about)))
    return [cell for cell in cells if cell in found]


def _holds(cell: Measured, other: Measured) -> bool:
    """Whether every item of the other is one of the cell's, with equal numbers."""
    place = {number: at for at, number in enumerate(cell.ids)}
    if not place.keys() >= set(other.ids):
        return False
    at = [place[number] for number in other.ids]
    ours, theirs = cell.columns | cell.scores, other.columns | other.scores
    return all(name in ours and np.array_equal(ours[name][at], theirs[name]) for name in theirs if other.ids)


def _measurement(cell: Measured) -> tuple[str, str | None]:
    return cell.cell.key, cell.about.get("weights")


def merged(cells: Sequence[Measured]) -> list[Measured]:
    """Each question once, whichever device answered it: neither answers nor passes are meant to depend on that."""

    def asked(cell: Measured) -> str:
        return json.dumps(
            cell.cell.to_dict() | dict.fromkeys(("device", "dtype", "batch_size", "paper")), sort_keys=True
        )

    same_weights = groups(cells, lambda cell: (asked(cell), cell.about.get("weights")))
    return [max(same, key=lambda cell: (cell.complete, cell.done)) for same in same_weights]


def sweeps(cells: Sequence[Measured], knob: str) -> list[list[Measured]]:
    """Groups of two cells or more that differ in nothing but the knob, sorted by its value, one for each value."""
    having = [cell for cell in unique(cells) if (cell.cell.settings | cell.cell.policy).get(knob) is not None]
    found = []
    for same in groups(having, lambda cell: rest(cell, knob)):
        values = {value_of(cell, knob): cell for cell in reversed(same)}
        found.append([values[value] for value in sorted(values)])
    return [sweep for sweep in found if len(sweep) > 1]


def rest(cell: Measured, *knobs: str) -> str:
    """Everything that makes a cell, without those parameters."""
    plain = cell.cell.to_dict()
    for part in ("policy", "settings"):
        plain[part] = {key: value for key, value in plain[part].items() if key not in knobs}
    # The paper's values stand beside some settings of a sweep and not beside others.
    return json.dumps(plain | {"paper": None}, sort_keys=True)


def is_full(cell: Measured) -> bool:
    """Mean-field with the paper's interaction."""
    return cell.policy == "mean_field" and cell.cell.policy.get("interaction", "jsd") == "jsd"


def sweep_of(cells: Sequence[Measured], knob: str) -> list[Measured]:
    """The longest sweep of full mean-field; empty where the knob was not turned."""
    return max(sweeps([cell for cell in cells if is_full(cell)], knob), key=len, default=[])


def ablations(cells: Sequence[Measured]) -> list[dict[str, Measured]]:
    """The variants of mean-field at one setting, each with its baseline, wherever two variants or more are there."""
    pool = unique(cells)
    fields = [cell for cell in pool if cell.policy == "mean_field"]
    found = []
    for same in groups(fields, lambda cell: rest(cell, "interaction", "iterations")):
        named = {name: cell for cell in same if (name := _variant(cell)) is not None}
        if len(named) > 1:
            baseline = baseline_of(same[0], pool) or _baseline_elsewhere(same[0], pool)
            found.append(({"baseline": baseline} if baseline else {}) | named)
    return [{name: named[name] for name in VARIANTS if name in named} for named in found]


def _variant(cell: Measured) -> str | None:
    interaction, iterations = cell.cell.policy.get("interaction", "jsd"), cell.cell.policy.get("iterations", 2)
    if interaction in ("none", "uniform"):
        return interaction if iterations == 2 else None
    return {1: "one_shot", 2: "full"}.get(iterations)


def _baseline_elsewhere(cell: Measured, pool: Sequence[Measured]) -> Measured | None:
    """A baseline that differs from the cell in its policy alone, of any run: passes do not depend on the run."""
    names = set(cell.cell.policy)
    same = [
        other for other in pool if is_one_token_a_pass(other) and rest(other, *other.cell.policy) == rest(cell, *names)
    ]
    return max(same, key=lambda other: other.policy == "entropy", default=None)
