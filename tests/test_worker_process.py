"""Work in another process: whatever a request does there, the caller gets an answer or None, and so does the next."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from unmask.errors import WorkFailed
from unmask.worker_process import WorkerProcess


@pytest.fixture
def odd() -> Iterator[WorkerProcess]:
    worker = WorkerProcess("odd_program", name="the odd process", memory_mib=1024)
    yield worker
    worker.close()


@pytest.mark.parametrize(("request_", "seconds"), [("hang", 0.2), ("end", 60.0), ("eat", 60.0)])
def test_a_request_that_ends_the_process_has_no_answer_and_spoils_no_other(
    odd: WorkerProcess, request_: str, seconds: float
) -> None:
    first = odd.ask("who", seconds=60.0)
    assert first not in (None, os.getpid())
    assert odd.ask("who", seconds=60.0) == first
    assert odd.ask(request_, seconds=seconds) is None
    assert odd.ask("who", seconds=60.0) not in (None, first)


def test_a_process_that_died_meanwhile_is_replaced(odd: WorkerProcess) -> None:
    first = odd.ask("who", seconds=60.0)
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert odd.ask("who", seconds=60.0) not in (None, first)


def test_a_program_that_cannot_be_imported_is_said() -> None:
    worker = WorkerProcess("no_such_program", name="the odd process", memory_mib=1024)
    with pytest.raises(WorkFailed, match=r"^the odd process did not start$"):
        worker.ask("who", seconds=1.0)


def test_a_thread_that_waits_longer_than_its_own_time_is_told(odd: WorkerProcess) -> None:
    with ThreadPoolExecutor(1) as threads:
        hanging = threads.submit(odd.ask, "hang", seconds=5.0)

        def ask_meanwhile() -> None:
            while not hanging.done():
                odd.ask("who", seconds=0.1)

        with pytest.raises(WorkFailed, match=r"^the odd process was busy with other requests for more than 0\.1 s$"):
            ask_meanwhile()
