"""The inside of the sandbox: a small server that judges one program after another. Standard library only.

It runs as a script in an interpreter of its own (see `sandbox.py`, which starts it) and speaks over its standard input,
a socket. Every program gets a forked child. The child is made before the server reads the program, so its memory holds
neither this program nor any other. The server sends the child one statement at a time: the code, then the tests, each
when the statement before has run. The secret that proves a pass is drawn after the last test; the child must send it
back.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import socket
import sys
import time
from types import ModuleType

FILE_BYTES = 2**20
OPEN_FILES = 32
REPLY_BYTES = 4096

READY, OK, RAISED, SECRET, STATEMENT = b"ready", b"+", b"!", b"?", b">"

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
_CLONE_THREAD = 0x10000
# Numbers of the system calls that `_filter` refuses to an answer, by machine.
_NEW_PROCESSES = {"x86_64": (57, 58, 59, 322), "aarch64": (221, 281)}  # fork, vfork, execve, execveat
_SIGNALS = {"x86_64": (62, 200, 234, 129, 297, 424), "aarch64": (129, 130, 131, 138, 240, 424)}
_OTHER_MEMORY = {  # ptrace, process_vm_*, shmget, msgget, semget, mq_open
    "x86_64": (101, 310, 311, 29, 68, 64, 240),
    "aarch64": (117, 270, 271, 194, 186, 190, 180),
}
_NAMESPACES = {"x86_64": (272, 308, 165, 166, 155, 161, 428, 430), "aarch64": (97, 268, 40, 39, 41, 51, 428, 430)}
_KERNEL = {  # bpf, perf_event_open, add_key, request_key, keyctl, userfaultfd, io_uring_setup
    "x86_64": (321, 298, 248, 249, 250, 323, 425),
    "aarch64": (280, 241, 217, 218, 219, 282, 425),
}
_CLONE, _CLONE3 = {"x86_64": 56, "aarch64": 220}, 435
_SOCKET, _AF_UNIX = {"x86_64": 41, "aarch64": 198}, 1
_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


class Channel:
    """Whole messages over a socket: EOFError when the peer is gone, TimeoutError when it is late."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end

    def send(self, message: bytes, timeout_s: float) -> None:
        self.end.settimeout(timeout_s)
        try:
            self.end.sendall(len(message).to_bytes(4, "big") + message)
        except (BrokenPipeError, ConnectionResetError):
            raise EOFError from None

    def receive(self, timeout_s: float, *, most: int = 2**32) -> bytes:
        deadline = time.monotonic() + timeout_s
        size = int.from_bytes(self._exactly(4, deadline), "big")
        if size > most:
            raise EOFError
        return self._exactly(size, deadline)

    def _exactly(self, size: int, deadline: float) -> bytes:
        data = b""
        while len(data) < size:
            self.end.settimeout(max(1e-3, deadline - time.monotonic()))
            try:
                part = self.end.recv(size - len(data))
            except ConnectionResetError:
                part = b""
            if not part:
                raise EOFError
            data += part
        return data


def serve(timeout_s: float, memory_mib: int, contained: bool) -> None:
    """Judge programs until the other side hangs up; after a program that left files behind, say so and stop."""
    host = Channel(socket.socket(fileno=os.dup(0)))
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(null, standard)
    if contained and not _lock_holds():
        sys.exit("the kernel or the machine has no system-call filter that we know")
    _prctl(_PR_SET_DUMPABLE, 0)  # an answer must not look into its judge
    host.send(READY, timeout_s)
    clean = True
    while clean:
        clean = _next(host, null, timeout_s, memory_mib)


def _next(host: Channel, null: int, timeout_s: float, memory_mib: int) -> bool:
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        os.setsid()
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        end = theirs.detach()
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        os.closerange(3, end)
        os.closerange(end + 1, 256)
        _limit(timeout_s, memory_mib)
        _obey(end)
    theirs.close()
    channel = Channel(ours)
    try:
        statements = json.loads(host.receive(1e6))
        verdict = _verdict(channel, statements, timeout_s)
    except EOFError:
        return False
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(child, signal.SIGKILL)
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        ours.close()
    try:
        clean = not os.listdir()
    except OSError:  # the answer has removed the folder
        clean = False
    host.send(json.dumps({"reason": verdict, "clean": clean}).encode(), timeout_s)
    return clean


def _verdict(channel: Channel, statements: list[str], timeout_s: float) -> str:
    try:
        for statement in statements:
            channel.send(STATEMENT + statement.encode(errors="surrogatepass"), timeout_s)
            reply = channel.receive(timeout_s, most=REPLY_BYTES)
            if reply != OK:
                return "failed: " + " ".join(reply[1:].decode(errors="replace").split())[:200]
        secret = os.urandom(16)
        channel.send(SECRET + secret, timeout_s)
        return "passed" if channel.receive(timeout_s, most=REPLY_BYTES) == secret else "crashed"
    except TimeoutError:
        return "timeout"
    except EOFError:
        return "crashed"


def _obey(end: int) -> None:
    """The child: run the statements that the server sends, until it is killed.

    On the way to a pass, no global or builtin is looked up once an answer has run. An answer that rewrites this
    frame's locals is not stopped.
    """
    module = ModuleType("__candidate__")
    sys.modules |= {"__candidate__": module, "__main__": ModuleType("__main__")}
    names = vars(module)
    run, build, read, write, leave = exec, compile, os.read, os.write, os._exit
    size, number, kinds, as_text, any_error = len, int.from_bytes, type, str, BaseException
    statement, secret, raised, fine = STATEMENT, SECRET, RAISED, OK
    while True:
        expected, message = number(read(end, 4), "big"), b""
        while size(message) < expected:
            part = read(end, expected - size(message))
            if not part:
                leave(1)
            message += part
        if message[:1] == secret:
            reply = message[1:]
        elif message[:1] != statement:
            leave(1)
        else:
            try:
                run(build(message[1:].decode("utf-8", "surrogatepass"), "<candidate>", "exec"), names)
                reply = fine
            except any_error as error:  # sys.exit() is a failure too
                reply = raised + _told(kinds(error).__name__, error, as_text)
        write(end, size(reply).to_bytes(4, "big") + reply)


def _told(kind: str, error: BaseException, as_text: type[str]) -> bytes:
    try:
        return f"{kind}: {as_text(error)[:500]}".encode(errors="replace")
    except BaseException:  # the error's __str__ is the answer's code
        return kind.encode(errors="replace")


def _limit(timeout_s: float, memory_mib: int) -> None:
    locked = _lock()
    cpu = 10 * int(timeout_s + 1)  # a backstop: the judge watches the clock
    for what, most in (
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_AS, memory_mib * 2**20),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
        *(() if locked else ((resource.RLIMIT_NPROC, 0),)),
    ):
        with contextlib.suppress(ValueError, OSError):  # not every system has every limit
            resource.setrlimit(what, (most, most))


def _prctl(option: int, *values: object) -> bool:
    if sys.platform != "linux":
        return False
    padded = [*values, 0, 0, 0, 0][:4]
    arguments = [ctypes.c_ulong(value) if isinstance(value, int) else value for value in padded]
    return ctypes.CDLL(None).prctl(option, *arguments) == 0


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def _lock() -> bool:
    """Deny this process, for ever, new processes, signals, sockets, others' memory and the kernel's odder corners."""
    code = _filter(os.uname().machine)
    if code is None or not _prctl(_PR_SET_NO_NEW_PRIVS, 1):
        return False
    program = _Program(len(code) // 8, code)
    return _prctl(_PR_SET_SECCOMP, 2, ctypes.byref(program))


def _lock_holds() -> bool:
    """Whether the filter works here: tried in a child, which must then fail to fork."""
    child = os.fork()
    if child == 0:
        try:
            locked = _lock()
            os.fork()
        except PermissionError:
            os._exit(0 if locked else 1)
        os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def _filter(machine: str) -> bytes | None:
    """The classic BPF program of `_lock`, for seccomp's view: call number at 0, machine at 4, first argument at 16."""
    if sys.platform != "linux" or machine not in _MACHINES:
        return None
    load, equal, at_least, any_bit, give = 0x20, 0x15, 0x35, 0x45, 0x06
    kill, allow, refuse, unknown = 0x80000000, 0x7FFF0000, 0x00050000 | 1, 0x00050000 | 38

    def line(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return code.to_bytes(2, sys.byteorder) + bytes((yes, no)) + value.to_bytes(4, sys.byteorder)

    lines = [line(load, 4), line(equal, _MACHINES[machine], 1, 0), line(give, kill), line(load, 0)]
    lines += [line(at_least, 0x40000000, 0, 1), line(give, refuse)]  # x86's second set of numbers
    for group in (_NEW_PROCESSES, _SIGNALS, _OTHER_MEMORY, _NAMESPACES, _KERNEL):
        for call in group[machine]:
            lines += [line(equal, call, 0, 1), line(give, refuse)]
    lines += [line(equal, _CLONE3, 0, 1), line(give, unknown)]  # the C library then uses clone, which can be judged
    # Not every socket belongs to a network that can be taken away: one to the host of a virtual machine does not.
    lines += [line(equal, _SOCKET[machine], 0, 4), line(load, 16), line(equal, _AF_UNIX, 1, 0)]
    lines += [line(give, refuse), line(give, allow)]
    lines += [line(equal, _CLONE[machine], 0, 3), line(load, 16), line(any_bit, _CLONE_THREAD, 1, 0)]
    lines += [line(give, refuse), line(give, allow)]
    return b"".join(lines)


if __name__ == "__main__":
    serve(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "contained")
