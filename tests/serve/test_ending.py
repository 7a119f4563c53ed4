"""How the process of a server ends when a part of it never does: one line, a status, and in time."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from serve.servers import SHORT, connected, open_request

pytestmark = pytest.mark.slow  # each starts a process that imports torch
COMMAND = [sys.executable, str(Path(__file__).parent / "held_command.py")]
STAYS = "unmask: a thread is still at work 5 s after the time for requests; the process ends without it\n"


@contextmanager
def started(part: str, *arguments: str, **environment: str) -> Iterator[subprocess.Popen]:
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": {**os.environ, **environment}}
    with subprocess.Popen([*COMMAND, part, *arguments], **options) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("part", ["loading", "warmup"])
def test_a_server_that_is_not_ready_yet_ends_at_once(part):
    with started(part) as process:
        assert process.stdout.readline() == "held\n"
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=30) == ("", "unmask: stopped by SIGTERM before the server was ready\n")
        assert process.returncode == 1


TAKEN_OVER = """
import ctypes, os, signal, subprocess
from unmask.serve.ending import holding_sigterm
heard = []
signal.signal(signal.SIGTERM, lambda *given: heard.append(given))
with holding_sigterm():
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None).signal(signal.SIGTERM, 0)
    os.kill(os.getpid(), signal.SIGTERM)
    child = subprocess.Popen(["sleep", "99"], preexec_fn=lambda: None)
    assert not heard
assert len(heard) == 1
child.terminate()
assert child.wait(30) == -signal.SIGTERM
"""


def test_sigterm_waits_for_a_library_that_takes_it_over_and_comes_back():
    subprocess.run([sys.executable, "-c", TAKEN_OVER], check=True)


@pytest.mark.parametrize(("part", "plain"), [("pass", ""), ("encoding", "1")])
def test_a_thread_that_hangs_does_not_keep_the_process(part, plain):
    with started(part, "--grace-s", "0.1", PLAIN=plain) as process:
        url = process.stderr.readline().split()[-1]
        with open_request(url, SHORT) as connection:
            assert process.stdout.readline() == "held\n"
            process.send_signal(signal.SIGTERM)
            told = connection.makefile().read()
        if part == "pass":
            assert told.startswith("HTTP/1.1 503")
        out, said = process.communicate(timeout=60)
        assert (out, said.endswith(STAYS)) == ("", True)
        assert process.returncode == 1


def test_a_watchdog_ends_a_process_whose_engine_is_stuck():
    with started("pass", "--stall-s", "0.1", "--watchdog-s", "1.5") as process:
        url = process.stderr.readline().split()[-1]
        with open_request(url, SHORT) as connection:
            assert process.stdout.readline() == "held\n"
            assert connection.recv(1) == b""
        said = "unmask: no pass was finished for 1.5 s, though there is work; the process ends\n"
        assert process.communicate(timeout=30) == ("", said)
        assert process.returncode == 1


@pytest.mark.parametrize("plain", ["", "1"])
def test_idle_connections_do_not_use_up_the_files_of_the_process(plain):
    """Three hundred under a limit of 256 files."""
    limited = ["bash", "-c", 'ulimit -n 256; exec "$@"', "-", *COMMAND, "nothing"]
    environment = {**os.environ, "PLAIN": plain}
    with subprocess.Popen(limited, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            url = process.stderr.readline().split()[-1]
            idle = [open_request(url, SHORT, sent=0) for _ in range(2)]  # whose bodies never come
            idle += [connected(url) for _ in range(300)]
            for path in ("/health", "/health/live", "/health/ready", "/metrics"):
                with connected(url) as connection:
                    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
                    answer = connection.makefile().read()
                    assert answer.startswith("HTTP/1.1 200")
            assert float(answer.partition('unmask_connections_dropped_total{reason="idle"} ')[2].split()[0]) > 100
            process.send_signal(signal.SIGTERM)
            for connection in idle:
                connection.close()
            said = process.stderr.read()
            assert process.wait(30) == 0
        finally:
            process.kill()
    assert len(said) < 1000


@pytest.mark.parametrize("plain", ["", "1"])
def test_slow_clients_are_told_whichever_parser_is_installed(plain):
    with started("nothing", "--client-timeout-s", "1", PLAIN=plain) as process:
        url = process.stderr.readline().split()[-1]
        head, body, answered = connected(url), open_request(url, SHORT, sent=3), open_request(url, SHORT)
        head.sendall(b"GET /heal")
        for connection, says in ((head, "the head of the request"), (body, "the body of the request")):
            with connection:
                told = connection.makefile().read()
            assert told.startswith("HTTP/1.1 408")
            assert says in told
        with answered:
            assert answered.makefile().read().startswith("HTTP/1.1 200")  # and then closed, as no request follows
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=30) == ("", "")
        assert process.returncode == 0
