"""Questions about formulas, answered in other processes: one that hangs or swallows memory is killed, and means no.

math-verify's own time limits are signals, which work in no thread but the first; they are off, the limit is ours.
This file is the other process too.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections import deque
from importlib.util import find_spec

from unmask.errors import UnmaskError, WorkFailed
from unmask.jail import Channel

TIMEOUT_S = 10.0
START_S = 60.0
MEMORY_MIB = 4096
MOST = min(8, os.cpu_count() or 1)  # so many threads may usefully ask at once

_idle: deque[_Worker] = deque()


def ask(question: str, first: str, second: str, *, timeout_s: float = TIMEOUT_S) -> bool:
    """`equivalent`: are two formulas equal? `verified`: does the second text reach the answer of the first?"""
    worker = _take()
    try:
        answer = worker.answer({"question": question, "pair": [first, second], "timeout_s": timeout_s}, timeout_s)
    except BaseException as error:
        worker.kill()
        if isinstance(error, EOFError | TimeoutError):
            return False
        raise
    _idle.append(worker)
    return answer


def _take() -> _Worker:
    while True:
        try:
            worker = _idle.pop()
        except IndexError:
            return _Worker()
        if worker.process.poll() is None:
            return worker
        worker.kill()


class _Worker:
    def __init__(self) -> None:
        if find_spec("math_verify") is None:
            raise UnmaskError("math-verify, which compares formulas, is not installed: pip install 'unmask[eval]'")
        program = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve()"
        ours, theirs = socket.socketpair()
        self.channel = Channel(ours)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # an interrupt is for us; the worker ends when we hang up
            )
        try:
            self.channel.receive(START_S)
        except (EOFError, TimeoutError):
            self.kill()
            raise WorkFailed("the process that compares formulas did not start") from None

    def answer(self, request: dict[str, object], timeout_s: float) -> bool:
        self.channel.send(json.dumps(request).encode(), timeout_s)
        return json.loads(self.channel.receive(timeout_s))

    def kill(self) -> None:
        self.channel.end.close()
        self.process.kill()
        self.process.wait()


@atexit.register
def close() -> None:
    """End the workers that wait."""
    while _idle:
        _idle.pop().kill()


def serve() -> None:
    """The other process: answer until nobody asks any more."""
    import resource

    with contextlib.suppress(ValueError, OSError):  # not every system has this limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MIB * 2**20, MEMORY_MIB * 2**20))
    asker = Channel(socket.socket(fileno=0))
    questions = {"equivalent": _equivalent, "verified": _verified}
    if not (_equivalent("1", "1.0") and _verified("$1$", "$1$")):  # also loads what they need, before the clock runs
        sys.exit(1)
    asker.send(b"ready", START_S)
    with contextlib.suppress(EOFError):
        while True:
            request = json.loads(asker.receive(1e6))
            # Who asked may have been killed meanwhile; then nobody else ends a comparison that hangs.
            signal.alarm(int(request["timeout_s"]) + 5)
            try:
                answer = questions[request["question"]](*request["pair"])
            except Exception:  # what cannot be read is not equal
                answer = False
            signal.alarm(0)
            asker.send(json.dumps(bool(answer)).encode(), START_S)


def _equivalent(first: str, second: str) -> bool:
    import sympy
    from latex2sympy2_extended import latex2sympy
    from latex2sympy2_extended.latex2sympy2 import ConversionConfig

    # As in sympy's own reader, which lm-eval uses: X is not x, and 2\frac{1}{2} is a product.
    reading = ConversionConfig(lowercase_symbols=False)
    products = (re.sub(r"(\d)\s*(?=\\[dt]?frac)", r"\1\\cdot ", text) for text in (first, second))
    left, right = (latex2sympy(text, conversion_config=reading) for text in products)
    if not (isinstance(left, sympy.Expr) and isinstance(right, sympy.Expr)):
        return False
    return sympy.simplify(left - right) == 0


def _verified(solution: str, text: str) -> bool:
    from math_verify import parse, verify

    # None is allowed, whatever the annotation says.
    gold, found = (parse(words, parsing_timeout=None) for words in (solution, text))  # ty: ignore[invalid-argument-type]
    return verify(gold, found, timeout_seconds=None)
