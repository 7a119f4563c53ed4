"""Checks of a policy's parameters, made when it is built; a message is one line that names parameter and value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unmask.errors import UnknownName, UnmaskError


def check_number(policy: Any, *names: str, within: str) -> None:
    """Each named field is a number in an interval such as `(0, 1]`; a whole number is stored as a float."""
    low, high = (float(bound) for bound in within[1:-1].split(","))
    for name in names:
        value = getattr(policy, name)
        inside = isinstance(value, int | float) and not isinstance(value, bool)
        inside = inside and (low < value or (within[0] == "[" and low == value))
        inside = inside and (value < high or (within[-1] == "]" and value == high))
        if not inside:
            raise UnmaskError(f"{name} must be a number in {within}, got {value!r}")
        object.__setattr__(policy, name, float(value))


def check_whole(policy: Any, name: str, *, least: int, optional: bool = False) -> None:
    """The field is a whole number of at least `least`, or None where that is allowed."""
    value = getattr(policy, name)
    if value is None and optional:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise UnmaskError(f"{name} must be a whole number of at least {least}, got {value!r}")


def check_flag(policy: Any, name: str) -> None:
    """The field is true or false."""
    value = getattr(policy, name)
    if not isinstance(value, bool):
        raise UnmaskError(f"{name} must be true or false, got {value!r}")


def check_choice(policy: Any, name: str, choices: Sequence[str]) -> None:
    """The field is one of a few words."""
    value = getattr(policy, name)
    if value not in choices:
        raise UnknownName(name, str(value), choices)
