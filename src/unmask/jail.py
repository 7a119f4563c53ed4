"""The inside of the sandbox: a small server that judges one program after another. Standard library only.

It runs in an interpreter of its own (see `sandbox.py`, which starts it) and speaks over its standard input, a socket.
Every program gets two forked children, made before the server reads the program: their memory holds neither this
program nor any other. One runs the code in a folder of its own, the other runs the tests (see `exam.py`). Both are
bounded, and neither can reach another process. The server draws a secret after the last test; the examiner must send
it back.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from unmask.exam import ALL_RAN, RAN, Channel, answer, examine, pair
from unmask.system_calls import program

FILE_BYTES = 2**20
FOLDER = b"size=16777216,nr_inodes=256,mode=700"
OPEN_FILES = 32
TASKS = 32  # processes and threads of one sandbox
MEMORY_MIB = 512  # of a child
PLENTY_MIB = 2**20  # so that threads fail for their number, not for their stacks

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
_CLONE_NEWNS, _NOSUID_NODEV_NOEXEC = 0x20000, ctypes.c_ulong(2 | 4 | 8)
_NO_CAPABILITIES = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
_NOTHING = (ctypes.c_ulong(0),) * 4
if sys.platform != "win32":  # where the names above are read, and nothing runs
    import resource

    _LIBC = ctypes.CDLL(None)  # before the first fork, to do it once


class _Bounds(NamedTuple):
    """What a child may have and do."""

    timeout_s: float
    contained: bool
    allowed: bytes  # the filter of system calls; empty: there is none


def serve(timeout_s: float, contained: bool) -> None:
    """Judge programs until the other side hangs up."""
    host = Channel(socket.socket(fileno=os.dup(0)))
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(null, standard)
    _prctl(_PR_SET_DUMPABLE, 0)  # an answer must not look into its judge
    # Where threads are not counted, there are none.
    with_threads, without = (program(os.uname().machine, threads=threads) or b"" for threads in (True, False))
    holds = _in_child(lambda: _refuses_to_fork(without))
    if contained and not holds:
        sys.exit("the kernel or the machine has no system-call filter that we know")
    counted = holds and contained and _in_child(lambda: _counts_threads(with_threads))
    bounds = _Bounds(timeout_s, contained, (with_threads if counted else without) if holds else b"")
    gc.freeze()  # what is here now is shared with the children
    host.send("ready")
    with contextlib.suppress(EOFError):
        while True:
            _next(host, bounds)


def _next(host: Channel, bounds: _Bounds) -> None:
    (ours, theirs), (asking, answering) = pair(), pair()
    children = [
        _child(bounds, [theirs, asking], lambda: examine(theirs, asking)),
        _child(bounds, [answering], lambda: answer(answering), folder=True),
    ]
    for end in (theirs, asking, answering):
        end.end.close()
    try:
        host.send(_verdict(ours, host.receive(), bounds.timeout_s))
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
        for child in children:
            os.waitpid(child, 0)
        ours.end.close()


def _child(bounds: _Bounds, ends: list[Channel], work: Callable[[], None], *, folder: bool = False) -> int:
    """Fork a child that has these channels and the bounds, and does that work."""
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            os.dup2(0, 2)  # nothing is read or written there
            low = 3
            for kept in sorted(each.end.fileno() for each in ends):
                os.closerange(low, kept)
                low = kept + 1
            os.closerange(low, 64)
            if folder:
                _own_folder(bounds.contained)
            _limit(bounds.timeout_s, MEMORY_MIB)
            if not bounds.allowed or _lock(bounds.allowed):
                work()
        finally:
            os._exit(1)
    return child


def _own_folder(contained: bool) -> None:
    """Enter an empty folder: in memory and out of every other process's sight; if that fails, /tmp is read-only."""
    if not contained:
        os.mkdir(folder := f"{os.getpid()}-{time.monotonic_ns()}")
        os.chdir(folder)
    elif _LIBC.unshare(_CLONE_NEWNS) == 0:
        _LIBC.mount(b"tmpfs", b"/tmp", b"tmpfs", _NOSUID_NODEV_NOEXEC, FOLDER)
        os.chdir("/tmp")


def _verdict(examiner: Channel, job: Any, timeout_s: float) -> str:
    try:
        examiner.send(job)
        while (reply := examiner.receive(timeout_s)) == RAN:
            pass
        if reply != ALL_RAN:
            return "failed: " + " ".join(reply.encode(errors="replace").decode().split())[:200]
        secret = os.urandom(16).hex()
        examiner.send(secret)
        return "passed" if examiner.receive(timeout_s) == secret else "crashed"
    except TimeoutError:
        return "timeout"
    except (EOFError, OSError):
        return "crashed"


def _limit(timeout_s: float, memory_mib: int) -> None:
    cpu = 10 * int(timeout_s + 1)  # a backstop: the judge watches the clock
    for what, most in (
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_AS, memory_mib * 2**20),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, TASKS),
    ):
        with contextlib.suppress(ValueError, OSError):  # not every system has every limit
            resource.setrlimit(what, (most, most))


def _prctl(option: int, *values: object) -> bool:
    if sys.platform != "linux":
        return False
    arguments = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in values]
    return _LIBC.prctl(option, *arguments, *_NOTHING[len(values) :]) == 0


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def _lock(allowed: bytes) -> bool:
    """Give up every capability, and every system call that the filter does not allow, for ever."""
    program = _Program(len(allowed) // 8, allowed)
    dropped = _LIBC.capset(*_NO_CAPABILITIES) == 0
    return dropped and _prctl(_PR_SET_NO_NEW_PRIVS, 1) and _prctl(_PR_SET_SECCOMP, 2, ctypes.byref(program))


def _in_child(holds: Callable[[], bool]) -> bool:
    """Whether something holds, tried in a child."""
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os._exit(0 if holds() else 1)
        os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def _refuses_to_fork(allowed: bytes) -> bool:
    """Whether the filter can be set, and then really holds."""
    locked = _lock(allowed)
    try:
        os.fork()
    except PermissionError:
        return locked
    os._exit(1)  # parent and child


def _counts_threads(allowed: bytes) -> bool:
    """Whether the system bounds their number. Limits of a user do not bind root; a cgroup may."""
    import _thread

    _limit(1.0, PLENTY_MIB)
    _lock(allowed)
    try:
        for _ in range(TASKS):
            _thread.start_new_thread(time.sleep, (99,))
    except RuntimeError:
        return True
    return False
