"""The last kernel of the mean-field rule: from margins and overlaps to the commits.

The pressure on a position is added in integers, which know no order: every figure depends on its own row only, bit for
bit, and identical positions tie.
"""

from __future__ import annotations

import triton
import triton.language as tl

from unmask.rules.kernels.triton_overlap import FIGURES

# A pressure is a sum of numbers between 0 and 1; with 50 bits behind the point 8,191 of them fit.
_ONE = tl.constexpr(2.0**50)
_ONE_OF_THEM = tl.constexpr(2.0**-50)
_NO_OVERLAP = tl.constexpr(1e-12)


@triton.jit
def _sigmoid(field):
    return tl.div_rn(1.0, 1.0 + tl.exp(field * -1.0))


@triton.jit
def _overlap_rows(overlap, i, j, found, width):
    """Some rows of the overlap before it is normalised, 0 on the diagonal and where no open position is."""
    there = (i < found)[:, None] & (j < found)[None, :] & (i[:, None] != j[None, :])
    return tl.load(overlap + i[:, None] * width + j[None, :], mask=there, other=0.0)


@triton.jit
def _normalised(overlap, largest, NORMALIZE: tl.constexpr):
    if NORMALIZE:
        return tl.where(largest > _NO_OVERLAP, tl.div_rn(overlap, tl.maximum(largest, _NO_OVERLAP)), 0.0)
    return overlap


@triton.jit
def _pressure(rows, intensity):
    """The pressure of some positions on all positions: the overlap is symmetric, so its rows serve as columns."""
    return tl.sum((rows.to(tl.float64) * intensity[:, None] * _ONE).to(tl.int64), axis=0)


@triton.jit
def _is_open(masked, columns, last, k):
    """1 for the open positions up to the `last` that takes part, else 0."""
    return tl.load(masked + columns, mask=(columns < k) & (columns <= last), other=0).to(tl.int32)


# Were k and the width known to be multiples of 16, wide loads would spread rows over threads that then have to exchange
# them.
@triton.jit(do_not_specialize=["m", "k", "width"])
def commit_rows(
    masked, column_of, count, figures, overlap,
    commit_out, score_out, intensity_out, margin_out, overlap_out,
    threshold, m, k, width,
    ITERATIONS: tl.constexpr, NORMALIZE: tl.constexpr, BY_FIELD: tl.constexpr,
    M: tl.constexpr, M_ROWS: tl.constexpr, K: tl.constexpr, K_ROWS: tl.constexpr,
):  # fmt: skip
    """Normalises, updates the field, decides, and writes the results, those of closed positions too. Grid (b,)."""
    row = tl.program_id(0)
    found = tl.load(count + row)
    slots = tl.arange(0, M)
    there = slots < found
    overlap += row.to(tl.int64) * m * width
    figures += row * m * FIGURES
    margin = tl.load(figures + slots * FIGURES + 2, mask=there, other=0.0)
    columns = tl.load(column_of + row * m + slots, mask=there, other=0)

    largest = 0.0
    if M_ROWS == M:
        whole = _overlap_rows(overlap, slots, slots, found, width)
        largest = tl.max(whole)
        whole = _normalised(whole, largest, NORMALIZE)
    elif NORMALIZE:
        for first in range(0, M, M_ROWS):
            rows = _overlap_rows(overlap, first + tl.arange(0, M_ROWS), slots, found, width)
            largest = tl.maximum(largest, tl.max(rows))

    field = margin
    for _ in range(ITERATIONS):
        intensity = _sigmoid(field).to(tl.float64)
        if M_ROWS == M:
            pressure = _pressure(whole, intensity)
        else:
            pressure = tl.zeros([M], dtype=tl.int64)
            for first in range(0, M, M_ROWS):
                some = first + tl.arange(0, M_ROWS)
                rows = _normalised(_overlap_rows(overlap, some, slots, found, width), largest, NORMALIZE)
                same = some[:, None] == slots[None, :]
                pressure += _pressure(rows, tl.sum(tl.where(same, intensity[None, :], 0.0), axis=1))
        field = margin - (pressure.to(tl.float64) * _ONE_OF_THEM).to(tl.float32)

    intensity = _sigmoid(field)
    commit = there & (intensity >= threshold)
    preference = field
    if not BY_FIELD:
        preference = tl.load(figures + slots * FIGURES + 3, mask=there, other=0.0)
    best = tl.argmax(tl.where(there, preference, -float("inf")), axis=0)
    stuck = tl.sum(commit.to(tl.int32), axis=0) == 0
    commit = commit | (there & stuck & (slots == best))

    tl.store(commit_out + row * k + columns, commit.to(tl.uint8), mask=there)
    tl.store(score_out + row * k + columns, field, mask=there)
    tl.store(intensity_out + row * k + columns, intensity, mask=there)
    tl.store(margin_out + row * k + columns, margin, mask=there)
    overlap_out += row.to(tl.int64) * k * k
    for first in range(0, M, M_ROWS):
        some = first + tl.arange(0, M_ROWS)
        rows = (
            whole if M_ROWS == M else _normalised(_overlap_rows(overlap, some, slots, found, width), largest, NORMALIZE)
        )
        some_columns = tl.load(column_of + row * m + some, mask=some < found, other=0)
        at = overlap_out + some_columns[:, None] * k + columns[None, :]
        tl.store(at, rows, mask=(some < found)[:, None] & there[None, :])

    if found < k:
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


# An overlap too large for registers is read again for every update, and then wide loads are worth it.
commit_rows_in_parts = triton.jit(do_not_specialize=["m"])(commit_rows.fn)
