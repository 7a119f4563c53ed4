"""Which cells belong together: copies, sweeps, the variants of an ablation, and a cell with its baseline."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from unmask.report import statistics
from unmask.report.measured import Measured, Sums, common_items, estimate_of, value_of
from unmask.report.statistics import Estimate, Paired

Thing = TypeVar("Thing")
Cells = Sequence[Measured]

BASELINES = ("entropy", "fixed")
BASELINE, NONE, UNIFORM = "one token a pass", "no pairwise interaction", "uniform interaction matrix"
ONE_SHOT, FULL = "one-shot update, R = 1", "mean-field"
VARIANTS = {("none", 2): NONE, ("uniform", 2): UNIFORM, ("jsd", 1): ONE_SHOT, ("jsd", 2): FULL}


def groups(things: Iterable[Thing], key: Callable[[Thing], Any]) -> list[list[Thing]]:
    """Things with equal keys together, in the order of their first appearance."""
    found: dict[Any, list[Thing]] = {}
    for thing in things:
        found.setdefault(key(thing), []).append(thing)
    return list(found.values())


def identity(cell: Measured, *left_out: str) -> str:
    """Everything that makes a measurement, without these fields of the cell, its policy and its settings."""
    plain: dict[str, Any] = cell.cell.to_dict() | {"weights": cell.about.get("weights")}
    plain |= {part: {k: v for k, v in plain[part].items() if k not in left_out} for part in ("policy", "settings")}
    # The paper's values stand beside some settings of a sweep and not beside others.
    return json.dumps({key: value for key, value in plain.items() if key not in ("paper", *left_out)}, sort_keys=True)


def questions(cell: Measured) -> tuple[Any, ...]:
    """What must be equal for two cells to answer the same items from the same prompts with the same weights."""
    asked = cell.cell
    return asked.model, asked.task, asked.shots, asked.template, asked.items, asked.seed, cell.about.get("weights")


def unique(cells: Cells, *left_out: str) -> list[Measured]:
    """Each cell once, in its most finished form: studies share cells, and several runs may hold them."""
    same = groups(cells, lambda cell: identity(cell, *left_out))
    return [max(copies, key=lambda cell: (cell.complete, cell.done)) for copies in same]


def without_copies(cells: Cells) -> list[Measured]:
    """Each measurement once, in its longest form. A cell that was measured twice stays twice.

    A run that reuses the cell of another holds the same items with the same times; the first item is compared.
    """
    found: list[Measured] = []
    for same in groups(cells, identity):
        begun = [cell for cell in same if cell.done] or same[:1]
        for copies in groups(begun, lambda cell: (cell.ids[:1], *(c[:1].sum() for c in cell.columns.values()))):
            found.append(max(copies, key=lambda cell: (cell.done, "taken_from" not in cell.about)))
    return [cell for cell in cells if cell in found]


def sweeps(cells: Cells, knob: str) -> list[list[Measured]]:
    """Groups of two cells or more that differ in nothing but the knob, sorted by its value, one for each value."""
    having = [cell for cell in cells if (cell.cell.settings | cell.cell.policy).get(knob) is not None]
    same = groups(having, lambda cell: identity(cell, knob))
    values = [{value_of(cell, knob): cell for cell in reversed(group)} for group in same]
    return [[by_value[value] for value in sorted(by_value)] for by_value in values if len(by_value) > 1]


def sweep_of(cells: Cells, knob: str) -> list[Measured]:
    """The longest sweep of mean-field with the paper's interaction; empty where the knob was not turned."""
    full = [c for c in cells if c.policy == "mean_field" and c.cell.policy.get("interaction", "jsd") == "jsd"]
    return max(sweeps(full, knob), key=len, default=[])


def ablations(cells: Cells) -> list[dict[str, Measured]]:
    """The variants of mean-field at one setting, after their baseline, where there are two variants or more."""
    found = []
    fields = [cell for cell in cells if cell.policy == "mean_field"]
    for same in groups(fields, lambda cell: identity(cell, "interaction", "iterations")):
        parameters = [(c.cell.policy.get("interaction", "jsd"), c.cell.policy.get("iterations", 2)) for c in same]
        variants = dict(zip(map(VARIANTS.get, parameters), same, strict=True))
        known = {name: variants[name] for name in VARIANTS.values() if name in variants}
        baseline = baseline_of(same[0], cells)
        found += [({BASELINE: baseline} if baseline else {}) | known] if len(known) > 1 else []
    return found


def is_one_token_a_pass(cell: Measured) -> bool:
    policy = cell.cell.policy
    return cell.policy in BASELINES and policy.get("tokens_per_pass", 1) == 1 and policy.get("passes") is None


def baseline_of(cell: Measured, cells: Cells) -> Measured | None:
    """The cell that answers the same questions at the same length with one token a pass.

    Among several: one of the same run, and there of the same device, dtype and batch size; then the one with the same
    cache, early stop and block, then the one with the most passes, then `entropy`, the paper's own.
    """
    settings = cell.cell.settings

    def rank(other: Measured) -> tuple[Any, ...]:
        here = other.run == cell.run, other.speed_key == cell.speed_key
        same = [other.cell.settings.get(key) == settings.get(key) for key in ("cache", "early_stop", "block_size")]
        passes = float(other.columns["passes"].mean()) if other.done else 0.0
        return *here, *same, passes, other.policy == BASELINES[0]

    slow = [other for other in cells if is_one_token_a_pass(other) and questions(other) == questions(cell)]
    fitting = [other for other in slow if other.cell.settings["max_tokens"] == settings["max_tokens"]]
    return max(fitting, key=rank, default=None)


def speedup(cell: Measured, baseline: Measured | None, count: str = "reference") -> Estimate | None:
    """TPS over the baseline's on the items that both have finished; None where they were not timed alike."""
    if baseline is None or (baseline.run, baseline.speed_key) != (cell.run, cell.speed_key):
        return None

    def ratio(ours: Sums, theirs: Sums) -> Any:
        return (ours[count] / ours["seconds"]) / (theirs[count] / theirs["seconds"])

    found = estimate_of(ratio, cell, baseline, of_time=True) if cell.timed and baseline.timed else None
    return Estimate(value=1.0) if found and cell is baseline else found


def paired(cell: Measured, baseline: Measured | None) -> Paired | None:
    """The exact test against the baseline on shared items; None where scores are not right or wrong."""
    if baseline is None or cell is baseline or cell.cell.headline != baseline.cell.headline:
        return None
    ids = common_items([cell, baseline])
    ours, theirs = cell.of_items("correct", ids), baseline.of_items("correct", ids)
    exact = len(ours) and np.isin([ours, theirs], (0.0, 1.0)).all()
    return statistics.mcnemar(ours, theirs) if exact else None
