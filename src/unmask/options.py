"""Fields that a user sets: how they are declared, with a help text, and how their values are checked.

Settings, servers, benchmarks and policies are frozen dataclasses of such fields. A message is one line that names the
field and its value.
"""

from __future__ import annotations

import math
import types
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import MISSING, field, fields, replace
from inspect import get_annotations
from typing import Any, TypeVar, Union, get_args, get_origin

from unmask.errors import UnknownName, WrongOption

T = TypeVar("T")


def option(default: Any, about: str, *names: str, **more: Any) -> Any:
    """A field with its default and help text; on the command line, with these names and what else click takes.

    A name in capitals is that of an argument. A bool with a single name can only be turned on.
    """
    return field(default=default, metadata={"help": about, "names": names, "more": more})


def parameter(default: Any, **bounds: Any) -> Any:
    """A field of a policy with its default and bounds: `within` an interval, a `least` whole number, or `choices`."""
    return field(default=default, metadata={"bounds": bounds})


def check_bounds(owner: Any) -> None:
    """Every field that is a `parameter` keeps to its bounds, or is None if that is its default; flags are flags."""
    for item in fields(owner):
        bounds, optional = item.metadata.get("bounds", {}), item.default is None
        if "within" in bounds:
            check_number(owner, item.name, **bounds, optional=optional)
        elif "least" in bounds:
            check_whole(owner, item.name, **bounds, optional=optional)
        elif "choices" in bounds:
            check_choice(owner, item.name, **bounds, optional=optional)
        elif isinstance(item.default, bool):
            check_flag(owner, item.name)


def documented(cls: type[T]) -> type[T]:
    """Add every field's help text to the docstring of the class, for `help`."""
    told = [f"        {item.name}: {item.metadata['help']}" for item in fields(cls)]  # ty: ignore[invalid-argument-type]
    cls.__doc__ = "\n".join([f"{cls.__doc__}\n\n    Attributes:", *told, "    "])
    return cls


# What the checks below were told of each field, where that is asked for.
_told: ContextVar[dict[str, dict[str, Any]] | None] = ContextVar("told", default=None)
_TYPES = {bool: "boolean", int: "integer", float: "number"}


def described(owner: Any) -> list[dict[str, Any]]:
    """The fields of a dataclass for a form: name, type, default, and the help text, choices and bounds that are known.

    Bounds are what its class checks when it is built; it is built anew to hear them.
    """
    with _listening() as told:
        replace(owner)
    hints: dict[str, Any] = {}
    for kind in reversed(type(owner).__mro__):
        hints |= get_annotations(kind, eval_str=True)
    return [_described(item, hints[item.name]) | told.get(item.name, {}) for item in fields(owner) if item.init]


def _described(item: Any, hint: Any) -> dict[str, Any]:
    optional = get_origin(hint) in (Union, types.UnionType)
    kinds = [kind for kind in (get_args(hint) if optional else (hint,)) if kind is not type(None)]
    listed = get_origin(kinds[0]) is Sequence
    name = ("integers" if get_args(kinds[0]) == (int,) else "texts") if listed else _TYPES.get(kinds[0], "text")
    default = None if item.default is MISSING else list(item.default) if listed else item.default
    about = {"help": item.metadata["help"]} if "help" in item.metadata else {}
    return {"name": item.name, "type": name, "optional": optional, "default": default} | about


@contextmanager
def _listening() -> Generator[dict[str, dict[str, Any]]]:
    token = _told.set(found := {})
    try:
        yield found
    finally:
        _told.reset(token)


def _tell(names: Sequence[str], **bounds: Any) -> None:
    if (told := _told.get()) is not None:
        told.update(dict.fromkeys(names, bounds))


def check_number(owner: Any, *names: str, within: str, optional: bool = False) -> None:
    """Each named field is a number in an interval such as `(0, 1]`, or None where that is allowed.

    A whole number is stored as a float.
    """
    _tell(names, within=within)
    low, high = (float(bound) for bound in within[1:-1].split(","))
    for name in names:
        value, number = getattr(owner, name), math.nan
        if value is None and optional:
            continue
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                number = float(value)
            except OverflowError as error:
                raise WrongOption(name, f"is too large: {value!r:.40}...") from error
        above_low = low < number or (within[0] == "[" and low == number)
        below_high = number < high or (within[-1] == "]" and number == high)
        if not (above_low and below_high):
            wanted = f"of at least {low:g}" if within[0] == "[" and high == math.inf else f"in {within}"
            raise WrongOption(name, f"must be a number {wanted}, got {value!r:.80}")
        object.__setattr__(owner, name, number)


def check_whole(owner: Any, *names: str, least: int, optional: bool = False) -> None:
    """Each named field is a whole number of at least `least`, or None where that is allowed."""
    _tell(names, least=least)
    for name in names:
        value = getattr(owner, name)
        if value is None and optional:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise WrongOption(name, f"must be a whole number of at least {least}, got {value!r:.80}")


def check_flag(owner: Any, *names: str) -> None:
    """Each named field is true or false."""
    for name in names:
        value = getattr(owner, name)
        if not isinstance(value, bool):
            raise WrongOption(name, f"must be true or false, got {value!r}")


def check_choice(owner: Any, name: str, choices: Sequence[str], *, optional: bool = False) -> None:
    """The field is one of a few words, or None where that is allowed."""
    _tell([name], choices=list(choices))
    value = getattr(owner, name)
    if value not in choices and not (optional and value is None):
        raise UnknownName(name, str(value), choices)
