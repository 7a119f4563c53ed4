"""What happens between a program and its tests, each in a process of its own. Standard library only; see `jail.py`.

The *answer* runs the code. The *examiner* runs the tests, and asks the answer for the names that they do not define.
Arguments and results cross as copies of plain values: None, truth values, numbers, text, bytes, ranges, and lists,
tuples, sets and dicts of them. An instance of a subclass crosses as its plain base class, a builtin or a module of
the standard library by its name. Any other object stays where it is, and the examiner gets a `_Foreign` in its place:
to call, to read, to change, to go through and to hand back, never to compare. So expected values are out of the
answer's reach, and an `__eq__` of its own decides nothing.
"""

from __future__ import annotations

import builtins
import contextlib
import importlib
import json
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import chain
from types import BuiltinFunctionType, ModuleType
from typing import Any

RAN, ALL_RAN = 1, 2  # what an examiner tells its judge: a statement has run, all have; a text is an error


class Channel:
    """Lines of JSON over a socket: EOFError or another OSError when the peer is gone, TimeoutError when it is late."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end

    def send(self, value: Any) -> None:
        self.end.sendall(json.dumps(value).encode() + b"\n")

    def receive(self, timeout_s: float | None = None) -> Any:
        """What the peer sends; the latest of several lines that have come."""
        self.end.settimeout(timeout_s)
        data = bytearray()
        while not data.endswith(b"\n"):
            part = self.end.recv(2**16)
            if not part:
                raise EOFError
            data += part
        return json.loads(data.splitlines()[-1])


def pair() -> tuple[Channel, Channel]:
    """The two ends of a channel."""
    ours, theirs = socket.socketpair()
    return Channel(ours), Channel(theirs)


def _told(error: BaseException) -> tuple[str, str]:
    """The class of an error and its message, as far as they are texts: both may be the answer's code."""
    kind = text = ""
    with contextlib.suppress(BaseException):
        kind = str.__str__(type(error).__name__)
        text = str.__str__(str(error))[:500]
    return kind, text


# The examiner.


def examine(judge: Channel, answering: Channel) -> None:
    """Have the code run and run its tests; then send back what the judge sends."""
    job, answer = judge.receive(), _Answer(answering)
    names = _Names(answer, job["own"])
    try:
        answer.ask(exec, job["code"], answer.names)
        for test in job["tests"]:
            judge.send(RAN)
            exec(compile(test, "<test>", "exec"), names)
        judge.send(ALL_RAN)
        judge.send(judge.receive())
    except _Gone:
        return
    except BaseException as error:  # sys.exit() is a failure too
        judge.send(": ".join(_told(error)))


class _Gone(BaseException):
    """The answer's process has ended."""


class _Names(dict[str, Any]):
    """The tests' names. What the tests do not define is the answer's, except builtins that are not listed as `own`."""

    def __init__(self, answer: _Answer, own: list[str]) -> None:
        super().__init__(__name__="__tests__")
        self.answer, self.own = answer, own

    def __missing__(self, name: str) -> Any:
        if name.startswith("__") or (hasattr(builtins, name) and name not in self.own):
            raise KeyError(name)
        try:
            value = self.answer.ask(eval, name, self.answer.names)
        except NameError:
            raise KeyError(name) from None
        if isinstance(value, _Foreign | ModuleType):
            self[name] = value
        return value


class _Answer:
    """The answer's process, as the examiner sees it."""

    def __init__(self, peer: Channel) -> None:
        self.peer, self.names = peer, _Foreign(self, 0)
        self.foreign = {0: self.names}

    def ask(self, function: Any, /, *args: Any, **options: Any) -> Any:
        """Have a builtin or an object of the answer called there; what is raised there is raised here."""
        try:
            self.peer.send(_plain([function, args, options], self._number))
            raised, value = self.peer.receive()
        except (EOFError, OSError):
            raise _Gone from None
        if raised:
            raise _error(*map(str, raised), ends=function is next)
        return _value(value, lambda number: self.foreign.setdefault(number, _Foreign(self, number)))

    def _number(self, value: object) -> int:
        if isinstance(value, _Foreign):
            return value._number
        raise TypeError(f"a test hands over {type(value).__name__}, which cannot cross to the answer")


class _Foreign:
    """An object of the answer that is no plain value. It equals itself alone, whatever its class may say."""

    def __init__(self, answer: _Answer, number: int) -> None:
        vars(self).update(_answer=answer, _number=number)

    def __call__(self, /, *args: Any, **options: Any) -> Any:
        return self._answer.ask(self, *args, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._answer.ask(getattr, self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._answer.ask(setattr, self, name, value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._answer.ask(list, self))

    def __next__(self) -> Any:
        return self._answer.ask(next, self)


def _error(kind: str, text: str, *, ends: bool) -> BaseException:
    """An error of the answer, of the same class if that is a builtin one and does not end a loop of the tests."""
    known = getattr(builtins, kind, None)
    if isinstance(known, type) and issubclass(known, BaseException) and (ends or kind != "StopIteration"):
        with contextlib.suppress(TypeError):
            return known(text)
    return type(kind, (Exception,), {})(text)


# The answer.


def answer(examiner: Channel) -> None:
    """Call what the examiner asks for, the code first, until the judge ends this process."""
    module = ModuleType("__candidate__")
    sys.modules |= {"__candidate__": module, "__main__": ModuleType("__main__")}
    objects: dict[int, Any] = {0: vars(module)}  # kept, so that an id means one object

    def number(value: object) -> int:
        objects[id(value)] = value
        return id(value)

    while True:
        asked = examiner.receive()
        try:
            function, args, options = _value(asked, objects.__getitem__)
            reply = None, _plain(function(*args, **options), number)
        except BaseException as error:  # sys.exit() is a failure too
            reply = _told(error), None
        examiner.send(reply)


# Plain values: what JSON has stands for itself, everything else is a list of a word and its parts.

# Word -> class, parts of a value of that class, and a value of these parts.
_KINDS: dict[str, tuple[type[Any], Callable[[Any], Iterable[Any]], Callable[[list[Any]], Any]]] = {
    "list": (list, iter, list),
    "tuple": (tuple, iter, tuple),
    "set": (set, iter, set),
    "frozenset": (frozenset, iter, frozenset),
    "dict": (
        dict,
        lambda value: chain.from_iterable(dict.items(value)),  # keys and values in turn: a level is one recursion
        lambda parts: dict(zip(parts[::2], parts[1::2], strict=True)),
    ),
    "range": (range, lambda value: (value.start, value.stop, value.step), lambda parts: range(*parts)),
    "str": (str, lambda value: (str.__str__(value),), lambda parts: str(*parts)),
    "int": (int, lambda value: (hex(value),), lambda parts: int(*parts, 16)),
    "float": (float, lambda value: (float.__float__(value),), lambda parts: float(*parts)),
    "complex": (complex, lambda value: (value.real, value.imag), lambda parts: complex(*parts)),
    "bytes": (bytes, lambda value: (value.decode("latin-1"),), lambda parts: bytes(*parts, "latin-1")),
    "Fraction": (Fraction, lambda value: (str(value),), lambda parts: Fraction(*parts)),
    "Decimal": (Decimal, lambda value: (str(value),), lambda parts: Decimal(*parts)),
    "module": (ModuleType, lambda value: (value.__name__,), lambda parts: _module(*parts)),
}


def _module(name: str) -> ModuleType:
    if name.partition(".")[0] not in sys.stdlib_module_names:
        raise TypeError(f"the module {name} cannot cross")
    return importlib.import_module(name)


def _plain(value: Any, number: Callable[[object], int]) -> Any:
    """A value as JSON can carry it; `number` is called with an object that has to stay."""
    kind = type(value)
    if value is None or kind in (bool, str, float) or (kind is int and -(2**63) < value < 2**63):
        return value
    for word, (base, parts, _) in _KINDS.items():
        if isinstance(value, base):
            return [word, [_plain(part, number) for part in parts(value)]]
    if isinstance(value, type | BuiltinFunctionType) and vars(builtins).get(value.__name__) is value:
        return ["builtin", value.__name__]
    return ["foreign", number(value)]


def _value(written: Any, foreign: Callable[[int], Any]) -> Any:
    if not isinstance(written, list):
        return written
    word, content = written
    if word == "foreign":
        return foreign(content)
    if word == "builtin":
        return vars(builtins)[content]
    return _KINDS[word][2]([_value(part, foreign) for part in content])
