"""How long a call takes, and how much memory it needs beyond what was in use before."""

from __future__ import annotations

import ctypes
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from unmask.device import wait_for

_MIB = 2**20
_WITHOUT_PAUSE = 20  # calls between two looks at the clock


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


def replayed_ms(calls: Sequence[Callable[[], Any]], *, repeats: int, device: torch.device) -> float:
    """Median time of one of these calls, all replayed from one CUDA graph, so that the host's launches do not count."""
    with torch.cuda.device(device):
        for call in calls:
            call()  # compiling and setting up must not be captured
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        return median_ms(graph.replay, repeats=repeats, device=device) / len(calls)


def copies_beyond_cache(tensor: torch.Tensor) -> int:
    """How many copies of a CUDA tensor, read in turn, are too many for the L2 cache to keep any; at most 256."""
    cache = torch.cuda.get_device_properties(tensor.device).L2_cache_size
    return min(1 + math.ceil(2 * cache / tensor.nbytes), 256)


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
    before = _peak_kib()
    call()
    return max(0, _peak_kib() - before) / 1024


def short(value: float) -> str:
    """Three digits, or more where they stand before the point."""
    decimals = next((count for count, least in enumerate((100, 10, 1)) if value >= least), 3)
    return f"{value:.{decimals}f}"


def ratio_in_words(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def _peak_kib() -> int:
    """The most resident memory of this process since the mark was last reset."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])
