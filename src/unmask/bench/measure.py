"""How long a call takes, how much memory it needs beyond what was in use before, and the form of every result."""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from unmask.device import wait_for

_MIB = 2**20
_WITHOUT_PAUSE = 20  # calls between two looks at the clock
# What a server may hold more of at the end than after the first third of the time: caches fill, and pools of threads.
_GROWTH, _SLACK_MIB, _SLACK_FILES, _SLACK_THREADS = 1.1, 32.0, 8, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What one size of a workload came to."""

    title: str  # of the table: what was measured, and where
    figures: dict[str, Any]  # the JSON object
    rows: list[dict[str, Any]]  # lines of the table, by the headings of its columns
    failed: str = ""  # what went wrong, in words


def median_ms(call: Callable[[], Any], *, repeats: int, device: torch.device) -> float:
    """Median wall-clock time of a call whose first run is not counted."""
    seconds = []
    for _ in range(repeats + 1):
        began = now(device)
        call()
        seconds.append(now(device) - began)
    return 1000.0 * statistics.median(seconds[1:])


def lasting_ms(call: Callable[[], Any], *, seconds: float, device: torch.device) -> float:
    """Mean time of a call that is repeated for `seconds` without a pause; only the second half counts."""
    times, began = [], now(device)
    while sum(times) < seconds:
        for _ in range(_WITHOUT_PAUSE):
            call()
        ended = now(device)
        times.append(ended - began)
        began = ended
    return 1000.0 * statistics.mean(times[len(times) // 2 :]) / _WITHOUT_PAUSE


def now(device: torch.device) -> float:
    """The time in seconds, after the device has finished everything asked of it so far."""
    wait_for(device)
    return time.perf_counter()


def extra_memory_mib(call: Callable[[], Any], *, device: torch.device) -> float | None:
    """Peak memory of a call, less what was in use before it; None where the system does not tell.

    On a CPU it is the resident memory of the whole process, so nothing else should be running in it.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        wait_for(device)
        return (torch.cuda.max_memory_allocated(device) - before) / _MIB
    if device.type != "cpu" or sys.platform != "linux":
        return None
    # Memory that the allocator has kept would be used again without showing in the peak.
    ctypes.CDLL(None).malloc_trim(0)
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    before = _status("self", "VmHWM")
    call()
    return max(0, _status("self", "VmHWM") - before) / 1024


class Held(NamedTuple):
    """What a process holds at one moment."""

    mib: float  # resident memory
    files: int  # open file descriptors
    threads: int

    def __str__(self) -> str:
        return f"{self.mib:.0f} MiB, {self.files} files, {self.threads} threads"


def held_by(pid: int | None) -> Held | None:
    """What the process holds now; None where that cannot be read."""
    try:
        mib, threads = _status(pid, "VmRSS") / 1024, _status(pid, "Threads")
        return Held(mib, len([*Path(f"/proc/{pid}/fd").iterdir()]), threads)
    except (OSError, IndexError):
        return None


def growth_of(before: Held, after: Held) -> str:
    """What has grown beyond the slack, in words; empty if nothing has."""
    most = Held(before.mib * _GROWTH + _SLACK_MIB, before.files + _SLACK_FILES, before.threads + _SLACK_THREADS)
    names = zip(("memory", "open files", "threads"), before, after, most, (" MiB", "", ""), strict=True)
    return "; ".join(
        f"{name} grew from {was:.0f} to {now:.0f}{unit}" for name, was, now, at_most, unit in names if now > at_most
    )


def _status(pid: int | str | None, key: str) -> int:
    """A number from the system's page about a process."""
    return int(Path(f"/proc/{pid}/status").read_text().partition(f"{key}:")[2].split()[0])


def short(value: float) -> str:
    """Three digits, or more where they stand before the point."""
    decimals = next((count for count, least in enumerate((100, 10, 1)) if value >= least), 3)
    return f"{value:.{decimals}f}"
