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
import select
import socket
import sys
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, ModuleType
from typing import Any

OK, ALL_OK, RAISED = b"+", b"=", b"!"


class Channel:
    """Whole messages over a socket: EOFError or another OSError when the peer is gone, TimeoutError when it is late.

    `multiprocessing.connection` does as much; to import it where every answer is forked costs a fifth of the programs
    per second.
    """

    def __init__(self, end: socket.socket) -> None:
        self.end = end

    def send(self, message: bytes) -> None:
        self.end.sendall(len(message).to_bytes(4, "big") + message)

    def receive(self, timeout_s: float | None = None) -> bytes:
        if timeout_s is not None and not select.select([self.end], [], [], timeout_s)[0]:
            raise TimeoutError
        return self._exactly(int.from_bytes(self._exactly(4), "big"))

    def _exactly(self, size: int) -> bytes:
        data = self.end.recv(size, socket.MSG_WAITALL) if size else b""
        if len(data) < size:
            raise EOFError
        return data


def pair() -> tuple[Channel, Channel]:
    """The two ends of a channel."""
    ours, theirs = socket.socketpair()
    return Channel(ours), Channel(theirs)


def _told(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {str(error)[:500]}"
    except BaseException:  # the error's __str__ is the answer's code
        return type(error).__name__


# The examiner.


def examine(judge: Channel, answering: Channel) -> None:
    """Have the code run and run its tests; then send back what the judge sends."""
    job = json.loads(judge.receive())
    answer = _Answer(answering)
    names = _Names(answer, job["own"])
    try:
        answer.ask("run", job["code"])
        for test in job["tests"]:
            judge.send(OK)
            exec(compile(test, "<test>", "exec"), names)
        judge.send(ALL_OK)
        judge.send(judge.receive())
    except _Gone:
        return
    except BaseException as error:  # sys.exit() is a failure too
        judge.send(RAISED + _told(error).encode(errors="replace"))


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
            value = self.answer.ask("name", name)
        except NameError:
            raise KeyError(name) from None
        if isinstance(value, _Foreign | ModuleType):
            self[name] = value
        return value


class _Answer:
    """The answer's process, as the examiner sees it."""

    def __init__(self, peer: Channel) -> None:
        self.peer = peer
        self.foreign: dict[int, _Foreign] = {}

    def ask(self, what: str, *values: Any) -> Any:
        """Have something done there; what is raised there is raised here."""
        try:
            self.peer.send(json.dumps([what, *(_plain(value, self._number) for value in values)]).encode())
            kind, value = json.loads(self.peer.receive())
        except (EOFError, OSError):
            raise _Gone from None
        if kind == "raised":
            raise _error(*map(str, value), ends=what == "next")
        return _value(value, lambda number: self.foreign.setdefault(number, _Foreign(self, number)))

    def _number(self, value: object) -> int:
        if isinstance(value, _Foreign):
            return value._number
        raise TypeError(f"a test hands over {type(value).__name__}, which cannot cross to the answer")


class _Foreign:
    """An object of the answer that is no plain value. It equals itself alone, whatever its class may say."""

    def __init__(self, answer: _Answer, number: int) -> None:
        vars(self).update(_answer=answer, _number=number)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._answer.ask("call", self, options, *args)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._answer.ask("get", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._answer.ask("set", self, name, value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._answer.ask("list", self))

    def __next__(self) -> Any:
        return self._answer.ask("next", self)


def _error(kind: str, text: str, *, ends: bool) -> BaseException:
    """An error of the answer, of the same class if that is a builtin one and does not end a loop of the tests."""
    known = getattr(builtins, kind, None)
    if isinstance(known, type) and issubclass(known, BaseException) and (ends or kind != "StopIteration"):
        with contextlib.suppress(TypeError):
            return known(text)
    return type(kind, (Exception,), {})(text)


# The answer.


def answer(examiner: Channel) -> None:
    """Run the code, then do what the examiner asks for, until the judge ends this process."""
    module = ModuleType("__candidate__")
    sys.modules |= {"__candidate__": module, "__main__": ModuleType("__main__")}
    objects: dict[int, object] = {}  # kept, so that an id means one object

    def number(value: object) -> int:
        objects[id(value)] = value
        return id(value)

    while True:
        what, *written = json.loads(examiner.receive())
        try:
            found = _do(what, vars(module), *(_value(each, objects.__getitem__) for each in written))
            reply = ["done", _plain(found, number)]
        except BaseException as error:  # sys.exit() is a failure too
            kind, _, text = _told(error).partition(": ")
            reply = ["raised", [kind, text]]
        examiner.send(json.dumps(reply).encode())


def _do(what: str, names: dict[str, Any], first: Any, *rest: Any) -> Any:
    match what:
        case "run":
            return exec(compile(first, "<candidate>", "exec"), names)
        case "name" if first not in names:
            raise NameError(f"name {first!r} is not defined")
        case "name":
            return names[first]
        case "call":
            return first(*rest[1:], **rest[0])
    return {"list": list, "next": next, "get": getattr, "set": setattr}[what](first, *rest)


# Plain values: what JSON has stands for itself, everything else is a list of a word and what it consists of.

_COLLECTIONS: dict[str, type[Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_OTHERS: dict[str, tuple[type[Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "str": (str, str.__str__, str),
    "int": (int, hex, lambda text: int(text, 16)),
    "float": (float, float.__float__, float),
    "complex": (complex, lambda value: [value.real, value.imag], lambda pair: complex(*pair)),
    "bytes": (bytes, lambda value: value.decode("latin-1"), lambda text: text.encode("latin-1")),
    "range": (range, lambda value: [value.start, value.stop, value.step], lambda three: range(*three)),
}
_WRITTEN_OUT = ("fractions.Fraction", "decimal.Decimal")  # by their text


def _plain(value: Any, number: Callable[[object], int]) -> Any:
    """A value as JSON can carry it; `number` is called with an object that has to stay."""
    kind = type(value)
    if value is None or kind in (bool, str, float) or (kind is int and -(2**63) < value < 2**63):
        return value
    if isinstance(value, dict):
        return ["dict", [[_plain(key, number), _plain(value[key], number)] for key in value]]
    for word, base in _COLLECTIONS.items():
        if isinstance(value, base):
            return [word, [_plain(each, number) for each in value]]
    for word, (base, write, _) in _OTHERS.items():
        if isinstance(value, base):
            return [word, write(value)]
    if isinstance(value, ModuleType):
        return ["module", value.__name__]
    if isinstance(value, type | BuiltinFunctionType) and vars(builtins).get(value.__name__) is value:
        return ["builtin", value.__name__]
    name = f"{kind.__module__}.{kind.__qualname__}"
    return [name, str(value)] if name in _WRITTEN_OUT else ["foreign", number(value)]


def _value(written: Any, foreign: Callable[[int], Any]) -> Any:
    if not isinstance(written, list):
        return written
    word, content = written
    if word in _COLLECTIONS:
        return _COLLECTIONS[word](_value(each, foreign) for each in content)
    if word == "dict":
        return {_value(key, foreign): _value(value, foreign) for key, value in content}
    if word == "builtin":
        return vars(builtins)[content]
    if word == "module" and content.partition(".")[0] in sys.stdlib_module_names:
        return importlib.import_module(content)
    if word in _WRITTEN_OUT:
        module, _, name = word.partition(".")
        return getattr(importlib.import_module(module), name)(content)
    return foreign(content) if word == "foreign" else _OTHERS[word][2](content)
