"""How long a call takes and how much memory it needs; how fast a forward pass could be; and the form of every result.

The floor of a pass follows from what the device can do, measured, and what the pass must do, counted: the matrix
products and the attention of every layer, for every position that a call computes, and the head. A perfect kernel would
do everything else on the way. Each operation reads its inputs once and writes its outputs once, and takes as long as
the slower of its bytes and its arithmetic. Operations run one after the other, so the floor of a pass is their sum.
Quantised weights are read as they are stored.
"""

from __future__ import annotations

import ctypes
import math
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from unmask.device import wait_for
from unmask.models.device import free_memory
from unmask.models.layers import TransformerShape

_MIB = 2**20
_WITHOUT_PAUSE = 20  # calls between two looks at the clock
# What a server may hold more of at the end than after the first third of the time: caches fill, and pools of threads.
_GROWTH, _SLACK_MIB, _SLACK_FILES, _SLACK_THREADS = 1.1, 32.0, 8, 8
# Bytes of a copy, width of a product, runs of each: many times the caches of the device, and done in a second.
_SIZES = {"gpu": (2**31, 8192, 20), "cpu": (2**28, 1536, 11)}
_LASTING_S = 1.0  # after which a GPU has reached the clock that it can keep up


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """The highest rates of the device, in the dtype of the model."""

    bytes_per_s: float  # of a large copy, read and written bytes both counted
    flops_per_s: float  # of a large matrix product
    lasting_flops_per_s: float | None = None  # of many of them without a pause, which make a GPU lower its clock


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """The size of one model call: two numbers for each row, and one for all rows."""

    positions: tuple[int, ...]  # computed
    keys: tuple[int, ...]  # seen by each of them
    predicted: int  # positions of each row that go through the head


class Cost(NamedTuple):
    """What an operation moves and computes."""

    n_bytes: int
    flops: int


class Floor(NamedTuple):
    """The least time in which the device could do some work; None where that is not known."""

    seconds: float | None = None
    lasting_s: float | None = None  # with products at the rate that a GPU keeps up for seconds
    bound_by: str | None = None  # 'memory' or 'arithmetic': what most of the time consists of


def measure_ceilings(
    device: torch.device, dtype: torch.dtype, *, copy_bytes: int | None = None, width: int | None = None
) -> Ceilings:
    """Median rates of a copy and of a square matrix product, on random numbers: zeros can run faster than real data."""
    usual_bytes, usual_width, repeats = _SIZES["cpu" if device.type == "cpu" else "gpu"]
    wanted, width, free = copy_bytes or usual_bytes, width or usual_width, free_memory(device)
    count = (wanted if free is None else min(wanted, free // 4)) // dtype.itemsize
    source = torch.randn(min(count, 2**20), dtype=dtype, device=device).repeat(max(1, count // 2**20))
    target = torch.empty_like(source)
    copy_ms = median_ms(lambda: target.copy_(source), repeats=repeats, device=device)
    n_bytes, flops = 2 * source.nbytes, 2 * width**3
    del source, target
    left, right = (torch.randn(width, width, dtype=dtype, device=device) for _ in range(2))
    product_ms = median_ms(lambda: left @ right, repeats=repeats, device=device)
    lasting = lasting_ms(lambda: left @ right, seconds=_LASTING_S, device=device) if device.type == "cuda" else None
    return Ceilings(
        bytes_per_s=1000.0 * n_bytes / copy_ms,
        flops_per_s=1000.0 * flops / product_ms,
        lasting_flops_per_s=None if lasting is None else 1000.0 * flops / lasting,
    )


def operations(shape: TransformerShape, call: ModelCall, itemsize: int, *, quantized: bool = False) -> dict[str, Cost]:
    """The operations of one call, each summed over the layers; `quantized`: the weights of the layers have 8 bits."""
    tokens, queries = sum(call.positions), shape.n_heads * shape.head_width
    pairs = sum(positions * keys for positions, keys in zip(call.positions, call.keys, strict=True))
    stored = 2 * shape.n_kv_heads * shape.head_width  # keys and values of a position

    def product(inputs: int, outputs: int, written: int) -> Cost:
        # A quantised weight is one byte, and every output has a scale in float32.
        weights = outputs * (inputs + 4) if quantized else outputs * inputs * itemsize
        return Cost(weights + itemsize * tokens * (inputs + written), 2 * tokens * inputs * outputs)

    layer = {
        "queries, keys and values": product(shape.width, queries + stored, queries + stored),
        "attention": Cost(itemsize * (sum(call.keys) * stored + 2 * tokens * queries), 4 * pairs * queries),
        "attention output": product(queries, shape.width, shape.width),
        # Gate and up are combined into one number before anything is written.
        "feed-forward in": product(shape.width, 2 * shape.hidden, shape.hidden),
        "feed-forward out": product(shape.hidden, shape.width, shape.width),
    }
    predicted, vocabulary = len(call.keys) * call.predicted, shape.vocab_size
    head_bytes = itemsize * (shape.width * vocabulary + predicted * (shape.width + vocabulary))
    costs = {name: Cost(shape.n_layers * cost.n_bytes, shape.n_layers * cost.flops) for name, cost in layer.items()}
    return costs | {"head": Cost(head_bytes, 2 * predicted * shape.width * vocabulary)}


def floor(
    shape: TransformerShape, calls: Sequence[ModelCall], itemsize: int, ceilings: Ceilings, *, quantized: bool = False
) -> Floor:
    """The least that these calls, one after the other, can take with numbers of `itemsize` bytes."""
    seconds = lasting_s = moving_s = 0.0
    for call in calls:
        for cost in operations(shape, call, itemsize, quantized=quantized).values():
            memory_s, arithmetic_s = cost.n_bytes / ceilings.bytes_per_s, cost.flops / ceilings.flops_per_s
            seconds += max(memory_s, arithmetic_s)
            moving_s += memory_s if memory_s > arithmetic_s else 0.0
            lasting_s += max(memory_s, cost.flops / (ceilings.lasting_flops_per_s or math.inf))
    bound_by = "memory" if moving_s > seconds / 2 else "arithmetic"
    return Floor(seconds, lasting_s if ceilings.lasting_flops_per_s else None, bound_by)
