"""What the command line says of a wrong command: one line, in the words of its flags.

Typer and the library under it word errors for programmers, and the engine names options as Python does.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from unmask.errors import KEYWORD, UnknownName, UnmaskError, WrongOption

# The validator's words -> ours.
_WANTED = {
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid boolean": "true or false",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}
_PLAIN = (
    (r"Option '(\S+)' requires an argument\.", r"\1 needs a value"),
    (r"Option '(\S+)' does not take a value\.", r"\1 takes no value"),
    (r"Got unexpected extra argument\S* \((.*)\)", r"it takes no argument \1"),
)


def in_flags(error: UnmaskError, flags: Collection[str]) -> str:
    """An error of the library, in the words of a command with these flags."""
    message = error.flags or str(error)
    if isinstance(error, WrongOption):
        way = "--set " if "--set" in flags else ""  # an option without a flag is a parameter of the policy
        message = f"{_flag(error.name) if _flag(error.name) in flags else way + error.name} {error.problem}"

    def spelled(found: re.Match[str]) -> str:
        return f"{_flag(found[1])} {found[2].strip(chr(39))}" if _flag(found[1]) in flags else found[0]

    return KEYWORD.sub(spelled, message)


def _flag(name: str) -> str:
    return f"--{name.strip('_').replace('_', '-')}"


def complaint_of(error: Any) -> str:
    """What is wrong with the command: the flag, its value, and the way out."""
    message, ctx, param = str(getattr(error, "message", "")), getattr(error, "ctx", None), getattr(error, "param", None)
    see = f"see `{ctx.command_path} --help`" if ctx is not None else ""
    if type(error).__name__ == "NoArgsIsHelpError":
        return message
    if option := getattr(error, "option_name", None) if message.startswith("No such option") else None:
        flags = [name for each in ctx.command.params for name in (*each.opts, *each.secondary_opts)] if ctx else []
        if (word := option.lstrip("-")) in flags:  # an argument has no dashes
            return f"unknown flag {option!r}; give {word.upper()} without a flag: {see}"
        return _unknown("flag", option, [name for name in flags if name.startswith("--")], see)
    if found := re.match(r"No such command '(.*?)'", message):
        return str(UnknownName("command", found[1], getattr(ctx.command, "commands", ()) if ctx else ()))
    if type(error).__name__ == "MissingParameter":
        return f"{_named(param)} is missing; {see}"
    if param is not None:
        return f"{_named(param)} {_wanted(error, message)}"
    for theirs, ours in _PLAIN:
        message = re.sub(theirs, ours, message)
    return f"{message}; {see}" if see else message


def _unknown(kind: str, name: str, known: list[str], see: str) -> str:
    """As UnknownName, without the list, which a command has too many flags for."""
    begin, mark, _ = str(UnknownName(kind, name, known)).partition("?")
    return begin + mark if mark else f"unknown {kind} {name!r}; {see}"


def _named(param: Any) -> str:
    flags = [name for name in param.opts if name.startswith("--")]
    return flags[0] if flags else param.metavar or param.name.upper()


def _wanted(error: Any, message: str) -> str:
    """What a value must be, and the value, which newer releases of typer leave out of the message."""
    found = getattr(error.__cause__, "errors", list)()
    value = str(found[0]["input"]) if found else ""
    if not message.startswith("Input should be "):
        return f"is wrong: {message}"
    wanted = message.removeprefix("Input should be ").partition(",")[0]
    for theirs, ours in _WANTED.items():
        wanted = wanted.replace(theirs, ours)
    repeated = "; the flag may be repeated" if "," in value and getattr(error.param, "multiple", False) else ""
    return f"must be {wanted}, got {value!r:.80}{repeated}"
