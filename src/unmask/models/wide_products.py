"""Products of many rows with large matrices, and what is done to their results, as Triton kernels.

For devices that copy tiles by descriptor: a descriptor's block is ROWS of `x`, or the columns of one tile of the
result, by INNER of what is summed over. As many programs as there are multiprocessors take tile after tile, and the
copies for the next tile begin before the last one is stored. Tiles of the same columns are neighbours, so that a matrix
is read about once. What does not fill the device with tiles is cut into halves of them. Sums are in float32 and in one
order, however tiles are cut, and round where the plain operations round.

Triton compiles these functions from their text. `no_type_check` keeps those away who would wrap them in Python.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from unmask.models.triton_layers import silu


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
def _gate_tile(x, weight, out, row, feature, k, ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr):
    """One tile of the result, COLUMNS / 2 features; `weight` (2, f, k) in blocks (2, COLUMNS / 2, INNER)."""
    total = tl.zeros([ROWS, COLUMNS], dtype=tl.float32)
    for first in range(0, k, INNER):
        both = tl.reshape(weight.load([0, feature, first]), (COLUMNS, INNER))
        total = tl.dot(x.load([row, first]), tl.trans(both), total)
    gate, up = _halves(total.to(x.dtype))
    opened = silu(gate.to(tl.float32)).to(x.dtype)
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


@triton.jit
@no_type_check
def _store_head(
    result, cos, sin, row, inside, place, position, keys, values, qkv, head, capacity,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """Turns one head (ROWS, D) of every row, unless it is one of the values, and puts it where it belongs."""
    dtype: tl.constexpr = result.dtype
    low, high = _halves(result)
    wide_low, wide_high = low.to(tl.float32), high.to(tl.float32)
    turning = head < H + G
    low = tl.where(turning, tl.fma(wide_high, sin * -1.0, wide_low * cos).to(dtype), low)
    high = tl.where(turning, tl.fma(wide_low, sin, wide_high * cos).to(dtype), high)
    feature = tl.arange(0, D // 2)[None, :]
    inside = inside & (head < H + 2 * G)
    at = (row.to(tl.int64) * (H + 2 * G) + head)[:, None] * D + feature
    tl.store(qkv + at, low, mask=inside[:, None])
    tl.store(qkv + at + D // 2, high, mask=inside[:, None])
    if STORE:
        # No branches on the head: the compiler cannot join a loop that has some with the one around it.
        is_key = (inside & (head >= H) & (head < H + G))[:, None]
        into = ((place * G + head - H) * capacity + position)[:, None] * D + feature
        tl.store(keys + into, low, mask=is_key)
        tl.store(keys + into + D // 2, high, mask=is_key)
        is_value = (inside & (head >= H + G))[:, None]
        into -= G * capacity.to(tl.int64) * D
        tl.store(values + into, low, mask=is_value)
        tl.store(values + into + D // 2, high, mask=is_value)


@triton.jit
@no_type_check
def _heads_tile(
    x, weight, bias, table, positions, keys, values, slots, qkv, m, k, n, turns, capacity, row, head,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BIASED: tl.constexpr, GIVEN: tl.constexpr, STORE: tl.constexpr,
    ROWS: tl.constexpr, HEADS: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    """One tile: HEADS heads, one or two, from `head` on."""
    total = tl.zeros([ROWS, HEADS * D], dtype=tl.float32)
    for first in range(0, k, INNER):
        total = tl.dot(x.load([row, first]), tl.trans(weight.load([head * D, first])), total)
    if BIASED:
        column = head * D + tl.arange(0, HEADS * D)
        total += tl.load(bias + column, mask=column < (H + 2 * G) * D, other=0.0).to(tl.float32)[None, :]
    result = total.to(x.dtype)

    row += tl.arange(0, ROWS)
    inside = row < m
    position = (row % n).to(tl.int64)
    if GIVEN:
        position = tl.load(positions + row, mask=inside, other=0)
    place = position
    if STORE:
        place = tl.load(slots + row // n, mask=inside, other=0)
    # The second half of a row of the table is the first, with the sign of the sine changed.
    turn = table + position[:, None] * D + D // 2 + tl.arange(0, D // 2)[None, :]
    cos = tl.load(turn, mask=inside[:, None], other=1.0)
    sin = tl.load(turn + turns.to(tl.int64) * D, mask=inside[:, None], other=0.0)
    if HEADS == 1:
        _store_head(
            result, cos, sin, row, inside, place, position, keys, values, qkv, head, capacity, H, G, D, STORE
        )  # fmt: skip
    else:
        left, right = _halves(result)
        _store_head(
            left, cos, sin, row, inside, place, position, keys, values, qkv, head, capacity, H, G, D, STORE
        )  # fmt: skip
        _store_head(
            right, cos, sin, row, inside, place, position, keys, values, qkv, head + 1, capacity, H, G, D, STORE
        )  # fmt: skip


@triton.jit(do_not_specialize=["m", "n", "turns", "capacity", "whole"])
@no_type_check
def heads_wide(
    x, weight, half_weight, bias, table, positions, keys, values, slots, qkv, m, k, n, turns, capacity, whole,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, BIASED: tl.constexpr, GIVEN: tl.constexpr, STORE: tl.constexpr,
    ROWS: tl.constexpr, INNER: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Queries and keys, turned, and values to `qkv` (m, H + 2 G heads, D); keys and values to a store as well.

    Descriptors: `x` (m, k), `weight` (heads * D, k) in blocks of two heads, and `half_weight` in blocks of one, for all
    tiles but the first `whole`. `table` (2, turns, D). GIVEN: positions are read; else a row's is its number modulo
    `n`, the rows of one place in the store. Grid (programs,).
    """
    rows, columns = tl.cdiv(m, ROWS), (H + 2 * G + 1) // 2
    for tile in tl.range(tl.program_id(0), whole, tl.num_programs(0), flatten=True):
        down, across = _place(tile, rows, columns, GROUP)
        _heads_tile(
            x, weight, bias, table, positions, keys, values, slots, qkv, m, k, n, turns, capacity,
            down * ROWS, across * 2, H, G, D, BIASED, GIVEN, STORE, ROWS, 2, INNER,
        )  # fmt: skip
    for half in tl.range(tl.program_id(0), (rows * columns - whole) * 2, tl.num_programs(0), flatten=True):
        down, across = _place(whole + half // 2, rows, columns, GROUP)
        _heads_tile(
            x, half_weight, bias, table, positions, keys, values, slots, qkv, m, k, n, turns, capacity,
            down * ROWS, across * 2 + half % 2, H, G, D, BIASED, GIVEN, STORE, ROWS, 1, INNER,
        )  # fmt: skip
