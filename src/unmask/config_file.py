"""`--config FILE.yaml` for a command: its keys are the command's flags, and flags that were typed win."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

import typer

from unmask.errors import UnmaskError, check_known
from unmask.yaml_file import read_mapping

_HELP = "YAML file with flags of this command as keys (max-tokens: 64); flags that are typed win."
_FLAG = Annotated[Path | None, typer.Option("--config", metavar="FILE", help=_HELP)]
_IN_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text (in quotes)"}


def with_config_file(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command whose flags are all None by default the flag `--config`."""
    flags = inspect.signature(command).parameters

    @wraps(command)
    def wrapper(config_file: Path | None = None, **typed: Any) -> None:
        given = {} if config_file is None else _read(config_file, flags)
        command(**typed | {name: value for name, value in given.items() if typed[name] is None})

    own = inspect.Parameter("config_file", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_FLAG)
    wrapper.__signature__ = inspect.Signature([own, *flags.values()])  # ty: ignore[missing-attribute]
    wrapper.__annotations__ = {"config_file": _FLAG} | {name: flag.annotation for name, flag in flags.items()}
    del wrapper.__wrapped__
    return wrapper


def _read(path: Path, flags: Any) -> dict[str, Any]:
    """The values in the file, by the names of the command's parameters."""
    known = {name.strip("_").replace("_", "-"): name for name in flags}
    found: dict[str, Any] = {}
    for key, value in read_mapping(path, "config", "flags such as model, port and policy").items():
        word = str(key).replace("_", "-")
        check_known(f"key in {path}", [word], known)
        if known[word] in found:
            raise UnmaskError(f"{path} gives {key} twice")
        if value is not None:
            found[known[word]] = _checked(f"{key} in {path}", value, get_args(flags[known[word]].annotation)[0])
    return found


def _checked(place: str, value: Any, hint: Any) -> Any:
    """The value, if it is of the flag's type; one value may stand for a list of one."""
    kind = next(found for found in get_args(hint) if found is not NoneType)
    if get_origin(kind) is list:
        several, (each,) = value if isinstance(value, list) else [value], get_args(kind)
        return [_checked(place, one, each | None) for one in several]
    fits = isinstance(value, int | float if kind is float else kind)
    if not fits or (isinstance(value, bool) and kind is not bool):
        raise UnmaskError(f"{place} must be {_IN_WORDS[kind]}, got {value!r:.80}")
    try:
        return kind(value)
    except OverflowError as error:
        raise UnmaskError(f"{place} is too large: {value!r:.40}...") from error
