"""How the process of a server ends: by signals, and by force where one of its threads hangs.

Imports nothing heavy: a signal must be handled before the model is loaded.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from types import FrameType

from unmask.errors import WorkFailed

REST_S = 5.0  # for threads to end, after the time that requests have left
LOOK_S = 0.5
BOTH = (signal.SIGINT, signal.SIGTERM)


class Stopped(BaseException):
    """SIGTERM before the server was ready; no Exception, so that no library takes it for a failure of its own."""


def in_main_thread() -> bool:
    """Whether the process belongs to the server: elsewhere it may neither handle signals nor end the process."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def handling_signals(
    handle: Callable[[int, FrameType | None], None], numbers: Sequence[signal.Signals] = BOTH
) -> Generator[None]:
    """Have signals handled meanwhile, if this is the main thread: only there Python allows it."""
    if not in_main_thread():
        yield
        return
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stoppable() -> Generator[None]:
    """Have SIGTERM end the work inside with one line, until a server handles signals itself."""

    def stop(sig: int, frame: FrameType | None) -> None:
        raise Stopped

    with handling_signals(stop, (signal.SIGTERM,)):
        try:
            yield
        except (Stopped, SystemExit) as stopped:
            if isinstance(stopped, SystemExit) and stopped.code != signal.SIGTERM:  # with which Ray's own handler exits
                raise
            raise WorkFailed("stopped by SIGTERM before the server was ready") from stopped


@contextmanager
def ended_by_force(reason: Callable[[], str | None], say: Callable[[str], None]) -> Generator[None]:
    """End the process with a line and status 1 as soon as there is a reason; only if this is the main thread."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(LOOK_S):
            if (why := reason()) is not None:
                leave(why, say)

    if in_main_thread():
        threading.Thread(target=watch, name="unmask-watchdog", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def leave(why: str, say: Callable[[str], None]) -> None:
    """End the process at once with status 1, whatever its threads do."""
    telling = threading.Thread(target=say, args=(why,), daemon=True)  # the terminal may be what hangs
    telling.start()
    telling.join(1.0)
    sys.stdout.flush()
    os._exit(1)
