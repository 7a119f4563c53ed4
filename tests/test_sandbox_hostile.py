"""Answers that go for their judge, their neighbours or the machine: each is refused, and no other verdict changes."""

from __future__ import annotations

import os
import shutil
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from unmask import sandbox, system_calls

GOOD = ("def f(x):\n    return x + 1", ["assert f(1) == 2", "assert f(-1) == 0"])
pytestmark = pytest.mark.skipif(
    not shutil.which("bwrap") and os.environ.get("CI") != "true", reason="bubblewrap is not installed"
)
PRELUDE = "import ctypes, fcntl, os, resource, signal\nlibc = ctypes.CDLL(None, use_errno=True)\n"


@pytest.fixture(autouse=True)
def permission() -> Iterator[None]:
    with sandbox.allow_unsandboxed():
        yield


def verdicts(*codes: str, timeout_s: float = 20.0) -> list[str]:
    """The reasons for each code, with a good program after each."""
    jobs = [job for code in codes for job in ((PRELUDE + textwrap.dedent(code), []), GOOD)]
    results = sandbox.run_many([GOOD, *jobs], timeout_s=timeout_s)
    assert all(result.passed for result in results[::2])
    return [result.reason for result in results[1::2]]


REACHING_OUT = [
    "resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (3, 3))",
    "resource.prlimit(1, resource.RLIMIT_AS, (1, 1))",
    "os.sched_setaffinity(os.getppid(), {0})",
    "os.sched_setscheduler(os.getppid(), os.SCHED_IDLE, os.sched_param(0))",
    "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))",
    "os.setpriority(os.PRIO_PROCESS, os.getppid(), 19)",
    "os.setpgid(0, 0)",
    "os.chmod('/tmp', 0)",
    "os.chmod('.', 0)",
    "os.setxattr('/tmp', 'user.x', b'y')",
    "os.setxattr('.', 'user.x', b'y' * 60000)",
    "os.listxattr('.')",
    "os.mkfifo('p')",
    "os.symlink('a', 'b')",
    "os.memfd_create('x')",
    "os.pidfd_open(os.getppid())",
    "os.nice(5)",
    "signal.pthread_kill(__import__('threading').get_ident(), 9)",
    "fcntl.fcntl(os.pipe()[0], fcntl.F_SETOWN, os.getppid())",
    "fcntl.fcntl(os.pipe()[0], fcntl.F_SETSIG, 9)",
    "fcntl.fcntl(os.pipe()[0], 1031, 2**20)",
    "fcntl.ioctl(os.pipe()[0], 0x8901, os.getppid().to_bytes(4, 'little'))",
    "fcntl.flock(open('l', 'w'), fcntl.LOCK_EX)",
    "fcntl.lockf(open('l', 'w'), fcntl.LOCK_EX)",
    "__import__('socket').socketpair(1, 2)[0].sendto(b'x', '/dev/log')",
]


def test_no_call_reaches_the_judge_the_scheduler_or_what_outlives_a_file() -> None:
    for code, reason in zip(REACHING_OUT, verdicts(*REACHING_OUT), strict=True):
        assert reason.startswith(("failed: PermissionError", "failed: OSError: [Errno 38]")), (code, reason)


# fork, vfork, execve, execveat; signals; others' memory; namespaces and mounts; the kernel's odder corners; and more.
REFUSED = {
    "x86_64": (
        *(57, 58, 59, 322, 435, 62, 200, 234, 129, 297, 424, 101, 310, 311, 29, 68, 64, 240, 272, 308, 165, 166, 155),
        *(161, 428, 430, 321, 298, 248, 249, 250, 323, 425, 317, 157, 319, 253, 294, 222, 283, 188, 189, 190, 203),
        *(141, 251, 160, 90, 91, 268, 92, 105, 133, 88, 86, 46, 47, 41, 42, 49, 50, 149, 151, 256, 279, 440, 434, 438),
        *(442, 452, 454),
    ),
    "aarch64": (
        *(221, 281, 435, 129, 130, 131, 138, 240, 424, 117, 270, 271, 194, 186, 190, 180, 97, 268, 40, 39, 41),
        *(51, 428, 430, 280, 241, 217, 218, 219, 282, 425, 277, 167, 279, 26, 107, 85, 5, 6, 7, 122, 140, 30, 164),
        *(53, 52, 54, 33, 36, 37),
    ),
}  # fmt: skip


def test_calls_beyond_what_python_needs_are_refused() -> None:
    numbers = REFUSED[os.uname().machine]
    code = f"for number in {numbers}:\n    assert libc.syscall(number, 0, 0, 0, 0, 0, 0) == -1, number\n"
    code += "    assert ctypes.get_errno() in (1, 38), (number, ctypes.get_errno())"
    assert verdicts(code) == ["passed"]


def test_the_second_set_of_numbers_is_refused_too() -> None:
    if os.uname().machine == "x86_64":
        assert verdicts("assert libc.syscall(0x40000000 + 57, 0) == -1") == ["passed"]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("threads", [True, False])
def test_a_filter_fits_into_the_kernels_bounds(machine: str, threads: bool) -> None:
    code = system_calls.program(machine, threads=threads)
    assert code is not None
    assert len(code) % 8 == 0
    assert len(code) // 8 < 4096
    assert system_calls.program("riscv64", threads=threads) is None


def test_what_ordinary_programs_use_is_allowed() -> None:
    codes = [
        "import asyncio, tempfile, threading, concurrent.futures, multiprocessing, subprocess, zoneinfo, uuid, hashlib",
        "import random, secrets, time, datetime, statistics, decimal, sqlite3, shutil, platform, getpass, select",
        "import tempfile\nwith tempfile.TemporaryDirectory() as d:\n    open(d + '/a', 'w').write('b')",
        "import asyncio\nasync def g():\n    await asyncio.sleep(0.001)\nasyncio.run(g())",
        "import time, gc, sys\ntime.sleep(0.001)\ngc.collect()\nx = bytearray(10**8)\nos.urandom(4)\nos.cpu_count()",
        "import time\nsignal.signal(14, print)\nsignal.setitimer(signal.ITIMER_REAL, 0.01)\ntime.sleep(0.1)",
        "open('a', 'w').write('x')\nos.rename('a', 'b')\nos.mkdir('c')\nos.rmdir('c')\nos.remove('b')\nos.listdir()",
        "resource.getrlimit(resource.RLIMIT_AS)\nresource.getrusage(resource.RUSAGE_SELF)\nos.isatty(0)",
    ]
    assert verdicts(*codes) == ["passed"] * len(codes)


def test_every_answer_has_a_folder_of_its_own() -> None:
    spoil = (
        "import os\nos.mkdir('d', 0)\nopen('left', 'w').write('x')\nos.umask(0o777)\nos.rmdir('/tmp/d')\nos.chdir('/')"
    )
    assert verdicts(spoil, "assert os.listdir('/tmp') == os.listdir() == []", spoil) == ["passed"] * 3


def test_the_number_of_files_is_bounded() -> None:
    (reason,) = verdicts("for number in range(10**4):\n    open(str(number), 'w').close()")
    assert reason.startswith("failed: OSError: [Errno 28]")


BOMB = """
pause, stacks = libc.sleep, ctypes.create_string_buffer(2**22)
block = ctypes.create_string_buffer(2**16)
base = (ctypes.addressof(stacks) + 2**16) & ~63
def bomb():
    count = 0
    while count < 5000:
        stack, tls = base + 512 * count + 2048, ctypes.c_void_p(ctypes.addressof(block) + 2**15)
        if libc.clone(pause, ctypes.c_void_p(stack), FLAGS, ctypes.c_void_p(99), None, tls, None) == -1:
            break
        count += 1
    return count
"""


@pytest.mark.parametrize("flags", [0x3D0F00 & ~0x1280000, 0x10F00])
def test_other_ways_to_make_a_thread_are_refused(flags: int) -> None:
    code = PRELUDE + BOMB.replace("FLAGS", str(flags))
    assert [result.reason for result in sandbox.run_many([(code, ["assert bomb() == 0"]), GOOD])] == ["passed"] * 2


PTHREADS = 0x3D0F00  # the flags with which a C library makes a thread


@pytest.mark.parametrize("path", [None, "/nowhere"], ids=["contained", "without bubblewrap"])
def test_a_bomb_of_raw_threads_with_a_librarys_flags_is_bounded(
    path: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if path is not None:
        monkeypatch.setenv("PATH", path)
    job = (PRELUDE + BOMB.replace("FLAGS", str(PTHREADS)), ["assert bomb() < 32", "assert bomb() == 0"])
    results = sandbox.run_many([GOOD, *[job, GOOD] * 4], timeout_s=20.0)
    assert [result.reason for result in results] == ["passed"] * 9


def test_threads_are_counted_however_they_are_made() -> None:
    bomb = """
    import _thread, time
    _thread.stack_size(2**18)
    count = 0
    try:
        while count < 5000:
            _thread.start_new_thread(time.sleep, (99,))
            count += 1
    except RuntimeError:
        pass
    assert count < 64, count
    """
    assert verdicts(bomb, bomb) == ["passed"] * 2


def test_memory_is_bounded_however_it_is_asked_for() -> None:
    hogs = [
        "x = bytearray(2**30)",
        "import mmap\nx = [mmap.mmap(-1, 2**27) for _ in range(9)]",
        "x = [os.pipe() for _ in range(99)]",
    ]
    assert [reason.partition(":")[0] for reason in verdicts(*hogs)] == ["failed"] * len(hogs)


def test_groups_are_made_beside_our_own_and_removed(tmp_path: Path) -> None:
    groups = sandbox.make_groups(32, 64)
    for group in groups:
        assert (group / "cgroup.procs").read_text() == ""
        assert any((group / name).exists() for name in ("pids.max", "memory.max", "memory.limit_in_bytes"))
    sandbox.remove_groups(groups)
    assert not any(group.exists() for group in groups)
