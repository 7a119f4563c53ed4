"""Questions about formulas, answered in another process: a comparison that hangs or takes too much memory counts as no.

math-verify's own time limits are signal handlers, which do not end a computation inside C; they are off. The worker
sets an alarm without a handler, which ends the worker even if the process that asked is gone. The worker runs `serve`
of this file in a new interpreter: a spawned process would run the caller's main module again.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import json
import re
import signal
import subprocess
import sys
from importlib.util import find_spec

from unmask.errors import UnmaskError, WorkFailed

TIMEOUT_S, START_S = 10.0, 60.0
MEMORY_MIB = 4096

_workers: list[subprocess.Popen[str]] = []  # at most one


def ask(question: str, first: str, second: str, *, timeout_s: float = TIMEOUT_S) -> bool:
    """`equivalent`: are two formulas equal? `verified`: does the second text reach the answer of the first?"""
    if not _workers or _workers[0].poll() is not None:
        _start()
    return _exchange(json.dumps([question, first, second, timeout_s]) + "\n") == "true"


def _start() -> None:
    if find_spec("math_verify") is None:
        raise UnmaskError("math-verify, which compares formulas, is not installed: pip install 'unmask[eval]'")
    close()
    program = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import serve; serve()"
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    # In a session of its own, so that an interrupt does not reach the worker, which ends when its input does.
    command = [sys.executable, "-c", program]
    _workers.append(
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null, text=True, bufsize=1, start_new_session=True)
    )
    if _exchange("") != "true":
        close()
        raise WorkFailed("the process that compares formulas did not start")


def _exchange(request: str) -> str:
    """Send the request and read the worker's next line; empty if the worker is dead, and then it is closed."""
    worker, answer = _workers[0], ""
    assert worker.stdin is not None
    assert worker.stdout is not None
    try:
        with contextlib.suppress(BrokenPipeError):
            worker.stdin.write(request)
            answer = worker.stdout.readline().strip()
    finally:
        if not answer:  # also after an interrupt: a late line would answer the next question
            close()
    return answer


@atexit.register
def close() -> None:
    """End the worker."""
    while _workers:
        worker = _workers.pop()
        worker.kill()
        worker.communicate()


def serve() -> None:
    """The worker: answer until the input ends."""
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    with contextlib.suppress(ImportError, ValueError, OSError):  # not every system has this limit
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MIB * 2**20, MEMORY_MIB * 2**20))
    questions = {"equivalent": _equivalent, "verified": _verified}
    answers, sys.stdout = sys.stdout, sys.stderr  # a line that a package prints is no answer
    _end_after(START_S)
    found = _equivalent("1", "1.0") and _verified("$1$", "$1$")  # loads their packages before a question is timed
    while True:
        _end_after(0)
        print(json.dumps(bool(found)), file=answers, flush=True)
        if not (line := sys.stdin.readline()):
            break
        question, first, second, timeout_s = json.loads(line)
        _end_after(timeout_s)
        try:
            found = questions[question](first, second)
        except Exception:  # what cannot be read is not equal
            found = False


def _end_after(seconds: float) -> None:
    """End this process when so many seconds have passed; 0 takes it back."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)
    elif seconds:  # Windows
        faulthandler.dump_traceback_later(seconds, exit=True)
    else:
        faulthandler.cancel_dump_traceback_later()


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
