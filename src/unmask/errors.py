"""Errors that the caller can mend.

Every message is one line that names the thing, the value and the way out. The command line prints it and exits with the
status of its class.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Any

KEYWORD = re.compile(r"(?<![\w'\"-])(\w+)=('[^']*'|[\w.]+)")  # an option and its value in a message, as Python has them


def one_line(error: BaseException) -> str:
    """What an error of a library says, cut to the length of a message of ours."""
    return " ".join(str(error)[:1000].split())[:300] or type(error).__name__


def counted(number: int, thing: str) -> str:
    """A number and its noun: 1 item, 2 items, 3 passes."""
    ending = "" if number == 1 else "es" if thing.endswith("s") else "s"
    return f"{number} {thing}{ending}"


class UnmaskError(ValueError):
    """A request that cannot be served as it was made."""

    status = 2  # of a command that ends with this error: the command was wrong

    def __reduce__(self) -> Any:
        """Pickled with its message: what a constructor was given may be gone."""
        return type(self).__new__, (type(self), *self.args), vars(self)


class WrongOption(UnmaskError):
    """A value that an option cannot have; its name is kept for surfaces that spell it otherwise, such as `--top-p`."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"{name} {problem}")
        self.name, self.problem = name, problem


class UnknownName(UnmaskError):
    """A name that is not among the known ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, listed_as: str = "known") -> None:
        known = sorted(known)
        near = get_close_matches(name, known, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ";"
        super().__init__(f"unknown {kind} {name!r}{hint} {listed_as}: {', '.join(known) or 'none'}")


def check_known(kind: str, names: Iterable[object], known: Collection[str]) -> None:
    """Raise for the first name that is not among the known ones."""
    for name in names:
        if name not in known:
            raise UnknownName(kind, str(name), known)


class CheckpointError(UnmaskError):
    """A checkpoint that is missing, damaged, or of a kind that we do not run."""


class TooLong(UnmaskError):
    """A text that does not fit into the positions of the model."""


class WorkFailed(UnmaskError):
    """The request was fine, but the work failed."""

    status = 1


class Interrupted(WorkFailed):
    """The user ended the work; the message says what is kept."""

    status = 130  # as shells have it: 128 and the number of the signal


class OutOfMemory(WorkFailed):
    """More memory is needed than is free."""
