"""Flags of a command made from the fields of a dataclass: name, type, default and help text are declared once."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import wraps
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer


def with_flags(
    kind: Any, heading: str = "Options", *, without: Sequence[str] = (), **defaults: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flag for every field of `kind` that has a help text; its first argument is the `kind` itself.

    `heading` is that of the flags on the help page; `defaults` replace those of the fields.
    """
    hints = get_type_hints(kind)
    order = [name for each in kind.__mro__ for name in inspect.get_annotations(each)]  # its own before inherited ones
    shown = [item for item in fields(kind) if item.metadata and item.name not in without]
    shown.sort(key=lambda item: order.index(item.name))
    flags = [_parameter(item, hints[item.name], defaults.get(item.name, item.default), heading) for item in shown]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        first, *own = inspect.signature(command, eval_str=True).parameters.values()

        @wraps(command)
        def wrapper(**values: Any) -> None:
            typed = {item.name: values.pop(item.name) for item in shown}
            made = kind(**defaults | {name: value for name, value in typed.items() if value is not None})
            command(**{first.name: made}, **values)

        keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
        wrapper.__signature__ = inspect.Signature([*keyword, *flags])  # ty: ignore[missing-attribute]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *flags]}
        del wrapper.__wrapped__
        return wrapper

    return decorate


def _parameter(item: Any, hint: Any, default: Any, heading: str) -> inspect.Parameter:
    if get_origin(hint) is Sequence:
        hint = list[get_args(hint)[0]]  # ty: ignore[invalid-type-form]
    help_text, names, more = item.metadata["help"], item.metadata.get("names", ()), dict(item.metadata.get("more", {}))
    switch = names and default is False  # it can only be turned on
    if default is not None and default != () and not switch:
        help_text += f" [default: {_in_words(default)}]"
    make = typer.Argument if more.pop("argument", False) else typer.Option
    more["rich_help_panel"] = heading
    kinds = {int: "N", float: "X", str: "TEXT"}
    kind = next((kind for kind in kinds if kind in (hint, *get_args(hint))), None)
    more.setdefault("metavar", kinds.get(kind))
    annotation = Annotated[hint | None, make(*names, help=help_text, **more)]
    return inspect.Parameter(item.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _in_words(default: Any) -> str:
    if isinstance(default, tuple):
        return ", ".join(map(str, default))
    if isinstance(default, float):
        return f"{default:g}"
    return str(default).lower() if isinstance(default, bool) else str(default)
