"""Products of a few rows with large matrices, each with the operations on its result in the same launch.

A matrix is read once. A tile holds COLUMNS of its rows, which are columns of the result, by INNER inputs. All rows of
`x` fit into one tile of ROWS and are read again for every tile of the matrix. Where two columns are needed together, a
tile holds pairs of them side by side. Sums are in float32, in an order that depends on the matrix's shape only. Results
are rounded where the plain operations round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor, nn

from unmask.models.kernels import launch
from unmask.models.kernels.ops import KernelOps, silu
from unmask.models.layers import Attention, LayerOps
from unmask.models.transformer import Transformer
from unmask.rules.kernels import next_power

_HALF = (torch.bfloat16, torch.float16)
# With up to so many rows, a product reads its weights as fast as the vendor's library does.
_FEW_ROWS = 32
# Programs that run at a time on a device with 132 multiprocessors, two on each.
_PROGRAMS = 264
_MOST_PARTS = 4
# How a product is cut, in powers of two: decides the order in which numbers are added.
TILES = {"COLUMNS": 64, "INNER": 128, "num_warps": 4, "num_stages": 4}
_GATE_TILES = TILES | {"num_stages": 3}


@triton.jit
def _multiply(
    x, weight, row, column, there, m, k, begin, end, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr,
    EVEN: tl.constexpr,
):  # fmt: skip
    """x (m, k) times the rows `column` of `weight`, if they are `there`, over the inputs from `begin` to `end`."""
    weight += column.to(tl.int64)[:, None] * k
    x += row[:, None] * k
    # The tensor cores of an H100 take no fewer than 64 of the first factor's rows: where a tile has these, it is first.
    SWAPPED: tl.constexpr = COLUMNS >= 64
    total = tl.zeros([COLUMNS, ROWS] if SWAPPED else [ROWS, COLUMNS], dtype=tl.float32)
    for first in range(begin, end, INNER):
        inner = first + tl.arange(0, INNER)
        of_x, of_weight = (row < m)[:, None], there[:, None]
        if not EVEN:
            of_x, of_weight = of_x & (inner < k)[None, :], of_weight & (inner < k)[None, :]
        factor = tl.load(x + inner[None, :], mask=of_x, other=0.0)
        other = tl.load(weight + inner[None, :], mask=of_weight, other=0.0)
        total = tl.dot(other, tl.trans(factor), total) if SWAPPED else tl.dot(factor, tl.trans(other), total)
    return tl.trans(total) if SWAPPED else total


@triton.jit(do_not_specialize=["m", "q", "turns", "capacity"])
def project_heads(
    x, weight, bias, table, positions, keys, values, slots, queries, m, k, q, turns, capacity,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BIASED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Queries, turned, to `queries` (m, H + 2 G heads, D); keys, turned, and values to the rows' places in a store.

    A tile holds COLUMNS / 2 pairs of features that turn together. Grid (pairs of all heads / (COLUMNS / 2),). `table`
    (2, turns, D).
    """
    row = tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    pair = tl.program_id(0) * (COLUMNS // 2) + column // 2
    column = pair // (D // 2) * D + pair % (D // 2) + column % 2 * (D // 2)
    pair = tl.program_id(0) * (COLUMNS // 2) + tl.arange(0, COLUMNS // 2)
    head, low = (pair // (D // 2))[None, :], (pair % (D // 2))[None, :]

    # Loaded before the product, which takes much longer.
    position = tl.load(positions + row, mask=row < m, other=0)[:, None]
    place = tl.load(slots + row // q, mask=row < m, other=0)[:, None]
    # The second half of a row of the table is the first, with the sign of the sine changed.
    turn = table + position * D + D // 2 + low
    inside = (row < m)[:, None] & (head < H + 2 * G)
    turning = inside & (head < H + G)
    cos = tl.load(turn, mask=turning, other=1.0)
    sin = tl.load(turn + turns.to(tl.int64) * D, mask=turning, other=0.0)

    there = column < (H + 2 * G) * D
    total = _multiply(x, weight, row, column, there, m, k, 0, k, ROWS, COLUMNS, INNER, EVEN)
    if BIASED:
        total += tl.load(bias + column, mask=there, other=0.0).to(tl.float32)[None, :]
    dtype: tl.constexpr = x.dtype.element_ty
    first, second = tl.split(tl.reshape(total.to(dtype), (ROWS, COLUMNS // 2, 2)))
    wide_first, wide_second = first.to(tl.float32), second.to(tl.float32)
    turned_first = tl.fma(wide_second, sin * -1.0, wide_first * cos).to(dtype)
    turned_second = tl.fma(wide_first, sin, wide_second * cos).to(dtype)

    is_query = inside & (head < H)
    at = (row.to(tl.int64)[:, None] * (H + 2 * G) + head) * D + low
    tl.store(queries + at, turned_first, mask=is_query)
    tl.store(queries + at + D // 2, turned_second, mask=is_query)
    is_key = turning & (head >= H)
    into = ((place * G + head - H) * capacity + position) * D + low
    tl.store(keys + into, turned_first, mask=is_key)
    tl.store(keys + into + D // 2, turned_second, mask=is_key)
    is_value = inside & (head >= H + G)
    into -= G * capacity.to(tl.int64) * D
    tl.store(values + into, first, mask=is_value)
    tl.store(values + into + D // 2, second, mask=is_value)


@triton.jit(do_not_specialize=["m"])
def gate_product(
    x, weight, out, m, k, f, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, EVEN: tl.constexpr
):
    """silu(x gate) * (x up), both products rounded, and the silu; `weight` is gate (f, k) and up (f, k).

    A tile holds COLUMNS / 2 features of both. Grid (f / (COLUMNS / 2),).
    """
    row = tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    feature = tl.program_id(0) * (COLUMNS // 2) + column // 2
    total = _multiply(x, weight, row, feature + column % 2 * f, feature < f, m, k, 0, k, ROWS, COLUMNS, INNER, EVEN)
    dtype: tl.constexpr = x.dtype.element_ty
    gate, up = tl.split(tl.reshape(total.to(dtype), (ROWS, COLUMNS // 2, 2)))
    result = (silu(gate.to(tl.float32)).to(dtype).to(tl.float32) * up.to(tl.float32)).to(dtype)
    feature = tl.program_id(0) * (COLUMNS // 2) + tl.arange(0, COLUMNS // 2)
    at = row.to(tl.int64)[:, None] * f + feature[None, :]
    tl.store(out + at, result, mask=(row < m)[:, None] & (feature < f)[None, :])


@triton.jit(do_not_specialize=["m"])
def part_product(
    x, weight, parts, m, k, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, EVEN: tl.constexpr
):
    """x (m, k) times `weight` (n, k) in parts of the inputs, which are to be added: (parts, m, n), float32.

    Grid (n / COLUMNS, parts).
    """
    row, column = tl.arange(0, ROWS), tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    part = tl.program_id(1)
    length = tl.cdiv(tl.cdiv(k, INNER), tl.num_programs(1)) * INNER
    begin, end = part * length, tl.minimum((part + 1) * length, k)
    total = _multiply(x, weight, row, column, column < n, m, k, begin, end, ROWS, COLUMNS, INNER, EVEN)
    at = (part * m + row).to(tl.int64)[:, None] * n + column[None, :]
    tl.store(parts + at, total, mask=(row < m)[:, None] & (column < n)[None, :])


def few_rows_ops(model: Transformer, positions: int) -> LayerOps:
    """The operations for a pass over so many positions whose keys are read from a cache."""
    few = 0 < positions <= _FEW_ROWS and model.dtype in _HALF
    linears = (linear for b in model.layers() for linear in (b.attention.qkv, b.attention.out, b.gate_up, b.down))
    # Layers of other classes, such as quantised ones, compute their own products.
    joint = few and not model.shape.qk_norm and all(type(linear) is nn.Linear for linear in linears)
    return JointOps() if joint else KernelOps()


class JointOps(KernelOps):
    """A product and the operation that follows it in one kernel, for a few rows whose keys are read from a cache.

    Modules are of the type `nn.Linear`. Only that of `project` may have a bias. The result of `project` holds queries
    only; keys and values are in the store.
    """

    def __init__(self, cut: tuple[int, Mapping[str, int]] | None = None) -> None:
        self.cut = cut  # into how many parts, if any, and tiles; None: as is fastest

    def project(self, attention: Attention, normed: Tensor, table: Tensor, positions: Any, store: Any) -> Tensor:
        keys, values, slots = store
        weight, bias = attention.qkv.weight, attention.qkv.bias
        b, q, w = normed.shape
        _, turns, d = table.shape
        _, tiles = self.cut or (1, TILES)
        constants = {"H": attention.n_heads, "G": attention.n_kv_heads, "D": d, "BIASED": bias is not None}
        out, grid = normed.new_empty(b, q, weight.shape[0]), (-(-weight.shape[0] // tiles["COLUMNS"]),)
        tensors = weight, weight if bias is None else bias, table, positions.contiguous(), keys, values, slots, out
        sizes = b * q, w, q, turns, keys.shape[2]
        launch(project_heads, grid, normed, *tensors, *sizes, **constants, **_options(tiles, b * q, w))
        return out

    def gated(self, linear: Any, normed: Tensor) -> Tensor:
        b, q, w = normed.shape
        f = linear.weight.shape[0] // 2
        _, tiles = self.cut or (1, _GATE_TILES)
        out, grid = normed.new_empty(b, q, f), (-(-2 * f // tiles["COLUMNS"]),)
        launch(gate_product, grid, normed, linear.weight, out, b * q, w, f, **_options(tiles, b * q, w))
        return out

    def update(self, linear: Any, x: Tensor) -> Float[Tensor, "parts b q w"]:
        """In float32, and in parts of the inputs."""
        b, q, k = x.shape
        w = linear.weight.shape[0]
        parts, tiles = self.cut or parts_and_tiles(w, k)
        out, grid = x.new_empty(parts, b, q, w, dtype=torch.float32), (-(-w // tiles["COLUMNS"]), parts)
        launch(part_product, grid, x, linear.weight, out, b * q, k, w, **_options(tiles, b * q, k))
        return out


def _options(tiles: Mapping[str, int], rows: int, inner: int) -> dict[str, int | bool]:
    """Options of a launch whose product has so many rows and adds up so many inputs."""
    return {**tiles, "ROWS": max(16, next_power(rows)), "EVEN": inner % tiles["INNER"] == 0}


def parts_and_tiles(n: int, k: int) -> tuple[int, Mapping[str, int]]:
    """How to cut a product. Depends on the matrix only: other rows never change the order in which a row is added."""
    columns, stages = (64, 4) if k > 16_384 else (32, 5)
    parts = min(_PROGRAMS // -(-n // columns), -(-k // 128), _MOST_PARTS)
    return max(1, parts), TILES | {"COLUMNS": columns, "num_stages": stages}
