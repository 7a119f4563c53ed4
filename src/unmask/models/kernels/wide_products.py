"""The product of many rows with a large matrix, gated, as a Triton kernel; `wide` allocates and launches.

For devices that copy tiles by descriptor. A descriptor's block is ROWS of `x`, or the columns of one tile of the
result, by INNER inputs. There is a program for each multiprocessor; it takes tile after tile, and the copies for its
next tile begin before the current one is stored. Tiles of the same columns follow one another, so that a matrix is read
about once. The last tiles are halved if they cannot occupy the whole device. Sums are in float32, in the same order
however tiles are cut. Results are rounded where the plain operations round.

Triton compiles these functions from their text. `no_type_check` tells runtime type checkers not to wrap them.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def _place(tile, rows, columns, GROUP: tl.constexpr):
    """Where a tile is among `rows` by `columns` of them: GROUP rows of tiles at a time, column by column."""
    first = tile // (GROUP * columns) * GROUP
    height = tl.minimum(rows - first, GROUP)
    tile %= GROUP * columns
    return first + tile % height, tile // height


@triton.jit
@no_type_check
def _halves(x):
    """The left half of the columns and the right half."""
    return tl.split(tl.permute(tl.reshape(x, (x.shape[0], 2, x.shape[1] // 2)), (0, 2, 1)))


@triton.jit
@no_type_check
def _quick_silu(x):
    """x / (1 + e^-x), in float32, by the device's own power and division: to 7e-6 of itself while x is above -88.

    `silu` is more exact, and too slow here. Rounded to half precision, the two are the same number or neighbours; by
    this bound, neighbours for fewer than 1 in 400 figures that are normally distributed.
    """
    return x / (1.0 + tl.exp2(x * -1.4426950408889634))


@triton.jit
@no_type_check
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
@no_type_check
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
