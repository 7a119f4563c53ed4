"""What a row does otherwise than published, which a table must not hide behind a policy's name."""

from __future__ import annotations

from functools import cache
from typing import Any

from unmask.errors import UnknownName, UnmaskError
from unmask.report.measured import Measured
from unmask.settings import Settings

# Tables have titles or columns for these; a seed changes nothing about the rule.
SAID_ELSEWHERE = ("max_tokens", "block_size", "seed")


def traits(cell: Measured) -> dict[str, Any]:
    """Everything that a label may have to say: parameters of the policy, then settings."""
    settings = {key: value for key, value in cell.cell.settings.items() if key not in ("block_size", "seed")}
    return {key: value for key, value in cell.cell.policy.items() if key != "name"} | settings


def changes(cell: Measured, *but: str) -> dict[str, Any]:
    """The traits that differ from the preset of that policy for that model and task, apart from those named.

    Of a policy that is not installed here nothing is known, and every parameter is told.
    """
    usual = _usual(cell.policy, cell.cell.model, cell.cell.family, cell.cell.task)
    left_out = {*SAID_ELSEWHERE, *but}
    found = {key: value for key, value in traits(cell).items() if key not in left_out}
    return {key: value for key, value in found.items() if key not in usual or not _same(usual[key], value)}


def named(cell: Measured, *but: str) -> str:
    """The policy with its changes, e.g. 'mean_field (threshold=0.5)'."""
    return with_traits(cell.policy, changes(cell, *but))


def with_traits(name: str, said: dict[str, Any]) -> str:
    return f"{name} ({', '.join(f'{key}={value}' for key, value in said.items())})" if said else name


@cache
def _usual(policy: str, model: str, family: str, task: str) -> dict[str, Any]:
    from unmask import policies
    from unmask.policies.presets import TASKS

    column = task if task in TASKS else None
    usual = Settings().to_dict()
    try:
        policies.preset(policy, model, column)
        known = model
    except UnknownName:
        return usual
    except UnmaskError:  # a name that does not tell the family
        known = family
    return (
        usual
        | policies.preset_settings(policy, known, column)
        | policies.describe(policies.preset(policy, known, column))
    )


def _same(usual: Any, value: Any) -> bool:
    """Equal as the files of a run know them: a tuple comes back from there as a list."""
    return (list(usual) if isinstance(usual, tuple) else usual) == (list(value) if isinstance(value, tuple) else value)
