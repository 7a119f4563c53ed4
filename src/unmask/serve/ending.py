"""How the process of a server ends: by signals, and by force where one of its threads hangs.

Imports nothing heavy: a signal must be handled before the model is loaded.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

REST_S = 5.0  # for threads to end, after the time that requests have left
LOOK_S = 0.5
STOPPED = "stopped by SIGTERM before the server was ready"


def in_main_thread() -> bool:
    """Whether the process belongs to the server: elsewhere it may neither handle signals nor end the process."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def handling_signals(handle: Callable[[int, FrameType | None], None], *numbers: signal.Signals) -> Generator[None]:
    """Have SIGINT and SIGTERM handled meanwhile, or those given, if this is the main thread: only it may do so."""
    if not in_main_thread():
        yield
        return
    before = {number: signal.signal(number, handle) for number in numbers or (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def holding_sigterm() -> Generator[None]:
    """Let SIGTERM wait for the end of a block that may install handlers of its own; then the handler of before gets it.

    A thread that is started meanwhile holds it back for ever, so that the main thread gets it; a process does not.
    """
    if sys.platform == "win32" or not in_main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, handler)
        _release_sigterm()


def _release_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM,))


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_release_sigterm)


def stoppable(say: Callable[[str], None]) -> AbstractContextManager[None]:
    """Have SIGTERM end the process with one line, until a server handles signals itself."""
    return handling_signals(lambda sig, frame: leave(STOPPED, say), signal.SIGTERM)


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
