"""The transformer's small operations and attention as Triton kernels; `fused` and `attention` allocate and launch.

Results are rounded where the plain operations of layers.py round. A result depends on its own row of the batch only.
The host chooses how keys are cut into splits; splits are merged in their order.

Triton compiles these functions from their text. `no_type_check` tells runtime type checkers not to wrap them.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

# log2(e) in two pieces, so that the product with a float32 loses nothing.
_LOG2_E = tl.constexpr(1.4426950216293335)
_LOG2_E_REST = tl.constexpr(1.925963033500011e-08)
_INFINITE = tl.constexpr(104.0)  # e^104 is infinite in float32, and e^-104 is zero

_SPLITS = tl.constexpr(8)  # that are merged at a time


@triton.jit
@no_type_check
def add_norm_rows(x, update, weight, sum_out, normed_out, w, eps, PARTS: tl.constexpr, W: tl.constexpr):
    """One row of `w` features: the sum, rounded, and its RMS norm, rounded before the gain and after. Grid (b * n,).

    `update` is the sum, rounded, of that many PARTS, (PARTS, b * n, w); there may be none.
    """
    columns = tl.arange(0, W)
    inside = columns < w
    at = tl.program_id(0).to(tl.int64) * w + columns
    # Everything is loaded at once: the program has little to compute while it waits.
    state = tl.load(x + at, mask=inside, other=0.0)
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    if PARTS:
        total = tl.load(update + at, mask=inside, other=0.0).to(tl.float32)
        for _ in tl.static_range(1, PARTS):
            update += tl.num_programs(0).to(tl.int64) * w
            total += tl.load(update + at, mask=inside, other=0.0).to(tl.float32)
        state = (state.to(tl.float32) + total.to(x.dtype.element_ty).to(tl.float32)).to(x.dtype.element_ty)
        tl.store(sum_out + at, state, mask=inside)
    wide = state.to(tl.float32)
    mean = tl.div_rn(tl.sum(wide * wide, axis=0), w * 1.0)
    normed = (wide * tl.rsqrt(mean + eps)).to(x.dtype.element_ty)
    tl.store(normed_out + at, (normed.to(tl.float32) * gain).to(x.dtype.element_ty), mask=inside)


@triton.jit
@no_type_check
def _exp(x):
    """e^x to the last bit but one: tl.exp is less exact, and a silu that is rounded to bfloat16 would show it."""
    x = tl.minimum(tl.maximum(x, -_INFINITE), _INFINITE)
    whole = tl.floor(x * _LOG2_E)
    rest = tl.fma(x, _LOG2_E_REST, tl.fma(x, _LOG2_E, whole * -1.0))
    return tl.exp2(rest) * tl.exp2(whole)


@triton.jit
@no_type_check
def silu(x):
    """x / (1 + e^-x), in float32."""
    return tl.div_rn(x, 1.0 + _exp(x * -1.0))


@triton.jit
@no_type_check
def gate_rows(gate_up, out, f, F: tl.constexpr):
    """silu(gate) * up for F features of one row, the silu rounded first. Grid (b * n, f / F)."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * F + tl.arange(0, F)
    inside = columns < f
    gate = tl.load(gate_up + row * 2 * f + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * f + f + columns, mask=inside, other=0.0).to(tl.float32)
    opened = silu(gate).to(out.dtype.element_ty)
    tl.store(out + row * f + columns, (opened.to(tl.float32) * up).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["n", "rows", "capacity"])
@no_type_check
def turn_heads(
    qkv, table, positions, keys, values, slots, n, rows, capacity,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr,
    GIVEN: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """Turns queries and keys of HEADS heads of one position where they are, and stores keys and values.

    Grid (b * n, heads / HEADS), of queries and keys, and values only if there is a store. `table` (2, rows, D).
    GIVEN: positions are read; keys and values with the position -1 are not stored.
    """
    token = tl.program_id(0)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    position = (token % n).to(tl.int64)
    known = True
    if GIVEN:
        position = tl.load(positions + token)
        known = position >= 0
        position = tl.maximum(position, 0)
    low = tl.arange(0, D // 2)
    turn = table + position * D + low
    cos_low, cos_high = tl.load(turn), tl.load(turn + D // 2)
    sin_low, sin_high = tl.load(turn + rows * D), tl.load(turn + rows * D + D // 2)
    at = qkv + (token.to(tl.int64) * (H + 2 * G) + head)[:, None] * D + low[None, :]
    there = (head < H + 2 * G)[:, None]
    x_low = tl.load(at, mask=there, other=0.0)
    x_high = tl.load(at + D // 2, mask=there, other=0.0)
    wide_low, wide_high = x_low.to(tl.float32), x_high.to(tl.float32)
    turned_low = tl.fma(wide_high, sin_low[None, :], wide_low * cos_low[None, :]).to(x_low.dtype)
    turned_high = tl.fma(wide_low, sin_high[None, :], wide_high * cos_high[None, :]).to(x_low.dtype)
    turning = (head < H + G)[:, None]
    tl.store(at, turned_low, mask=turning)
    tl.store(at + D // 2, turned_high, mask=turning)
    if STORE:
        is_key = (known & (head >= H) & (head < H + G))[:, None]
        is_value = (known & (head >= H + G) & (head < H + 2 * G))[:, None]
        row = tl.load(slots + token // n) * G
        into = ((row + head - H) * capacity + position)[:, None] * D + low[None, :]
        tl.store(keys + into, turned_low, mask=is_key)
        tl.store(keys + into + D // 2, turned_high, mask=is_key)
        into -= G * capacity.to(tl.int64) * D
        tl.store(values + into, x_low, mask=is_value)
        tl.store(values + into + D // 2, x_high, mask=is_value)


@triton.jit
@no_type_check
def _found(
    query, keys, values, first, last, length, scale,
    D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, STRIDE: tl.constexpr,
):  # fmt: skip
    """What ROWS queries find among the keys from `first` to before `last`. Keys from `length` on are not seen.

    Gives the largest score, the sum of the weights and the values mixed by them, all in float32. Positions are STRIDE
    numbers apart.
    """
    features = tl.arange(0, D)
    best = tl.full([ROWS], -float("inf"), dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    mixture = tl.zeros([ROWS, D], dtype=tl.float32)
    for begin in range(first, last, KEYS):
        position = begin + tl.arange(0, KEYS)
        at = position[:, None] * STRIDE + features[None, :]
        seen = position < length
        key = tl.load(keys + at, mask=seen[:, None], other=0.0)
        value = tl.load(values + at, mask=seen[:, None], other=0.0)
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        score = tl.where(seen[None, :], score, -float("inf"))
        better = tl.maximum(best, tl.max(score, axis=1))
        weight = tl.exp2(score - better[:, None])
        fade = tl.exp2(best - better)
        total = total * fade + tl.sum(weight, axis=1)
        mixture = tl.dot(weight.to(value.dtype), value, mixture * fade[:, None], input_precision="ieee")
        best = better
    return best, total, mixture


@triton.jit(do_not_specialize=["q", "capacity", "split_size"])
@no_type_check
def attend_split(
    qkv, keys, values, slots, lengths, out, mixtures, figures, q, capacity, split_size, scale,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """What ROWS queries of the heads that share a key head find in one split of its keys, KEYS keys at a time.

    Grid (splits * G * tiles of queries, b), neighbours with the same keys. The result goes to `out` if a row has one
    split, else, for `merge_splits`, to `mixtures` (splits, b * q * H, D) and `figures` (splits, b * q * H, 2), the
    largest score and the sum of the weights, float32. A row without keys gets zeros.
    """
    shared = H // G
    tiles = tl.cdiv(shared * q, ROWS)
    which, row = tl.program_id(0), tl.program_id(1)
    tile, key_head, split = which % tiles, which // tiles % G, which // (tiles * G)
    # Queries are loaded first, because the rest depends on them.
    asking = tile * ROWS + tl.arange(0, ROWS)
    there = (asking < shared * q)[:, None]
    head = key_head * shared + asking // q
    token = row.to(tl.int64) * q + asking % q
    features = tl.arange(0, D)
    query = tl.load(qkv + (token * (H + 2 * G) + head)[:, None] * D + features[None, :], mask=there, other=0.0)
    first = (tl.load(slots + row) * G + key_head) * capacity * D
    length = tl.minimum(tl.load(lengths + row).to(tl.int32), tl.num_programs(0) // (tiles * G) * split_size)
    if (split * split_size < length) | (split == 0):
        keys += first
        values += first
        last = tl.minimum((split + 1) * split_size, length)
        best, total, mixture = _found(
            query, keys, values, split * split_size, last, length, scale, D, ROWS, KEYS, D
        )  # fmt: skip
        number = token * H + head
        if length <= split_size:
            result = tl.div_rn(mixture, tl.where(total == 0.0, 1.0, total)[:, None])
            tl.store(out + number[:, None] * D + features[None, :], result.to(out.dtype.element_ty), mask=there)
        else:
            number += split.to(tl.int64) * tl.num_programs(1) * q * H
            tl.store(mixtures + number[:, None] * D + features[None, :], mixture, mask=there)
            tl.store(figures + number * 2, best, mask=asking < shared * q)
            tl.store(figures + number * 2 + 1, total, mask=asking < shared * q)


# The alignment of these pointers depends on the number of rows, which must not be a reason to compile.
_OF_ROWS = ["starts", "lengths", "slots", "seen"]


@triton.jit(do_not_specialize=["n", "capacity"], do_not_specialize_on_alignment=_OF_ROWS)
@no_type_check
def attend_rows(
    qkv, starts, lengths, keys, values, slots, seen, out, n, capacity, scale,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, STORED: tl.constexpr,
):  # fmt: skip
    """What ROWS queries of one head find among all keys of their row of the batch, KEYS keys at a time.

    Rows lie one behind the other: `lengths[i]` positions from `starts[i]` on, at most `n`. `qkv` (positions, H + 2 G
    heads, D), `out` (positions, H, D). Grid (tiles of n queries * H, b), neighbours with the same keys. STORED: the
    keys are the first `seen[i]` of the place `slots[i]` in a store; a row without keys gets zeros.
    """
    width: tl.constexpr = (H + 2 * G) * D
    tiles = tl.cdiv(n, ROWS)
    which, row = tl.program_id(0), tl.program_id(1)
    tile, head = which % tiles, which // tiles
    length = tl.load(lengths + row).to(tl.int32)
    if tile * ROWS < length:
        start = tl.load(starts + row).to(tl.int64)
        qkv += start * width
        features = tl.arange(0, D)
        asking = tile * ROWS + tl.arange(0, ROWS)
        there = (asking < length)[:, None]
        query = tl.load(qkv + asking[:, None] * width + head * D + features[None, :], mask=there, other=0.0)
        key_head = head // (H // G)
        if STORED:
            first = (tl.load(slots + row) * G + key_head) * capacity * D
            known = tl.minimum(tl.load(seen + row).to(tl.int32), capacity)
            _, total, mixture = _found(
                query, keys + first, values + first, 0, known, known, scale, D, ROWS, KEYS, D
            )  # fmt: skip
        else:
            keys = qkv + (H + key_head) * D
            _, total, mixture = _found(query, keys, keys + G * D, 0, length, length, scale, D, ROWS, KEYS, width)
        result = tl.div_rn(mixture, tl.where(total == 0.0, 1.0, total)[:, None]).to(out.dtype.element_ty)
        tl.store(out + ((start + asking)[:, None] * H + head) * D + features[None, :], result, mask=there)


@triton.jit(do_not_specialize=["q", "splits", "split_size"])
@no_type_check
def merge_splits(mixtures, figures, lengths, out, q, splits, split_size, H: tl.constexpr, D: tl.constexpr):
    """The attention of one query of one head from the splits of its row, if it has several. Grid (b * q * H,)."""
    number = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + number // (q * H)).to(tl.int32)
    found = tl.minimum(tl.cdiv(length, split_size), splits)
    if found > 1:
        features = tl.arange(0, D)
        best = -float("inf")
        total = 0.0
        mixture = tl.zeros([D], dtype=tl.float32)
        for begin in range(0, found, _SPLITS):
            split = begin + tl.arange(0, _SPLITS)
            at = split.to(tl.int64) * tl.num_programs(0) + number
            bests = tl.load(figures + at * 2, mask=split < found, other=-float("inf"))
            totals = tl.load(figures + at * 2 + 1, mask=split < found, other=0.0)
            pieces = tl.load(mixtures + at[:, None] * D + features[None, :], mask=(split < found)[:, None], other=0.0)
            better = tl.maximum(best, tl.max(bests, axis=0))
            weight = tl.exp2(bests - better)
            fade = tl.exp2(best - better)
            total = total * fade + tl.sum(totals * weight, axis=0)
            mixture = mixture * fade + tl.sum(pieces * weight[:, None], axis=0)
            best = better
        tl.store(out + number * D + features, tl.div_rn(mixture, total).to(out.dtype.element_ty))
