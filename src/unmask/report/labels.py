"""Names of rows: the policy, with everything that differs from how it was published. A table must show it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from json import dumps
from typing import Any

from unmask import policies
from unmask.errors import UnknownName
from unmask.policies.presets import TASKS
from unmask.report.measured import Measured, value_of
from unmask.settings import Settings


def changes(cell: Measured, *known: str) -> dict[str, Any]:
    """The parameters and settings that differ from the preset of that policy for that model and task.

    The `known` ones are left out, and the length and the block, which titles and columns show. A policy that is not
    installed here has no preset: all of its parameters count.
    """
    usual = _usual(cell.policy, f"{cell.cell.family}/{cell.cell.model}", cell.cell.task)
    own = {key: value for key, value in _parameters(cell).items() if key not in ("max_tokens", *known)}
    # As JSON, for a tuple comes back from a file as a list.
    return {key: value for key, value in own.items() if key not in usual or dumps(usual[key]) != dumps(value)}


def with_parameters(name: str, shown: dict[str, Any]) -> str:
    """A name and its parameters, e.g. 'mean_field (threshold=0.5)'."""
    return f"{name} ({', '.join(f'{key}={value}' for key, value in shown.items())})" if shown else name


def labels(cells: Sequence[Measured], *, block: bool = False) -> dict[Measured, str]:
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
