"""Work that may hang or take too much memory, done in another process, which a request can end without harm.

A program is a module with a function `answer`. It runs in a new interpreter: a spawned process would run the caller's
main module again. Requests and answers are lines of JSON. In the process, a thread outside Python ends it when the time
of a request is over: also amid a computation inside C, and also if the process that asked is gone. The request after
one that ended the process starts another.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import json
import os
import subprocess
import sys
from importlib import import_module
from threading import Lock
from typing import Any

from unmask.errors import WorkFailed

START_S = 60.0  # for the imports of a program


class WorkerProcess:
    """A program in a process of its own, started when it is first asked. Errors call it by its name."""

    def __init__(self, program: str, *, name: str, memory_mib: int) -> None:
        self.program, self.name, self.memory_mib = program, name, memory_mib
        self._turn = Lock()
        self._running: dict[int, Any] = {}  # by parent: a fork must not share its pipes
        atexit.register(self.close)

    def ask(self, request: Any, *, seconds: float) -> Any:
        """The answer to a request; None if it took more than these seconds, or brought the process down."""
        line = json.dumps([seconds, request]).encode() + b"\n"
        if not self._turn.acquire(timeout=seconds):
            raise WorkFailed(f"{self.name} was busy with other requests for more than {seconds:g} s")
        try:
            worker = self._running.get(os.getpid())
            if worker is None or worker.poll() is not None:
                self._start()
            return self._exchange(line)
        finally:
            self._turn.release()

    def _start(self) -> None:
        self.close()
        called = f"from {__name__} import serve; serve({self.program!r}, {self.memory_mib})"
        command, pipe = [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {called}"], subprocess.PIPE
        # In a session of its own: Ctrl-C in the terminal must not end it.
        streams: dict[str, Any] = {"stdin": pipe, "stdout": pipe, "stderr": subprocess.DEVNULL}
        self._running[os.getpid()] = subprocess.Popen(command, start_new_session=True, **streams)
        if self._exchange(b"") is None:
            raise WorkFailed(f"{self.name} did not start")

    def _exchange(self, line: bytes) -> Any:
        """Send a line and read the next one; None if the process is dead, and then it is closed."""
        worker, answer = self._running[os.getpid()], b""
        try:
            with contextlib.suppress(BrokenPipeError):
                worker.stdin.write(line)
                worker.stdin.flush()
                answer = worker.stdout.readline()
        finally:
            if not answer.endswith(b"\n"):  # also after an interrupt: a late line would answer the next request
                self.close()
                answer = b"null"
        return json.loads(answer)

    def close(self) -> None:
        worker = self._running.pop(os.getpid(), None)
        if worker is not None:
            worker.kill()
            worker.communicate()  # closes the pipes


def serve(program: str, memory_mib: int) -> None:
    """The other process: say that the program is there, then answer until the input ends."""
    with contextlib.suppress(ImportError, ValueError, OSError):  # not every system has this limit
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory_mib * 2**20, memory_mib * 2**20))
    answers, sys.stdout = sys.stdout, sys.stderr  # a line that a package prints is no answer
    faulthandler.dump_traceback_later(START_S, exit=True)
    answer, found = import_module(program).answer, "true"
    while True:
        faulthandler.cancel_dump_traceback_later()
        print(found, file=answers, flush=True)
        if not (line := sys.stdin.readline()):
            break
        seconds, request = json.loads(line)
        faulthandler.dump_traceback_later(seconds, exit=True)
        found = json.dumps(answer(request))
