"""Products of a few rows with 8-bit weights, on a CUDA device: every weight is read once, as one byte.

A row of weights is stored in words of four bytes. With Q words in a row, byte j of word q is the weight of input
j Q + q (see `models/quantized.py`). So a tile of words is four tiles of weights, each for a run of consecutive inputs,
and a thread turns two words into operands of a tensor core in a few integer operations. Both formats are exact in the
16-bit dtypes, sums are in float32, and the scale of an output comes last: only the result is rounded.

The inputs may be cut into parts. A program adds up one part, and the last program to finish adds the parts in their
order. So results are the same every time, and no row depends on the values of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import NotImplementedType
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int32, Num
from torch import Tensor

from unmask.models.kernels import launch
from unmask.models.quantized import FEW_ROWS


def _assembly(body: str) -> list[tl.constexpr]:
    """For each of the four bytes: copy it from two words into the halves of t, twice in each, then run the body."""
    begin = "{{ .reg .b32 t, a, c, f; prmt.b32 t, $1, $2, {}; "
    return [tl.constexpr(begin.format(0x4400 + 0x1111 * byte) + body + " }") for byte in range(4)]


_ASSEMBLY = {
    # 128 + (b mod 128), less 128, or less 256 if b is negative. (A and B) or C is 0xEA.
    (torch.int8, torch.bfloat16): _assembly(
        "lop3.b32 a, t, 0x007f007f, 0x43004300, 0xEA; lop3.b32 c, t, 0x00800080, 0x43004300, 0xEA; "
        "mov.b32 f, 0xBF80BF80; fma.rn.bf16x2 $0, c, f, a;"
    ),
    # 1024 + 128 + b, less 1152. (A and B) xor C is 0x6A.
    (torch.int8, torch.float16): _assembly(
        "lop3.b32 a, t, 0x00ff00ff, 0x64806480, 0x6A; mov.b32 c, 0xE480E480; add.rn.f16x2 $0, a, c;"
    ),
    # Exponent and fraction are moved to where the wider format has them. That is the number but for a power of two,
    # which the last instruction multiplies in; zeros stay zeros.
    (torch.float8_e4m3fn, torch.bfloat16): _assembly(
        "and.b32 c, t, 0x80008000; shr.u32 t, t, 4; lop3.b32 a, t, 0x07f007f0, c, 0xEA; "
        "mov.b32 f, 0x7B807B80; mov.b32 c, 0x80008000; fma.rn.bf16x2 $0, a, f, c;"
    ),
    (torch.float8_e4m3fn, torch.float16): _assembly(
        "and.b32 c, t, 0x80008000; shr.u32 t, t, 1; lop3.b32 a, t, 0x3f803f80, c, 0xEA; "
        "mov.b32 f, 0x5C005C00; mul.rn.f16x2 $0, a, f;"
    ),
}


@triton.jit
def _weights(words, BYTE: tl.constexpr, ASSEMBLY: tl.constexpr, FLOAT8: tl.constexpr, DTYPE: tl.constexpr):
    """One of the four weights of every word; without assembly, in plain operations that give the same."""
    if ASSEMBLY is None:
        byte = (words >> (8 * BYTE)) & 0xFF
        if FLOAT8:
            weight = (((byte & 0x80) << 24) | ((byte & 0x7F) << 20)).to(tl.float32, bitcast=True) * 2.0**120
        else:
            weight = ((byte ^ 0x80) - 0x80).to(tl.float32)
        weight = weight.to(DTYPE)
    else:
        weight = tl.inline_asm_elementwise(ASSEMBLY, "=r,r,r", [words], dtype=DTYPE.value, is_pure=True, pack=2)  # ty: ignore[invalid-argument-type]
    return weight


@triton.jit
def few_rows(
    x, words, scale, bias, out, parts, arrived, m, n, k, q,
    ASSEMBLY0: tl.constexpr, ASSEMBLY1: tl.constexpr, ASSEMBLY2: tl.constexpr, ASSEMBLY3: tl.constexpr,
    FLOAT8: tl.constexpr, BIASED: tl.constexpr, PARTED: tl.constexpr,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """x (m, k) times the weights (n, q words), transposed, times scale (n), plus bias (n). Grid (outputs, parts, rows).

    `parts` (parts, m, n) float32. `arrived` int32, one for each tile of `out`: 0, and 0 again in the end.
    """
    tile, part, rows = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    output, row = tile * OUTPUTS + tl.arange(0, OUTPUTS), rows * ROWS + tl.arange(0, ROWS)
    dtype: tl.constexpr = x.dtype.element_ty
    words += output.to(tl.int64)[:, None] * q
    x += row[None, :] * k
    total = tl.zeros([OUTPUTS, ROWS], dtype=tl.float32)
    length = tl.cdiv(tl.cdiv(q, WORDS), tl.num_programs(1)) * WORDS
    for first in range(part * length, tl.minimum((part + 1) * length, q), WORDS):
        at = first + tl.arange(0, WORDS)
        word = tl.load(words + at[None, :], mask=(output < n)[:, None] & (at < q)[None, :], other=0)
        here = x + at[:, None]
        there = (row < m)[None, :] & (at < q)[:, None]
        x0 = tl.load(here, mask=there & (at < k)[:, None], other=0.0)
        x1 = tl.load(here + q, mask=there & (at + q < k)[:, None], other=0.0)
        x2 = tl.load(here + 2 * q, mask=there & (at + 2 * q < k)[:, None], other=0.0)
        x3 = tl.load(here + 3 * q, mask=there & (at + 3 * q < k)[:, None], other=0.0)
        total = tl.dot(_weights(word, 0, ASSEMBLY0, FLOAT8, dtype), x0, total)
        total = tl.dot(_weights(word, 1, ASSEMBLY1, FLOAT8, dtype), x1, total)
        total = tl.dot(_weights(word, 2, ASSEMBLY2, FLOAT8, dtype), x2, total)
        total = tl.dot(_weights(word, 3, ASSEMBLY3, FLOAT8, dtype), x3, total)

    inside = (output < n)[:, None] & (row < m)[None, :]
    place = row.to(tl.int64)[None, :] * n + output[:, None]
    last = True
    if PARTED:
        tl.store(parts + part.to(tl.int64) * m * n + place, total, mask=inside)
        tl.debug_barrier()
        mine = arrived + rows * tl.num_programs(0) + tile
        last = tl.atomic_add(mine, 1, sem="acq_rel") == tl.num_programs(1) - 1
        if last:
            tl.store(mine, 0)
            total = tl.zeros([OUTPUTS, ROWS], dtype=tl.float32)
            for other in range(tl.num_programs(1)):
                each = parts + tl.cast(other, tl.int64) * m * n + place
                total += tl.load(each, mask=inside, other=0.0, cache_modifier=".cg")
    if last:
        total *= tl.load(scale + output, mask=output < n, other=0.0)[:, None]
        if BIASED:
            total += tl.load(bias + output, mask=output < n, other=0.0).to(tl.float32)[:, None]
        tl.store(out + place, total.to(dtype), mask=inside)


@triton.jit
def widen(words, scale, out, k, q, FLOAT8: tl.constexpr, WORDS: tl.constexpr):
    """The weights of one output in the dtype of `out` (n, k), scaled. Grid (outputs, pieces of WORDS words)."""
    output, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    word = tl.load(words + output * q + at, mask=at < q, other=0)
    factor = tl.load(scale + output)
    dtype: tl.constexpr = out.dtype.element_ty
    for byte in tl.static_range(4):
        weight = _weights(word, byte, None, FLOAT8, tl.float32) * factor
        tl.store(out + output * k + byte * q + at, weight.to(dtype), mask=(at < q) & (byte * q + at < k))


# How many programs to have, where the parts can be chosen, measured on a device with 132 multiprocessors: two of the
# smaller run on each at a time, and one of the larger.
_SMALL, _LARGE = 240, 132
_LEAST_STEPS = 3  # of a part


def parts_and_tiles(m: int, n: int, q: int, *, stages: int = 4) -> tuple[int, dict[str, int]]:
    """A good way to cut a product into parts, and these into tiles of at most so many ROWS, in powers of two.

    Decides in which order numbers are added. With up to 64 rows, their number does not change the order.
    """
    if m <= 64:
        tiles = {"OUTPUTS": 64, "ROWS": 64, "WORDS": 64, "num_warps": 4, "num_stages": stages}
        return _parts(-(-n // 64), q // 64, _SMALL), tiles
    tiles = {"OUTPUTS": 128, "ROWS": 128, "WORDS": 32, "num_warps": 8, "num_stages": stages}
    return _parts(-(-n // 128) * -(-m // 128), q // 32, _LARGE), tiles


def _parts(programs: int, steps: int, wanted: int) -> int:
    """The number of parts for about `wanted` programs, if each then has enough to do."""
    return max(1, min(round(wanted / programs), steps // _LEAST_STEPS))


@cache
def _stages(device: torch.device) -> int:
    """Steps that are under way together: four if a multiprocessor has 176 KiB for them, else three, which take 96."""
    if device.type != "cuda":
        return 4
    driver: Any = triton.runtime.driver.active
    return 4 if driver.utils.get_device_properties(device.index)["max_shared_mem"] >= 176 * 1024 else 3


def multiply(
    x: Float[Tensor, "m k"],
    stored: Num[Tensor, "n kk"],
    scale: Float[Tensor, " n"],
    bias: Float[Tensor, " n"] | None,
    arrived: Int32[Tensor, " tiles"],
    *,
    cut: tuple[int, Mapping[str, int]] | None = None,
) -> Float[Tensor, "m n"]:
    """x times the weights, transposed, plus the bias. `arrived` are zeros, one for each tile, of this stream alone.

    `cut` is the number of parts, and the tiles of each.
    """
    words = stored.view(torch.int32)
    (m, k), (n, q) = x.shape, words.shape
    parts, tiles = cut or parts_and_tiles(m, n, q, stages=_stages(x.device))
    rows = min(tiles["ROWS"], max(16, triton.next_power_of_2(m)))
    out = x.new_empty(m, n)
    sums = out if parts == 1 else x.new_empty(parts, m, n, dtype=torch.float32)
    assembly = _ASSEMBLY[stored.dtype, x.dtype] if x.is_cuda else [None] * 4  # the interpreter has none
    grid = (triton.cdiv(n, tiles["OUTPUTS"]), parts, triton.cdiv(m, rows))
    assert arrived.numel() >= grid[0] * grid[2] or parts == 1
    tensors = x, words, scale, scale if bias is None else bias, out, sums, arrived
    kinds = {"FLOAT8": stored.dtype == torch.float8_e4m3fn, "BIASED": bias is not None, "PARTED": parts > 1}
    launch(few_rows, grid, *tensors, m, n, k, q, *assembly, **{**tiles, "ROWS": rows}, **kinds)
    return out


def product(
    x: Tensor, stored: Tensor, scale: Tensor, bias: Tensor | None, arrived: Tensor
) -> Tensor | NotImplementedType:
    """`models.quantized.product`, for a few rows in half precision."""
    few = 0 < x.numel() <= FEW_ROWS * x.shape[-1]
    if not few or x.dtype not in (torch.bfloat16, torch.float16):
        return NotImplemented
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    return multiply(rows, stored, scale, bias, arrived).unflatten(0, x.shape[:-1])


def widened(stored: Tensor, scale: Tensor, k: int, dtype: torch.dtype) -> Tensor:
    """`models.quantized.widened`."""
    words = stored.view(torch.int32)
    n, q = words.shape
    out = scale.new_empty(n, k, dtype=dtype)
    grid, float8 = (n, triton.cdiv(q, 1024)), stored.dtype == torch.float8_e4m3fn
    launch(widen, grid, words, scale, out, k, q, FLOAT8=float8, WORDS=1024, num_warps=4)
    return out
