"""The mean-field rule as five Triton kernels, in the order of their launch; `triton_rule` allocates and launches.

Probabilities live in powers of two: z = log2 p. Of two probabilities of a token let b be the smaller, d = |z_i - z_j|
and r = 2^-d their ratio. The terms of `overlap`, in bits, are then

    b (d + g(r)),    g(r) = (1 + r) log2(1 + r) / r

g is smooth, from 1.44 at r = 0 to 2 at r = 1, so five multiply-adds replace the logarithm, and one 2^x is all that a
pair of rows asks per token of the special-function units, which are the scarce ones. No term is ever negative.

Every figure depends on its own row or two rows only, bit for bit: how tokens are cut into pieces depends on no other
size, pieces are added in a fixed order, and the pressure on a position is added in integers, which know no order.

Triton compiles these functions from their text. `no_type_check` keeps those away who would wrap them in Python.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)
# 2^-126 is the smallest normal number: without zeros no term is 0 times infinity.
_LEAST = tl.constexpr(-126.0)
# g, within 6.5e-7 of d + g(r) everywhere.
_G0 = tl.constexpr(1.442701816558838)
_G1 = tl.constexpr(0.7210426926612854)
_G2 = tl.constexpr(-0.23728585243225098)
_G3 = tl.constexpr(0.10655425488948822)
_G4 = tl.constexpr(-0.04171430692076683)
_G5 = tl.constexpr(0.008702562190592289)
# A pressure is a sum of numbers between 0 and 1; with 50 bits behind the point 8,191 of them fit.
_ONE = tl.constexpr(2.0**50)
_NO_OVERLAP = tl.constexpr(1e-12)

# Positions on one side of a square of pairs. What is known of a row: its best logit, log2 of its sum, margin,
# probability of the best token.
SIDE = tl.constexpr(4)
FIGURES = tl.constexpr(4)


@triton.jit
@no_type_check
def piece_figures(
    logits, masked, pieces, column_of, count, stride_b, stride_k, m, k, v, K: tl.constexpr, W: tl.constexpr
):
    """Best, second best and sum of exponentials of W tokens of one open position; also which position that is.

    Grid (pieces, m, b). `pieces` (b, m, 3, pieces) float64, `column_of` (b, m) and `count` (b) int32.
    """
    piece, slot, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    columns = tl.arange(0, K)
    is_open = tl.load(masked + row * k + columns, mask=columns < k, other=0).to(tl.int32)
    here = (is_open != 0) & (tl.cumsum(is_open, axis=0) == slot + 1)
    column = tl.sum(tl.where(here, columns, 0), axis=0)
    found = tl.minimum(tl.sum(is_open, axis=0), m)
    tl.store(count + row, found, mask=(piece == 0) & (slot == 0))
    if slot < found:
        tl.store(column_of + row * m + slot, column, mask=piece == 0)
        tokens = piece * W + tl.arange(0, W)
        start = logits + row.to(tl.int64) * stride_b + column.to(tl.int64) * stride_k
        x = tl.load(start + tokens, mask=tokens < v, other=-float("inf")).to(tl.float32)
        best = tl.max(x, axis=0)
        several = tl.sum((x == best).to(tl.int32), axis=0) > 1
        second = tl.where(several, best, tl.max(tl.where(x == best, -float("inf"), x), axis=0))
        centre = tl.where(best == -float("inf"), 0.0, best)
        total = tl.sum(tl.exp2((x - centre) * _LOG2_E).to(tl.float64), axis=0)
        into = pieces + (row * m + slot) * 3 * tl.num_programs(0) + piece
        tl.store(into, best.to(tl.float64))
        tl.store(into + tl.num_programs(0), second.to(tl.float64))
        tl.store(into + 2 * tl.num_programs(0), total)


@triton.jit
@no_type_check
def row_figures(pieces, count, figures, m, n_pieces, P: tl.constexpr):
    """The figures of one open position from those of its pieces. Grid (m, b). `figures` (b, m, FIGURES) float32."""
    slot, row = tl.program_id(0), tl.program_id(1)
    if slot < tl.load(count + row):
        which = tl.arange(0, P)
        there = which < n_pieces
        start = pieces + (row * m + slot) * 3 * n_pieces + which
        tops = tl.load(start, mask=there, other=-float("inf"))
        seconds = tl.load(start + n_pieces, mask=there, other=-float("inf"))
        totals = tl.load(start + 2 * n_pieces, mask=there, other=0.0)
        best = tl.max(tops, axis=0)
        several = tl.sum((tops == best).to(tl.int32), axis=0) > 1
        others = tl.maximum(tl.where(tops == best, -float("inf"), tops), seconds)
        second = tl.where(several, best, tl.max(others, axis=0))
        weight = tl.exp2(((tops - best).to(tl.float32)) * _LOG2_E).to(tl.float64)
        total = tl.sum(totals * weight, axis=0).to(tl.float32)
        into = figures + (row * m + slot) * FIGURES
        tl.store(into, best.to(tl.float32))
        tl.store(into + 1, tl.log2(total))
        tl.store(into + 2, best.to(tl.float32) - second.to(tl.float32))
        tl.store(into + 3, tl.div_rn(1.0, total))


@triton.jit
@no_type_check
def _square(which, found):
    """The two groups of SIDE positions whose pairs are square number `which`; none if `which` is too large.

    Groups g and n - 1 - g have n + 1 squares together, so an even number of groups folds into a full rectangle.
    """
    groups = tl.cdiv(found, SIDE)
    even = groups + groups % 2
    line, place = which // (even + 1), which % (even + 1)
    early = place < even - line
    left = tl.where(early, line, even - 1 - line)
    right = tl.where(early, line + place, place - 1)
    return left, right, (line < even // 2) & (right < groups)


@triton.jit
@no_type_check
def _log2_probabilities(logits, columns, there, figures, tokens, v, stride_k):
    """log2 p of SIDE positions for some tokens, and p."""
    best = tl.load(figures, mask=there, other=0.0)
    log_total = tl.load(figures + 1, mask=there, other=0.0)
    at = logits + columns.to(tl.int64)[:, None] * stride_k + tokens[None, :]
    x = tl.load(at, mask=there[:, None] & (tokens < v)[None, :], other=-float("inf")).to(tl.float32)
    z = tl.maximum(tl.fma(x - best[:, None], _LOG2_E, log_total[:, None] * -1.0), _LEAST)
    return z, tl.exp2(z)


@triton.jit
@no_type_check
def pair_sums(logits, column_of, count, figures, sums, stride_b, stride_k, m, v, CHUNK: tl.constexpr, W: tl.constexpr):
    """Twice the overlap, of CHUNK tokens only, of the pairs of one square. Grid (squares, chunks, b), one warp each.

    W tokens at a time: thread t holds the same few tokens of all rows, so nothing moves between threads but the sums.
    `sums` (b, squares, chunks, SIDE * SIDE) float32.
    """
    which, chunk, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    found = tl.load(count + row)
    left, right, exists = _square(which, found)
    if exists:
        side = tl.arange(0, SIDE)
        i, j = left * SIDE + side, right * SIDE + side
        column_i = tl.load(column_of + row * m + i, mask=i < found, other=0)
        column_j = tl.load(column_of + row * m + j, mask=j < found, other=0)
        figures_i = figures + (row * m + i) * FIGURES
        figures_j = figures + (row * m + j) * FIGURES
        start = logits + row.to(tl.int64) * stride_b
        total = tl.zeros([SIDE, SIDE, W], dtype=tl.float32)
        for step in range(CHUNK // W):
            tokens = chunk * CHUNK + step * W + tl.arange(0, W)
            z_i, p_i = _log2_probabilities(start, column_i, i < found, figures_i, tokens, v, stride_k)
            z_j, p_j = _log2_probabilities(start, column_j, j < found, figures_j, tokens, v, stride_k)
            d = tl.abs(z_i[:, None, :] - z_j[None, :, :])
            r = tl.exp2(d * -1.0)
            g = tl.fma(tl.fma(tl.fma(tl.fma(tl.fma(r, _G5, _G4), r, _G3), r, _G2), r, _G1), r, _G0)
            total = tl.fma(tl.minimum(p_i[:, None, :], p_j[None, :, :]), g + d, total)
        into = sums + ((row * tl.num_programs(0) + which).to(tl.int64) * tl.num_programs(1) + chunk) * SIDE * SIDE
        pair = side[:, None] * SIDE + side[None, :]
        tl.store(into + pair, tl.sum(total, axis=2))


@triton.jit
@no_type_check
def pair_overlaps(sums, count, overlap, m, CHUNKS: tl.constexpr, BLOCK: tl.constexpr):
    """The overlap of the pairs of one square from those of its chunks. Grid (squares, b). `overlap` (b, m, m) float32.

    Not written: the diagonal, and what belongs to no open position.
    """
    which, row = tl.program_id(0), tl.program_id(1)
    found = tl.load(count + row)
    left, right, exists = _square(which, found)
    if exists:
        pair = tl.arange(0, SIDE * SIDE)
        start = sums + (row * tl.num_programs(0) + which).to(tl.int64) * CHUNKS * SIDE * SIDE
        total = tl.zeros([BLOCK, SIDE * SIDE], dtype=tl.float64)
        for first in range(0, CHUNKS, BLOCK):
            chunk = first + tl.arange(0, BLOCK)
            at = start + chunk[:, None] * SIDE * SIDE + pair[None, :]
            total += tl.load(at, mask=(chunk < CHUNKS)[:, None], other=0.0).to(tl.float64)
        value = tl.minimum((0.5 * tl.sum(total, axis=0)).to(tl.float32), 1.0)
        i, j = left * SIDE + pair // SIDE, right * SIDE + pair % SIDE
        into = overlap + row.to(tl.int64) * m * m
        tl.store(into + i * m + j, value, mask=(i < j) & (j < found))
        tl.store(into + j * m + i, value, mask=(i < j) & (j < found))


@triton.jit
@no_type_check
def _sigmoid(field):
    return tl.div_rn(1.0, 1.0 + tl.exp(field * -1.0))


@triton.jit
@no_type_check
def _overlap_rows(overlap, i, j, found, m):
    """Some rows of the overlap before it is normalised, 0 on the diagonal and where no open position is."""
    there = (i < found)[:, None] & (j < found)[None, :] & (i[:, None] != j[None, :])
    return tl.load(overlap + i[:, None] * m + j[None, :], mask=there, other=0.0)


@triton.jit
@no_type_check
def _normalised(overlap, largest, NORMALIZE: tl.constexpr):
    if NORMALIZE:
        return tl.where(largest > _NO_OVERLAP, tl.div_rn(overlap, tl.maximum(largest, _NO_OVERLAP)), 0.0)
    return overlap


@triton.jit
@no_type_check
def _is_open(masked, columns, last, k):
    """1 for the open positions up to the `last` that takes part, else 0."""
    return tl.load(masked + columns, mask=(columns < k) & (columns <= last), other=0).to(tl.int32)


@triton.jit
@no_type_check
def settle(
    masked, column_of, count, figures, overlap,
    commit_out, score_out, intensity_out, margin_out, overlap_out,
    threshold, m, k,
    ITERATIONS: tl.constexpr, NORMALIZE: tl.constexpr, BY_FIELD: tl.constexpr,
    M: tl.constexpr, M_ROWS: tl.constexpr, K: tl.constexpr, K_ROWS: tl.constexpr,
):  # fmt: skip
    """Normalises, updates the field, decides, and writes what belongs to closed positions too. Grid (b,)."""
    row = tl.program_id(0)
    found = tl.load(count + row)
    slots = tl.arange(0, M)
    there = slots < found
    overlap += row.to(tl.int64) * m * m
    figures += row * m * FIGURES
    margin = tl.load(figures + slots * FIGURES + 2, mask=there, other=0.0)

    largest = 0.0
    if NORMALIZE:
        for first in range(0, M, M_ROWS):
            rows = _overlap_rows(overlap, first + tl.arange(0, M_ROWS), slots, found, m)
            largest = tl.maximum(largest, tl.max(tl.max(rows, axis=1), axis=0))

    field = margin
    for _ in range(ITERATIONS):
        intensity = _sigmoid(field).to(tl.float64)
        pressure = tl.zeros([M], dtype=tl.int64)
        for first in range(0, M, M_ROWS):
            some = first + tl.arange(0, M_ROWS)
            rows = _normalised(_overlap_rows(overlap, some, slots, found, m), largest, NORMALIZE)
            terms = (rows.to(tl.float64) * intensity[None, :] * _ONE).to(tl.int64)
            on_some = tl.sum(terms, axis=1)
            pressure += tl.sum(tl.where(some[:, None] == slots[None, :], on_some[:, None], 0), axis=0)
        field = margin - (pressure.to(tl.float64) / _ONE).to(tl.float32)

    intensity = _sigmoid(field)
    commit = there & (intensity >= threshold)
    preference = field
    if not BY_FIELD:
        preference = tl.load(figures + slots * FIGURES + 3, mask=there, other=0.0)
    best = tl.argmax(tl.where(there, preference, -float("inf")), axis=0)
    stuck = tl.sum(commit.to(tl.int32), axis=0) == 0
    commit = commit | (there & stuck & (slots == best))

    columns = tl.load(column_of + row * m + slots, mask=there, other=0)
    tl.store(commit_out + row * k + columns, commit.to(tl.uint8), mask=there)
    tl.store(score_out + row * k + columns, field, mask=there)
    tl.store(intensity_out + row * k + columns, intensity, mask=there)
    tl.store(margin_out + row * k + columns, margin, mask=there)
    overlap_out += row.to(tl.int64) * k * k
    for first in range(0, M, M_ROWS):
        some = first + tl.arange(0, M_ROWS)
        rows = _normalised(_overlap_rows(overlap, some, slots, found, m), largest, NORMALIZE)
        some_columns = tl.load(column_of + row * m + some, mask=some < found, other=0)
        at = overlap_out + some_columns[:, None] * k + columns[None, :]
        tl.store(at, rows, mask=(some < found)[:, None] & there[None, :])

    last = tl.max(tl.where(there, columns, -1), axis=0)
    every = tl.arange(0, K)
    is_open = _is_open(masked + row * k, every, last, k)
    closed = (every < k) & (is_open == 0)
    nothing = tl.zeros([K], dtype=tl.float32)
    tl.store(commit_out + row * k + every, nothing.to(tl.uint8), mask=closed)
    tl.store(score_out + row * k + every, nothing - float("inf"), mask=closed)
    tl.store(intensity_out + row * k + every, nothing, mask=closed)
    tl.store(margin_out + row * k + every, nothing, mask=closed)
    for first in range(0, K, K_ROWS):
        some = first + tl.arange(0, K_ROWS)
        both_open = _is_open(masked + row * k, some, last, k)[:, None] * is_open[None, :]
        at = overlap_out + some[:, None] * k + every[None, :]
        inside = (some < k)[:, None] & (every < k)[None, :]
        tl.store(at, tl.zeros([K_ROWS, K], dtype=tl.float32), mask=inside & (both_open == 0))
