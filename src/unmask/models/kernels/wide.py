"""The gated product of many rows, its gate in the same launch, for Hopper devices; products.py has it for few rows.

Tiles are copied by descriptor. A descriptor's block is ROWS of `x`, or the columns of one tile of the result, by INNER
inputs. There is a program for each multiprocessor; it takes tile after tile, and the copies for its next tile begin
before the current one is stored. Tiles of the same columns follow one another, so that a matrix is read about once. The
last tiles are halved if they cannot occupy the whole device. Sums are in float32, in the same order however tiles are
cut. Results are rounded where the plain operations round.

`serves` says where this is faster than the vendor's library with `ops.gate`, as measured on Hopper devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

_HALF = (torch.bfloat16, torch.float16)
# With fewer rows the kernel is not faster.
_MANY_ROWS = 256
# Share of the device that must have a tile at any time. With LLaDA-8B on 132 multiprocessors it is faster at 0.97 (256,
# 512 and 1280 rows) and slower at 0.87 (384 rows); shares between were not measured.
_BUSY = 0.95
_HOPPER = 9
# This was measured with Triton 3.6 and later. The oldest releases have no descriptors.
_MEASURED = tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 6)
_properties = cache(torch.cuda.get_device_properties)
# How the product is cut, in powers of two: decides the speed only. Of the columns, half are for the gate.
TILES = {"ROWS": 128, "COLUMNS": 256, "INNER": 64, "GROUP": 16, "num_warps": 8, "num_stages": 4}


@triton.jit
def _place(tile, rows, columns, GROUP: tl.constexpr):
    """Where a tile is among `rows` by `columns` of them: GROUP rows of tiles at a time, column by column."""
    first = tile // (GROUP * columns) * GROUP
    height = tl.minimum(rows - first, GROUP)
    tile %= GROUP * columns
    return first + tile % height, tile // height


@triton.jit
def _halves(x):
    """The left half of the columns and the right half."""
    return tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), (0, 2, 1)))


@triton.jit
def _quick_silu(x):
    """x / (1 + e^-x), in float32, by the device's own power and division: to 7e-6 of itself while x is above -88.

    `silu` is more exact, and too slow here. Rounded to half precision, the two are the same number or neighbours; by
    this bound, neighbours for fewer than 1 in 400 figures that are normally distributed.
    """
    return x / (1.0 + tl.exp2(x * -1.4426950408889634))


@triton.jit
def _gate_tile(x, weight, out, row, feature, k, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr):
    """One tile of the result, COLUMNS / 2 features; `weight` (2, f, k) in blocks (2, COLUMNS / 2, INNER)."""
    total = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    for first in range(0, k, INNER):
        both = tl.reshape(weight.load([0, feature, first]), (COLUMNS, INNER))
        total = tl.dot(x.load([row, first]), tl.trans(both), total)
    gate, up = _halves(total.to(x.dtype))
    opened = _quick_silu(gate.to(tl.float32)).to(x.dtype)
    out.store([row, feature], (opened.to(tl.float32) * up.to(tl.float32)).to(x.dtype))


@triton.jit(do_not_specialize=["m", "whole"])
def gate_wide(
    x, weight, out, half_weight, half_out, m, k, f, whole,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """silu(x gate) * (x up), both products rounded, and the silu; `weight` is gate and up, (2, f, k).

    Descriptors: `x` (m, k), `weight`, and `out` (m, f) in blocks (ROWS, COLUMNS / 2); `half_weight` and `half_out` in
    blocks of half as many features, for all tiles but the first `whole`. Grid (programs,).
    """
    FEATURES: tl.constexpr = COLUMNS // 2
    rows, columns = tl.cdiv(m, ROWS), tl.cdiv(f, FEATURES)
    for tile in tl.range(tl.program_id(0), whole, tl.num_programs(0), flatten=True):
        down, across = _place(tile, rows, columns, GROUP)
        _gate_tile(x, weight, out, down * ROWS, across * FEATURES, k, ROWS, COLUMNS, INNER)
    for half in tl.range(tl.program_id(0), (rows * columns - whole) * 2, tl.num_programs(0), flatten=True):
        down, across = _place(whole + half // 2, rows, columns, GROUP)
        feature = across * FEATURES + half % 2 * (FEATURES // 2)
        _gate_tile(x, half_weight, half_out, down * ROWS, feature, k, ROWS, COLUMNS // 2, INNER)


def serves(normed: Float[Tensor, "b n w"], weight: Float[Tensor, "both w"]) -> bool:
    """Whether `gated` takes these tensors and is faster."""
    if normed.device.type != "cuda" or not _MEASURED or not takes(normed, weight):
        return False
    device, rows = _properties(normed.device), normed.shape[0] * normed.shape[1]
    return device.major == _HOPPER and pays(rows, weight.shape[0] // 2, device.multi_processor_count)


def takes(normed: Float[Tensor, "b n w"], weight: Float[Tensor, "both w"]) -> bool:
    """Whether `gated` takes these tensors."""
    return (
        normed.dtype == weight.dtype
        and normed.dtype in _HALF
        # Descriptors need rows that begin at multiples of 16 bytes.
        and normed.shape[2] % 8 == weight.shape[0] // 2 % 8 == 0
        and all(x.is_contiguous() and x.data_ptr() % 16 == 0 for x in (normed, weight))
    )


def pays(rows: int, features: int, programs: int) -> bool:
    """Whether `gated` is faster on a device that runs so many programs at a time."""
    return rows >= _MANY_ROWS and _busy(_count(rows, features, TILES), programs) >= _BUSY


def gated(
    normed: Float[Tensor, "b n w"],
    weight: Float[Tensor, "both w"],
    *,
    tiles: Mapping[str, int] = TILES,
    programs: int | None = None,
) -> Float[Tensor, "b n f"]:
    """The linear layer without a bias, then `ops.gate` of its result, with a silu that is a little less exact.

    A row of the result depends on its own row only. By default there is a program for each multiprocessor.
    """
    from triton.tools.tensor_descriptor import TensorDescriptor

    b, n, w = normed.shape
    m, f = b * n, weight.shape[0] // 2
    out = normed.new_empty(b, n, f)
    programs, count = programs or _properties(normed.device).multi_processor_count, _count(m, f, tiles)

    x, both, result = normed.view(m, w), weight.view(2, f, w), out.view(m, f)
    rows, features, inner = tiles["ROWS"], tiles["COLUMNS"] // 2, tiles["INNER"]
    describe: Any = TensorDescriptor.from_tensor
    blocks = [describe(x, [rows, inner])]
    for part in (features, features // 2):  # of whole tiles, and of halves
        blocks += [describe(both, [2, part, inner]), describe(result, [rows, part])]
    launch: Any = gate_wide[(min(programs, 2 * count),)]  # no call that a type checker understands
    with torch.cuda.device_of(normed):
        launch(*blocks, m, w, f, _whole(count, programs), **tiles)
    return out


def _count(m: int, f: int, tiles: Mapping[str, int]) -> int:
    return -(-m // tiles["ROWS"]) * -(-2 * f // tiles["COLUMNS"])


def _whole(count: int, programs: int) -> int:
    """The number of tiles that are not halved. The last tiles are halved if all halves can be computed at a time."""
    left = count % programs
    return count - left if 2 * left <= programs else count


def _busy(count: int, programs: int) -> float:
    """The share of the programs that have a tile, from the first to the last."""
    whole = _whole(count, programs)
    rounds = -(-whole // programs) + (0.5 if whole < count else 0.0)
    return count / (programs * rounds)
