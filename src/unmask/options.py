"""Fields that a user sets: declared once with their default, help text and bounds; their values are checked by these.

Settings, servers, benchmarks and policies are frozen dataclasses of such fields; a YAML file may hold their values. A
message is one line that names the field and its value. Bounds are `within` an interval such as "(0, 1]", a `least`
whole number, perhaps a `most`, or `choices` of words.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, field, fields
from inspect import get_annotations
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from unmask.errors import UnknownName, UnmaskError, WrongOption

T = TypeVar("T")
_TYPES = {bool: "boolean", int: "integer", float: "number"}


def option(default: Any, about: str, *names: str, metavar: str | None = None, **bounds: Any) -> Any:
    """A field with its default, help text and bounds; on the command line, a flag with these names.

    A name in capitals is that of an argument. A bool with a single name can only be turned on. `metavar` stands for the
    value on the help page.
    """
    return field(default=default, metadata={"help": about, "bounds": bounds, "names": names, "metavar": metavar})


def parameter(default: Any, **bounds: Any) -> Any:
    """A field of a policy with its default and bounds."""
    return field(default=default, metadata={"bounds": bounds})


def documented(cls: type[T]) -> type[T]:
    """Add every field's help text to the docstring of the class, for `help`."""
    told = [f"        {item.name}: {item.metadata['help']}" for item in fields(cls)]  # ty: ignore[invalid-argument-type]
    cls.__doc__ = "\n".join([f"{cls.__doc__}\n\n    Attributes:", *told, "    "])
    return cls


def hints_of(kind: Any) -> Mapping[str, Any]:
    """The types of the fields of a class by name."""
    return ChainMap(*(get_annotations(each, eval_str=True) for each in kind.__mro__))


def kind_of(hint: Any) -> tuple[Any, bool]:
    """The type of a field's value, and whether there are several: of `int | None`, an int; of `Sequence[int]`, ints."""
    return (*get_args(hint), hint)[0], get_origin(hint) is Sequence


def described(owner: Any) -> list[dict[str, Any]]:
    """The fields of a dataclass for a form: name, type, default, and the help text and bounds that are known."""
    hints = hints_of(type(owner))
    return [_described(item, hints[item.name]) for item in fields(owner) if item.init]


def _described(item: Field[Any], hint: Any) -> dict[str, Any]:
    kind, several = kind_of(hint)
    name = ("integers" if kind is int else "texts") if several else _TYPES.get(kind, "text")
    default = None if item.default is MISSING else list(item.default) if several else item.default
    about = {key: value for key, value in item.metadata.items() if key == "help"} | item.metadata.get("bounds", {})
    return {"name": item.name, "type": name, "optional": type(None) in get_args(hint), "default": default} | about


def check_bounds(owner: Any, kind: Any = None) -> None:
    """Every field keeps to its bounds, or is None if that is its default; a flag is true or false.

    The fields are those of the owner, or of the dataclass `kind` that it stands for.
    """
    for item in fields(kind or owner):
        value, bounds = getattr(owner, item.name), item.metadata.get("bounds", {})
        if isinstance(item.default, bool) and not isinstance(value, bool):
            raise WrongOption(item.name, f"must be true or false, got {value!r}")
        if isinstance(item.default, tuple):
            if item.default and not value:
                raise WrongOption(item.name, "must not be empty")
            for each in value:
                checked(item.name, each, **bounds)
        elif bounds and not (value is None and item.default is None):
            object.__setattr__(owner, item.name, checked(item.name, value, **bounds))


def checked(
    name: str,
    value: Any,
    *,
    within: str = "",
    least: int | None = None,
    most: int | None = None,
    choices: Sequence[str] = (),
) -> Any:
    """The value, if it keeps to the bounds. A number within an interval is given back as a float."""
    if choices and value not in choices:
        raise UnknownName(name, str(value), choices)
    whole = isinstance(value, int) and not isinstance(value, bool)
    if least is not None and not (whole and least <= value <= (value if most is None else most)):
        wanted = f"of at least {least}" if most is None else f"in [{least}, {most}]"
        raise WrongOption(name, f"must be a whole number {wanted}, got {value!r:.80}")
    return _within(name, value, within) if within else value


def _within(name: str, value: Any, within: str) -> float:
    low, high = (float(bound) for bound in within[1:-1].split(","))
    number = math.nan
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
    return number


def read_mapping(path: Path, what: str, keys: str) -> dict[Any, Any]:
    """The mapping in the file. Errors call it `what`, and give examples of its `keys`."""
    import yaml

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnmaskError(f"cannot read the {what} {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UnmaskError(f"the {what} {path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise UnmaskError(f"the {what} {path} must be a mapping of {keys}")
    return values
