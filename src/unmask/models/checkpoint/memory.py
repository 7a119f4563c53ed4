"""How much memory is free on a device, and the error if it is not enough.

Where the system does not say how much is free, nothing is refused.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import torch

from unmask.device import out_of_memory
from unmask.errors import OutOfMemory

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


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
        raise OutOfMemory(
            f"{device} ran out of memory loading {what}, which needs {_gib(needed)}; {_way_out(device)}"
        ) from error


def free_memory(device: torch.device) -> int | None:
    """Bytes that can still be allocated; None if that cannot be known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        total = getattr(torch.mps, "recommended_max_memory", lambda: None)()
        return None if total is None else total - torch.mps.driver_allocated_memory()
    known = [amount for amount in (_available_here(), _left_in_cgroup()) if amount is not None]
    return min(known, default=None)


def _available_here() -> int | None:
    try:
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _left_in_cgroup() -> int | None:
    """Bytes that a container may still use. Page cache counts as free, since the kernel drops it under pressure."""
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
        return None if limit == "max" else int(limit) - used + int(stat.get("inactive_file", 0))
    except (OSError, ValueError):
        return None


def _gib(amount: int) -> str:
    return f"{amount / 2**30:.2f} GiB"


def _way_out(device: torch.device) -> str:
    other = "a machine with more memory" if device.type == "cpu" else "a larger device or device='cpu'"
    return f"use dtype='bfloat16' if it is not that already, quantize='int8', a smaller model, or {other}"
