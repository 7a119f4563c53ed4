"""The system calls that model-written code may make: those that CPython 3.11 to 3.13 needs to compute. Plain data.

Every call that is not listed is refused, the calls of later kernels too. So an answer cannot start a process, send a
signal, open a socket, change limits, schedules, rights or attributes, or name another process in any way. Some calls
are allowed for certain arguments only.
"""

from __future__ import annotations

import sys

_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# Numbers on x86_64 and on aarch64; -1: the machine does not have the call.
# fmt: off
_FILES = {
    "read": (0, 63), "write": (1, 64), "open": (2, -1), "close": (3, 57), "stat": (4, -1), "fstat": (5, 80),
    "lstat": (6, -1), "lseek": (8, 62), "pread64": (17, 67), "pwrite64": (18, 68), "readv": (19, 65),
    "writev": (20, 66), "access": (21, -1), "pipe": (22, -1), "dup": (32, 23), "dup2": (33, -1), "fsync": (74, 82),
    "fdatasync": (75, 83), "truncate": (76, 45), "ftruncate": (77, 46), "getcwd": (79, 17), "chdir": (80, 49),
    "fchdir": (81, 50), "rename": (82, -1), "mkdir": (83, -1), "rmdir": (84, -1), "unlink": (87, -1),
    "readlink": (89, -1), "umask": (95, 166), "getdents64": (217, 61), "fadvise64": (221, 223), "openat": (257, 56),
    "mkdirat": (258, 34), "newfstatat": (262, 79), "unlinkat": (263, 35), "renameat": (264, 38),
    "readlinkat": (267, 78), "faccessat": (269, 48), "dup3": (292, 24), "pipe2": (293, 59), "renameat2": (316, 276),
    "statx": (332, 291), "close_range": (436, 436), "faccessat2": (439, 439),
}
_WAITING = {  # and what asyncio needs: a pair of sockets, which lead nowhere
    "poll": (7, -1), "select": (23, -1), "sched_yield": (24, 124), "nanosleep": (35, 101), "getitimer": (36, 102),
    "alarm": (37, -1), "setitimer": (38, 103), "recvfrom": (45, 207), "shutdown": (48, 210),
    "getsockname": (51, 204), "getpeername": (52, 205), "socketpair": (53, 199), "getsockopt": (55, 209),
    "futex": (202, 98), "restart_syscall": (219, 128), "clock_nanosleep": (230, 115), "epoll_wait": (232, -1),
    "epoll_ctl": (233, 21), "pselect6": (270, 72), "ppoll": (271, 73), "epoll_pwait": (281, 22),
    "eventfd2": (290, 19), "epoll_create1": (291, 20),
}
_ITSELF = {  # its memory, its handlers, its end, and what it may know of itself and of the time
    "mmap": (9, 222), "mprotect": (10, 226), "munmap": (11, 215), "brk": (12, 214), "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "mremap": (25, 216), "madvise": (28, 233),
    "getpid": (39, 172), "exit": (60, 93), "uname": (63, 160), "gettimeofday": (96, 169), "getrlimit": (97, 163),
    "getrusage": (98, 165), "sysinfo": (99, 179), "times": (100, 153), "getuid": (102, 174), "getgid": (104, 176),
    "geteuid": (107, 175), "getegid": (108, 177), "getppid": (110, 173), "getpgrp": (111, -1),
    "getgroups": (115, 158), "getresuid": (118, 148), "getresgid": (120, 150), "sigaltstack": (131, 132),
    "arch_prctl": (158, -1), "gettid": (186, 178), "time": (201, -1), "sched_getaffinity": (204, 123),
    "set_tid_address": (218, 96), "clock_gettime": (228, 113), "clock_getres": (229, 114), "exit_group": (231, 94),
    "set_robust_list": (273, 99), "getcpu": (309, 168), "getrandom": (318, 278), "membarrier": (324, 283),
    "rseq": (334, 293),
}
# fmt: on
_CLONE, _IOCTL, _FCNTL, _SENDTO, _PRLIMIT = (56, 220), (16, 29), (72, 25), (44, 206), (302, 261)

_THREADS = (0x3D0F00, 0x7D0F00)  # the flags of pthread_create in glibc and in musl
_FCNTLS = (0, 1, 2, 3, 4, 1030)  # duplicate, flags of a descriptor; no owner, lease, lock or size of a pipe
_IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)  # is it a terminal, how wide, how much, may it block

_LOAD, _EQUAL, _AT_LEAST, _GIVE = 0x20, 0x15, 0x35, 0x06
_KILL, _ALLOW, _REFUSE, _UNKNOWN = 0x80000000, 0x7FFF0000, 0x00050000 | 1, 0x00050000 | 38  # EPERM, ENOSYS
_NEW = 424  # from here on a C library falls back to an older call where there is none, as with clone3


def program(machine: str, *, threads: bool) -> bytes | None:
    """The classic BPF program for seccomp, which sees the call's number at 0, the machine at 4, arguments from 16 on.

    None where we know no system calls.
    """
    if sys.platform != "linux" or machine not in _MACHINES:
        return None
    column = list(_MACHINES).index(machine)
    lines = [_line(_LOAD, 4), _line(_EQUAL, _MACHINES[machine], 1, 0), _line(_GIVE, _KILL), _line(_LOAD, 0)]
    lines += [_line(_AT_LEAST, 0x40000000, 0, 1), _line(_GIVE, _REFUSE)]  # x86's second set of numbers
    for call in (numbers[column] for group in (_ITSELF, _FILES, _WAITING) for numbers in group.values()):
        lines += [_line(_EQUAL, call, 0, 1), _line(_GIVE, _ALLOW)] if call >= 0 else []
    lines += _only(_FCNTL[column], 1, _FCNTLS) + _only(_IOCTL[column], 1, _IOCTLS)
    lines += _only(_SENDTO[column], 4, (0,), pointer=True)  # to the peer
    lines += _only(_PRLIMIT[column], 0, (0,))  # its own limits
    lines += _only(_CLONE[column], 0, _THREADS) if threads else []
    lines += [_line(_AT_LEAST, _NEW, 0, 1), _line(_GIVE, _UNKNOWN), _line(_GIVE, _REFUSE)]
    return b"".join(lines)


def _only(call: int, argument: int, values: tuple[int, ...], *, pointer: bool = False) -> list[bytes]:
    """Lines that allow a call if that argument has one of the values. The kernel looks at 32 bits, or at a pointer."""
    low, high = (16 + 8 * argument + half for half in ((0, 4) if sys.byteorder == "little" else (4, 0)))
    tried = [line for value in values for line in (_line(_EQUAL, value, 0, 1), _line(_GIVE, _ALLOW))]
    inside = [_line(_LOAD, high), _line(_EQUAL, 0, 1, 0), _line(_GIVE, _REFUSE)] if pointer else []
    inside += [_line(_LOAD, low), *tried]
    return [_line(_EQUAL, call, 0, len(inside) + 1), *inside, _line(_GIVE, _REFUSE)]


def _line(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
    return code.to_bytes(2, sys.byteorder) + bytes((yes, no)) + value.to_bytes(4, sys.byteorder)
