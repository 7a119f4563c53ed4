"""Which cells belong together, what they are called, and how two of them compare.

A name is the policy with everything that differs from how it was published: a table must show it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache
from typing import Any

import numpy as np

from unmask import policies
from unmask.errors import UnknownName
from unmask.policies.presets import TASKS
from unmask.report.measured import Measured, Paired, common_items, mcnemar
from unmask.settings import Settings

Cells = Sequence[Measured]

BASELINES = ("entropy", "fixed")
BASELINE, NONE, UNIFORM = "one token a pass", "no pairwise interaction", "uniform interaction matrix"
ONE_SHOT, FULL = "one-shot update, R = 1", "mean-field"
VARIANTS = {("none", 2): NONE, ("uniform", 2): UNIFORM, ("jsd", 1): ONE_SHOT, ("jsd", 2): FULL}


def groups(cells: Cells, key: Callable[[Measured], Any]) -> list[list[Measured]]:
    """Cells with equal keys together, in the order of their first appearance."""
    found: dict[Any, list[Measured]] = {}
    for cell in cells:
        found.setdefault(key(cell), []).append(cell)
    return list(found.values())


def identity(cell: Measured, left_out: Sequence[str] = ()) -> str:
    """Everything that makes a measurement, without these fields of the cell, its policy and its settings."""
    plain: dict[str, Any] = asdict(cell.cell) | {"weights": cell.about.get("weights")}
    plain |= {part: {k: v for k, v in plain[part].items() if k not in left_out} for part in ("policy", "settings")}
    # The paper's values stand beside some settings of a sweep and not beside others.
    return json.dumps({key: value for key, value in plain.items() if key not in ("paper", *left_out)}, sort_keys=True)


def measurement(cell: Measured) -> tuple[Any, ...]:
    """The identity and the first item, whose times tell a cell that was measured again from one that was reused."""
    return identity(cell), cell.ids[:1], *(float(column[:1].sum()) for column in cell.columns.values())


def questions(cell: Measured) -> tuple[Any, ...]:
    """What must be equal for two cells to answer the same items from the same prompts with the same weights."""
    asked = cell.cell
    return asked.model, asked.task, asked.shots, asked.template, asked.items, asked.seed, cell.about.get("weights")


def unique(cells: Cells, key: Callable[[Measured], Any] = identity) -> list[Measured]:
    """Each cell once, in its most finished form: studies share cells, and several runs may hold them."""
    return [max(same, key=lambda c: (c.complete, c.done, "taken_from" not in c.about)) for same in groups(cells, key)]


def value_of(cell: Measured, knob: str) -> Any:
    """The value of a parameter of the policy or of the settings. A block is at most as long as the answer."""
    value: Any = (cell.cell.settings | cell.cell.policy).get(knob)
    return min(value, cell.cell.settings["max_tokens"]) if knob == "block_size" else value


def sweeps(cells: Cells, knob: str) -> list[list[Measured]]:
    """Groups of two cells or more that differ in nothing but the knob, sorted by its value, one for each value."""
    same = groups([c for c in cells if value_of(c, knob) is not None], lambda cell: identity(cell, [knob]))
    values = [{value_of(cell, knob): cell for cell in reversed(group)} for group in same]
    return [[by_value[value] for value in sorted(by_value)] for by_value in values if len(by_value) > 1]


def sweep_of(cells: Cells, knob: str) -> list[Measured]:
    """The longest sweep of mean-field with the paper's interaction; empty where the knob was not turned."""
    full = [cell for cell in cells if cell.policy == "mean_field" and value_of(cell, "interaction") == "jsd"]
    return max(sweeps(full, knob), key=len, default=[])


def ablations(cells: Cells, pool: Cells) -> list[dict[str, Measured]]:
    """The variants of mean-field at one setting, after their baseline, where there are two variants or more."""
    found = []
    fields = [cell for cell in cells if cell.policy == "mean_field"]
    for same in groups(fields, lambda cell: identity(cell, ["interaction", "iterations"])):
        variants = {VARIANTS.get((value_of(c, "interaction"), value_of(c, "iterations"))): c for c in same}
        known = {name: variants[name] for name in VARIANTS.values() if name in variants}
        baseline = baseline_of(same[0], pool)
        found += [({BASELINE: baseline} if baseline else {}) | known] if len(known) > 1 else []
    return found


def is_one_token_a_pass(cell: Measured) -> bool:
    policy = cell.cell.policy
    return cell.policy in BASELINES and policy["tokens_per_pass"] == 1 and policy["passes"] is None


def baseline_of(cell: Measured, cells: Cells) -> Measured | None:
    """The cell that answers the same questions at the same length with one token a pass.

    Among several: one of the same run, and there of the same device, dtype and batch size; then the one with the same
    cache, early stop and block, then `entropy`, the paper's own.
    """

    def rank(other: Measured) -> list[bool]:
        same = [value_of(other, key) == value_of(cell, key) for key in ("cache", "early_stop", "block_size")]
        return [other.run == cell.run, other.speed_key == cell.speed_key, *same, other.policy == BASELINES[0]]

    slow = [other for other in cells if is_one_token_a_pass(other) and questions(other) == questions(cell)]
    fitting = [other for other in slow if value_of(other, "max_tokens") == value_of(cell, "max_tokens")]
    return max(fitting, key=rank, default=None)


def paired(cell: Measured, baseline: Measured | None) -> Paired | None:
    """The exact test against the baseline on shared items; None where scores are not right or wrong."""
    if baseline is None or cell is baseline:
        return None
    ids = common_items([cell, baseline])
    ours, theirs = cell.of_items("correct", ids), baseline.of_items("correct", ids)
    exact = len(ids) and np.isin([ours, theirs], (0.0, 1.0)).all()
    return mcnemar(ours, theirs) if exact else None


def changes(cell: Measured, *known: str) -> dict[str, Any]:
    """The parameters and settings that differ from the preset of that policy for that model and task.

    The `known` ones are left out, and the length and the block, which titles and columns show. A policy that is not
    installed here has no preset: all of its parameters count.
    """
    usual = _usual(cell.policy, f"{cell.cell.family}/{cell.cell.model}", cell.cell.task)
    own = {key: value for key, value in _parameters(cell).items() if key not in ("max_tokens", *known)}
    # As JSON, for a tuple comes back from a file as a list.
    return {key: value for key, value in own.items() if key not in usual or json.dumps(usual[key]) != json.dumps(value)}


def with_parameters(name: str, shown: dict[str, Any]) -> str:
    """A name and its parameters, e.g. 'mean_field (threshold=0.5)'."""
    return f"{name} ({', '.join(f'{key}={value}' for key, value in shown.items())})" if shown else name


def labels(cells: Cells, *, block: bool = False) -> dict[Measured, str]:
    """A name for every cell: the policy, its changes, and what tells it from the other cells of that model and task.

    With `block`, the block size counts too: for a table with neither a title nor a column for it.
    """
    found = {}
    for cell in cells:
        asked, own, changed = cell.cell, _parameters(cell, block=block), changes(cell)
        beside = [c for c in cells if (c.cell.model, c.cell.task, c.policy) == (asked.model, asked.task, cell.policy)]
        others = [_parameters(other, block=block) for other in beside]
        shown = {k: v for k, v in own.items() if k in changed or any(other.get(k) != v for other in others)}
        if any(other is not cell and other.cell == asked for other in beside):
            shown["run"] = cell.run
        found[cell] = with_parameters(cell.policy, shown)
    return found


def _parameters(cell: Measured, *, block: bool = False) -> dict[str, Any]:
    """The parameters of the policy, then the settings that can change what is committed."""
    own = {key: value for key, value in cell.cell.policy.items() if key != "name"}
    own |= {key: value for key, value in cell.cell.settings.items() if key not in ("block_size", "seed")}
    return own | ({"block_size": value_of(cell, "block_size")} if block else {})


@cache
def _usual(policy: str, model: str, task: str) -> dict[str, Any]:
    column, usual = task if task in TASKS else None, Settings(cache="none").to_dict()
    with suppress(UnknownName):
        usual |= policies.preset_settings(policy, model, column)
        usual |= policies.describe(policies.preset(policy, model, column))
    return usual
