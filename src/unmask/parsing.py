"""Commands of the command line: their flags, their help pages, and one line on what is wrong with what was typed.

A parameter of a command, or a field of a dataclass that the command takes, is a flag if `option` declares it: name,
type, default and help text stand there and nowhere else.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import MISSING, Field, fields
from functools import wraps
from pathlib import Path
from typing import Any

import click

from unmask.errors import KEYWORD, UnknownName, UnmaskError, WrongOption, check_known
from unmask.options import checked, hints_of, kind_of
from unmask.yaml_file import read_mapping

Function = Callable[..., None]
_FLAG_COLUMN = 24  # letters of a flag beside its text; a longer one has its own line
_WANTED = {bool: "true or false", int: "a whole number", float: "a number", str: "a text (in quotes)", Path: "a path"}
_METAVARS = {int: "N", float: "X", str: "NAME", Path: "FILE"}


def with_flags(
    kind: Any, heading: str, *, without: Sequence[str] = (), **defaults: Any
) -> Callable[[Function], Function]:
    """Give a command a flag for every `option` of `kind`; its first argument is the `kind` itself.

    `heading` is that of the flags on the help page; `defaults` replace those of the fields.
    """
    known, hints = {item.name: item for item in fields(kind) if item.metadata}, hints_of(kind)
    names = [name for name in hints if name in known and name not in without]
    flags = [_flag(name, known[name], hints[name], defaults.get(name, known[name].default)) for name in names]

    def decorate(command: Function) -> Function:
        @wraps(command)
        def wrapper(*made: Any, **values: Any) -> None:
            command(kind(**{name: values.pop(name) for name in names}), *made, **values)

        return _add(wrapper, flags, heading)

    return decorate


def with_config_file(command: Function) -> Function:
    """Give a command the flag `--config FILE.yaml`: its keys are the command's flags, and flags that are typed win."""
    about = "YAML file with flags of this command as keys (max-tokens: 64); flags that are typed win."
    how: dict[str, Any] = {"is_eager": True, "expose_value": False, "callback": _read_config}
    return _add(command, [click.Option(["--config"], type=_Value(Path), help=about, **how)], "Options")


def _add(command: Function, flags: Sequence[click.Parameter], heading: str) -> Function:
    command.flags = {**getattr(command, "flags", {}), **dict.fromkeys(flags, heading)}  # ty: ignore[missing-attribute]
    return command


def _flag(name: str, declared: Field[Any], hint: Any, default: Any) -> click.Parameter:
    """The flag or argument of a field or parameter with that type and default."""
    (kind, several), about = kind_of(hint), declared.metadata
    names, metavar = about["names"], about["metavar"]
    if names and names[0].isupper():
        metavar, required = names[0] + "..." * several, default is MISSING
        how: dict[str, Any] = {"nargs": -1 if several else 1, "metavar": metavar if required else f"[{metavar}]"}
        return click.Argument([name], type=_Value(kind), required=required, help=about["help"], **how)
    how = {"default": default, "help": about["help"] + _default_in_words(default, names), "hidden": about["hidden"]}
    if kind is bool:
        return click.Option([name, *(names or [f"--{_word(name)}/--no-{_word(name)}"])], is_flag=True, **how)
    value = _Value(kind, **about["bounds"])
    return click.Option([name, *(names or [f"--{_word(name)}"])], type=value, metavar=metavar, multiple=several, **how)


def _default_in_words(default: Any, names: Sequence[str]) -> str:
    """The default as the help page has it; of a flag that can only be turned on, and of no value, nothing."""
    if default in (None, "", (), MISSING) or (default is False and len(names) == 1):
        return ""
    shown = [
        str(each).lower() if isinstance(each, bool) else f"{each:g}" if isinstance(each, float) else str(each)
        for each in (default if isinstance(default, tuple) else [default])
    ]
    return f" [default: {', '.join(shown)}]"


def _word(name: str) -> str:
    return name.strip("_").replace("_", "-")


class _Value(click.ParamType):
    """A value as it is typed, or as a YAML file has it."""

    def __init__(self, kind: Any, **bounds: Any) -> None:
        self.kind, self.bounds, self.name = kind, bounds, _METAVARS[kind]

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = str(value) if self.kind in (int, float) else value  # of YAML, 1.5 and true are no whole numbers
        try:
            if isinstance(text, str | self.kind):
                return checked(param.name if param else "", self.kind(text), **self.bounds)
        except WrongOption as error:
            self.fail(error.problem)
        except UnmaskError:
            raise
        except ValueError:
            pass
        repeated = "; the flag may be repeated" if "," in str(value) and getattr(param, "multiple", False) else ""
        return self.fail(f"must be {_WANTED[self.kind]}, got {value!r:.80}{repeated}")


def _read_config(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
    """Make what the file says the defaults of the command's flags."""
    flags = {
        _word(flag.name): flag for flag in ctx.command.params if isinstance(flag, click.Option) and flag is not param
    }
    ctx.default_map = found = {}
    for key, value in read_mapping(path, "config", "flags such as model, port and policy").items() if path else ():
        check_known(f"key in {path}", [_word(str(key))], flags)
        flag = flags[_word(str(key))]
        if flag.name in found:
            raise UnmaskError(f"{path} gives {key} twice")
        try:
            if flag.is_flag and not isinstance(value, bool | None):
                flag.type.fail(f"must be {_WANTED[bool]}, got {value!r:.80}")
            several = [value] if flag.multiple and not isinstance(value, list) else value
            if value is not None and isinstance(several, list) and None in several:
                flag.type.convert(None, flag, ctx)  # which fails; click would hand None on
            found[flag.name] = flag.default if value is None else flag.type_cast_value(ctx, several)
        except click.BadParameter as error:
            raise UnmaskError(f"{key} in {path} {error.message}") from error


class Command(click.Command):
    """A command named after its function. Its help page has headings, and nothing on it is cut, however narrow."""

    def __init__(self, function: Any) -> None:
        for each in inspect.signature(function, eval_str=True).parameters.values():
            if isinstance(each.default, Field):
                _add(function, [_flag(each.name, each.default, each.annotation, each.default.default)], "Options")
        self.headings: dict[click.Parameter, str] = getattr(function, "flags", {})
        super().__init__(_word(function.__name__), callback=function, params=[*self.headings], help=function.__doc__)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for param in self.get_params(ctx):
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)):
                sections.setdefault(self.headings.get(param, "Options"), []).append(record)
        for heading, rows in sections.items():
            with formatter.section(heading):
                formatter.write_dl(rows, col_max=_FLAG_COLUMN)


class Group(click.Group):
    """A group of commands, each listed with the first line of what it does."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, (each.help or "").partition("\n")[0]) for name, each in self.commands.items()])


def in_flags(error: UnmaskError, flags: Collection[str]) -> str:
    """An error of the library, in the words of a command with these flags."""
    message = error.flags or str(error)
    if isinstance(error, WrongOption):
        way = "--set " if "--set" in flags else ""  # an option without a flag is a parameter of the policy
        flag = f"--{_word(error.name)}"
        message = f"{flag if flag in flags else way + error.name} {error.problem}"

    def spelled(found: re.Match[str]) -> str:
        flag = f"--{_word(found[1])}"
        return f"{flag} {found[2].strip(chr(39))}" if flag in flags else found[0]

    return KEYWORD.sub(spelled, message)


def complaint_of(error: click.ClickException) -> str:
    """What is wrong with the command: the flag, its value, and the way out."""
    ctx: Any = getattr(error, "ctx", None)
    see, message = f"; see `{ctx.command_path} --help`" if ctx else "", error.message
    match error:
        case click.exceptions.NoArgsIsHelpError():
            return message
        case click.NoSuchCommand():
            return str(UnknownName("command", error.command_name, ctx.command.commands))
        case click.NoSuchOption():
            word = error.option_name.lstrip("-")
            if any(word == param.name for param in ctx.command.params if isinstance(param, click.Argument)):
                return f"unknown flag {error.option_name!r}; give {word.upper()} without a flag{see}"
            near = [flag for flag in error.possibilities or () if flag != "--help"]
            return f"unknown flag {error.option_name!r}" + (f"; did you mean {near[0]!r}?" if near else see)
        case click.BadOptionUsage():
            problem = "needs a value" if "requires" in message else "takes no value"
            return f"{error.option_name} {problem}{see}"
        case click.BadParameter(param=param) if param is not None:
            name = param.opts[0] if isinstance(param, click.Option) else param.human_readable_name.strip("[.]")
            return f"{name} is missing{see}" if isinstance(error, click.MissingParameter) else f"{name} {message}"
    return re.sub(r"Got unexpected extra argument\S* \((.*)\)", r"it takes no argument \1", message) + see
