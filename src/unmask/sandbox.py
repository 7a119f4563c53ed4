"""Run code that a model wrote, against tests, in another process. Standard library only: this file is that process too.

Covered: a fresh interpreter without site packages or environment, limits on time, memory, file size and output, an
empty temporary folder, and a pass that is proved by a secret printed after the last test, never by an exit status.
Not covered: the network, the file system outside that folder, and code that goes looking for the secret in memory.
One interpreter serves many jobs; each job is a forked child of it, so that none sees what another one did.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

TIMEOUT_S = 3.0
MEMORY_MIB = 512
OUTPUT_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxResult:
    """How a program fared; `reason` is 'passed', 'failed: ...', 'timeout' or 'crashed'."""

    passed: bool
    reason: str


def run_tests(
    code: str, tests: Sequence[str], *, timeout_s: float = TIMEOUT_S, memory_mib: int = MEMORY_MIB
) -> SandboxResult:
    """Run the code, then every test, a statement each; it passes if nothing raised and the end was reached."""
    return run_many([(code, tests)], timeout_s=timeout_s, memory_mib=memory_mib)[0]


def run_many(
    jobs: Sequence[tuple[str, Sequence[str]]], *, timeout_s: float = TIMEOUT_S, memory_mib: int = MEMORY_MIB
) -> list[SandboxResult]:
    """`run_tests` for many programs, each on its own, in one interpreter while it lives."""
    results: list[SandboxResult] = []
    while len(results) < len(jobs):
        done = _run_batch(jobs[len(results) :], timeout_s, memory_mib)
        # A job that takes the interpreter down with it is the first one without an answer.
        results += done or [SandboxResult(passed=False, reason="crashed")]
    return results


def _run_batch(jobs: Sequence[tuple[str, Sequence[str]]], timeout_s: float, memory_mib: int) -> list[SandboxResult]:
    keys = [secrets.token_hex(16) for _ in jobs]
    work = [{"code": code, "tests": list(tests), "key": key} for (code, tests), key in zip(jobs, keys, strict=True)]
    order = json.dumps({"jobs": work, "timeout_s": timeout_s, "memory_mib": memory_mib})
    with tempfile.TemporaryDirectory(prefix="unmask-sandbox-") as folder:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=folder,
            env={},
            start_new_session=True,
        )
        try:
            answer, _ = process.communicate(order.encode(), timeout=len(jobs) * (timeout_s + 1.0) + 10.0)
        except subprocess.TimeoutExpired:
            answer = b""
        finally:
            _kill_group(process.pid)
            process.wait()
    results = []
    for line, key in zip(answer.decode(errors="replace").splitlines(), keys, strict=False):
        reason = "passed" if line == key else line if line in ("timeout", "crashed") else f"failed: {line}"
        results.append(SandboxResult(passed=line == key, reason=reason))
    return results


def _kill_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def _serve() -> None:
    """The other process: read the jobs, fork a child for each, answer with one line a job."""
    order = json.loads(sys.stdin.buffer.read())
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    os.dup2(0, 1)
    for job in order["jobs"]:
        answers.write(_one_line(_supervise(job, order["timeout_s"], order["memory_mib"])) + "\n")
        answers.flush()


def _supervise(job: dict, timeout_s: float, memory_mib: int) -> str:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        _close_all_but(writer)
        _limit(timeout_s, memory_mib)
        os.write(writer, _judge(job).encode()[:OUTPUT_BYTES])
        os._exit(0)
    os.close(writer)
    deadline = time.monotonic() + timeout_s
    verdict, reason = b"", "crashed"
    while len(verdict) < OUTPUT_BYTES:
        ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            reason = "timeout"
            break
        chunk = os.read(reader, OUTPUT_BYTES)
        if not chunk:
            break
        verdict += chunk
    os.close(reader)
    _kill_group(child)
    os.waitpid(child, 0)
    return verdict.decode(errors="replace") or reason


def _judge(job: dict) -> str:
    """The key if every test held, else what went wrong. Runs in the child."""
    key, tests = job.pop("key"), job.pop("tests")
    names: dict = {"__name__": "__candidate__"}
    try:
        exec(compile(job["code"], "<candidate>", "exec"), names)
        for test in tests:
            exec(compile(test, "<test>", "exec"), names)
    except MemoryError:
        return "MemoryError"
    except BaseException as error:  # sys.exit() is a failure too
        return f"{type(error).__name__}: {error}"
    return key


def _close_all_but(kept: int) -> None:
    os.closerange(3, kept)
    os.closerange(kept + 1, 256)


def _limit(timeout_s: float, memory_mib: int) -> None:
    cpu = int(timeout_s) + 1
    for what, most in (
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_AS, memory_mib * 2**20),
        (resource.RLIMIT_FSIZE, 2**20),
        (resource.RLIMIT_NOFILE, 32),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:200]


if __name__ == "__main__":
    _serve()
