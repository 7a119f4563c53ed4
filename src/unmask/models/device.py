"""The device that a model is on: choosing it, its maker's name for it, and how much of its memory is free.

Where the system does not say how much is free, nothing is refused.
"""

from __future__ import annotations

import platform
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from unmask.device import out_of_memory
from unmask.errors import OutOfMemory, UnmaskError

MEMINFO, CGROUP = Path("/proc/meminfo"), Path("/sys/fs/cgroup")


def choose_device(device: str | torch.device | None) -> torch.device:
    """The device asked for, if it is there; by default CUDA, else MPS, else the CPU."""
    if device is None:
        best = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device(best)
    available = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    try:
        chosen = torch.device(device)
        count = available[chosen.type]
    except (RuntimeError, TypeError, KeyError) as error:
        raise UnmaskError(f"unknown device {device!r}; use 'cpu', 'cuda', 'cuda:N' or 'mps'") from error
    if (chosen.index or 0) >= count:
        raise UnmaskError(f"device {str(device)!r} is not there: torch {torch.__version__} sees {count} of that type")
    return chosen


def device_name(device: torch.device) -> str:
    """The device in the words of its maker, or the processor's kind."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return model or platform.processor() or platform.machine()


def check_memory(needed: int, device: torch.device, *, what: str, instead: str | None = None) -> None:
    """Refuse what cannot fit, before anything is allocated. `instead` is the way out; by default, that for a model."""
    free = free_memory(device)
    if free is not None and needed > free:
        way_out = instead or _way_out(device)
        raise OutOfMemory(f"{what} needs {_gib(needed)} on {device}, but {_gib(free)} are free; {way_out}")


@contextmanager
def memory_errors(needed: int, device: torch.device, *, what: str) -> Generator[None]:
    """Raise OutOfMemory where an allocation fails after all, as it can when other programs use the device."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not out_of_memory(error):
            raise
        message = f"{device} ran out of memory loading {what}, which needs {_gib(needed)}; {_way_out(device)}"
        raise OutOfMemory(message) from error


def free_memory(device: torch.device) -> int | None:
    """Bytes that can still be allocated; None if that cannot be known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    return min(_limits(), default=None)


def _limits() -> Iterator[int]:
    """Bytes that the machine has available, and those that a container may still use, as far as they are known."""
    with suppress(OSError, ValueError, IndexError):
        yield int(MEMINFO.read_text().partition("MemAvailable:")[2].split()[0]) * 1024
    with suppress(OSError, ValueError):
        left = int((CGROUP / "memory.max").read_text()) - int((CGROUP / "memory.current").read_text())  # no limit: max
        stat = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        yield left + int(stat.get("inactive_file", 0))  # page cache, which the kernel drops under pressure


def _gib(amount: int) -> str:
    return f"{amount / 2**30:.2f} GiB"


def _way_out(device: torch.device) -> str:
    other = "a machine with more memory" if device.type == "cpu" else "a larger device or device='cpu'"
    return f"use dtype='bfloat16' if it is not that already, quantize='int8', a smaller model, or {other}"
