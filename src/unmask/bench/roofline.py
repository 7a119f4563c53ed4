"""How fast a forward pass could be: what a device can do, measured, and what the pass must do, counted.

Counts the matrix products and the attention of every layer, for every position that a call computes; everything else
a perfect kernel would do on the way. Each of them reads its inputs once and writes its outputs once, and takes as long
as the slower of its bytes and its arithmetic. They run one after the other, so the floor of a pass is their sum.
Quantised weights are read as they are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from unmask.bench.measure import lasting_ms, median_ms
from unmask.models.checkpoint.memory import free_memory
from unmask.models.layers import TransformerShape

# Many times the caches of the device, and little enough to be done in a second.
_COPY_BYTES = {"cuda": 2**31, "cpu": 2**28}
_PRODUCT_WIDTH = {"cuda": 8192, "cpu": 1536}
_REPEATS = {"cuda": 20, "cpu": 11}
_LASTING_S = 1.0  # after which a GPU has found the clock at which it can go on


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """What the device does at best, in the dtype of the model."""

    bytes_per_s: float  # of a large copy, read and written bytes both counted
    flops_per_s: float  # of a large matrix product
    lasting_flops_per_s: float | None = None  # of many of them without a pause, which make a GPU lower its clock

    def lasting(self) -> Ceilings | None:
        """What it does for seconds on end, if that was measured."""
        return None if self.lasting_flops_per_s is None else replace(self, flops_per_s=self.lasting_flops_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """The size of one call of the model: a number for each row, and one for all."""

    positions: tuple[int, ...]  # computed
    keys: tuple[int, ...]  # seen by each of them
    predicted: int  # positions of each row that go through the head


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """What one kind of operation costs in all layers together."""

    name: str
    n_bytes: int
    flops: int

    def seconds(self, ceilings: Ceilings) -> float:
        return max(self.n_bytes / ceilings.bytes_per_s, self.flops / ceilings.flops_per_s)

    def is_moving(self, ceilings: Ceilings) -> bool:
        """Whether its bytes take longer than its arithmetic."""
        return self.n_bytes / ceilings.bytes_per_s > self.flops / ceilings.flops_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """The time below which no version of some work goes that does all of it."""

    seconds: float
    n_bytes: int
    flops: int
    bound_by: str  # 'memory' or 'arithmetic': what most of the time consists of


def measure_ceilings(
    device: torch.device, dtype: torch.dtype, *, copy_bytes: int | None = None, width: int | None = None
) -> Ceilings:
    """Median rates of a copy and of a square matrix product, on random numbers: zeros can run faster than real data."""
    kind = "cpu" if device.type == "cpu" else "cuda"
    free = free_memory(device)
    wanted = copy_bytes or _COPY_BYTES[kind]
    count = (wanted if free is None else min(wanted, free // 4)) // dtype.itemsize
    source = torch.randn(min(count, 2**20), dtype=dtype, device=device).repeat(max(1, count // 2**20))
    target = torch.empty_like(source)
    copy_ms = median_ms(lambda: target.copy_(source), repeats=_REPEATS[kind], device=device)
    n_bytes = 2 * source.nbytes
    del source, target
    width = width or _PRODUCT_WIDTH[kind]
    left, right = (torch.randn(width, width, dtype=dtype, device=device) for _ in range(2))
    product_ms = median_ms(lambda: left @ right, repeats=_REPEATS[kind], device=device)
    lasting = lasting_ms(lambda: left @ right, seconds=_LASTING_S, device=device) if device.type == "cuda" else None
    return Ceilings(
        bytes_per_s=1000.0 * n_bytes / copy_ms,
        flops_per_s=1000.0 * 2 * width**3 / product_ms,
        lasting_flops_per_s=None if lasting is None else 1000.0 * 2 * width**3 / lasting,
    )


def operations(shape: TransformerShape, call: ModelCall, itemsize: int, *, quantized: bool = False) -> list[Operation]:
    """The operations of one call, each summed over the layers; `quantized`: the weights of the layers have 8 bits."""
    tokens, queries = sum(call.positions), shape.n_heads * shape.head_width
    pairs = sum(positions * keys for positions, keys in zip(call.positions, call.keys, strict=True))
    stored = 2 * shape.n_kv_heads * shape.head_width  # keys and values of a position
    own = {"itemsize": itemsize, "quantized": quantized}
    layer = {
        "queries, keys and values": _product(tokens, shape.width, queries + stored, **own),
        "attention": (
            itemsize * (sum(call.keys) * stored + 2 * tokens * queries),
            4 * pairs * queries,
        ),
        "attention output": _product(tokens, queries, shape.width, **own),
        # Gate and up make one number of two before anything is written.
        "feed-forward in": _product(tokens, shape.width, 2 * shape.hidden, written=shape.hidden, **own),
        "feed-forward out": _product(tokens, shape.hidden, shape.width, **own),
    }
    found = [(name, shape.n_layers * n_bytes, shape.n_layers * flops) for name, (n_bytes, flops) in layer.items()]
    found.append(("head", *_product(len(call.keys) * call.predicted, shape.width, shape.vocab_size, itemsize=itemsize)))
    return [Operation(name=name, n_bytes=n_bytes, flops=flops) for name, n_bytes, flops in found]


def floor(
    shape: TransformerShape, calls: Sequence[ModelCall], itemsize: int, ceilings: Ceilings, *, quantized: bool = False
) -> Floor:
    """The least that these calls, one after the other, can take with numbers of `itemsize` bytes."""
    found = [operation for call in calls for operation in operations(shape, call, itemsize, quantized=quantized)]
    seconds = sum(operation.seconds(ceilings) for operation in found)
    moving = sum(operation.seconds(ceilings) for operation in found if operation.is_moving(ceilings))
    return Floor(
        seconds=seconds,
        n_bytes=sum(operation.n_bytes for operation in found),
        flops=sum(operation.flops for operation in found),
        bound_by="memory" if moving > seconds / 2 else "arithmetic",
    )


def _product(
    tokens: int, inputs: int, outputs: int, *, itemsize: int, written: int | None = None, quantized: bool = False
) -> tuple[int, int]:
    """Bytes moved, and operations, of `tokens` rows times a matrix of weights."""
    # A quantised weight is one byte, and every output has a scale in float32.
    weights = outputs * (inputs + 4) if quantized else outputs * inputs * itemsize
    moved = itemsize * tokens * (inputs + (outputs if written is None else written))
    return weights + moved, 2 * tokens * inputs * outputs
