"""The filter of system calls: its numbers on both machines, compared by the names in the kernel's headers."""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path

import pytest

from unmask import system_calls

INCLUDE = Path("/usr/include")
# A header for x86_64 lies where that is the machine. The generic one, which aarch64 follows, lies on every Linux.
HEADERS = {
    "x86_64": [INCLUDE / "x86_64-linux-gnu/asm/unistd_64.h", INCLUDE / "asm/unistd_64.h"],
    "aarch64": [INCLUDE / "asm-generic/unistd.h"],
}
MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW = 0x7FFF0000
# Arguments with which at least one of the calls that depend on them is allowed: copy, terminal, thread.
TRIED = ((0, 0), (0, 0x5401), (0x3D0F00, 0))
NEVER = """
bind chmod chown chroot connect execve execveat fchmodat fork init_module io_uring_setup kill link linkat
listen memfd_create mknodat mount move_pages msgget open_by_handle_at perf_event_open pidfd_open pidfd_send_signal prctl
process_vm_readv process_vm_writev ptrace reboot rt_sigqueueinfo rt_tgsigqueueinfo sched_setaffinity sched_setscheduler
seccomp setpgid setpriority setresuid setrlimit setsid setxattr shmget socket symlinkat tgkill tkill unshare
userfaultfd vfork""".split()


def numbers(machine: str) -> dict[str, int]:
    """The calls of a machine by name."""
    header = next((path for path in HEADERS[machine] if path.exists()), None)
    if header is None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"no header of the kernel for {machine}; install linux-libc-dev")
        pytest.skip("needs headers of the kernel: apt-get install linux-libc-dev")
    text = header.read_text()
    found = {name: int(number) for name, number in re.findall(r"#\s*define __NR(?:3264)?_(\w+)\s+(\d+)", text)}
    again = re.findall(r"#\s*define __NR_(\w+)\s+__NR3264_(\w+)", text)
    return found | {name: found[other] for name, other in again if other in found}


def outcome(program: bytes, machine: str, number: int, *arguments: int) -> int:
    """What the kernel would make of a call: the value that the program gives."""
    data = struct.pack("=iIQ6Q", number, MACHINES[machine], 0, *arguments, *[0] * (6 - len(arguments)))
    line, loaded = 0, 0
    while True:
        code, yes, no, value = struct.unpack_from("=HBBI", program, 8 * line)
        line += 1
        match code:
            case 0x20:
                (loaded,) = struct.unpack_from("=I", data, value)
            case 0x15:
                line += yes if loaded == value else no
            case 0x35:
                line += yes if loaded >= value else no
            case _:
                assert code == 0x06
                return value


def allowed(machine: str) -> set[str]:
    program = system_calls.program(machine, threads=True)
    assert program is not None
    calls = numbers(machine).items()
    return {name for name, call in calls if any(outcome(program, machine, call, *tried) == ALLOW for tried in TRIED)}


def test_both_machines_allow_the_same_calls_by_name() -> None:
    here, there, names = allowed("x86_64"), allowed("aarch64"), numbers("aarch64")
    assert len(here) > 100
    assert here & set(names) <= there
    # The generic header has further names, of 32-bit machines, for some numbers.
    assert {names[name] for name in there} == {names[name] for name in here & set(names)}


@pytest.mark.parametrize("machine", MACHINES)
def test_what_reaches_beyond_a_process_is_refused_by_name(machine: str) -> None:
    known = numbers(machine)
    assert len(set(NEVER) & set(known)) > 40
    assert not allowed(machine) & set(NEVER)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_call_of_another_machine_ends_the_process(machine: str) -> None:
    program = system_calls.program(machine, threads=True)
    other = next(each for each in MACHINES if each != machine)
    assert program is not None
    assert outcome(program, other, 0) == 0x80000000
