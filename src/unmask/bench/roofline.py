"""How fast a forward pass could be: what a device can do, measured, and what the pass must do, counted.

Counts the matrix products and the attention of every layer, for every position that a call computes, and the head. A
perfect kernel would do everything else on the way. Each operation reads its inputs once and writes its outputs once,
and takes as long as the slower of its bytes and its arithmetic. Operations run one after the other, so the floor of a
pass is their sum. Quantised weights are read as they are stored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from unmask.bench.measure import lasting_ms, median_ms
from unmask.models.device import free_memory
from unmask.models.layers import TransformerShape

# Bytes of a copy, width of a product, runs of each: many times the caches of the device, and done in a second.
_SIZES = {"gpu": (2**31, 8192, 20), "cpu": (2**28, 1536, 11)}
_LASTING_S = 1.0  # after which a GPU has reached the clock that it can keep up


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
