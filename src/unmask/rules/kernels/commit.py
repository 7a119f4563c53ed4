"""`rules/commit.py`'s `commit_open` in five launches: exact over the whole vocabulary, without waiting for the device.

Closed positions are never read. Shapes depend on the host's numbers only, and what is allocated comes from torch, so a
CUDA graph can capture it all. Beside the result it needs about 4 bytes for every pair of positions and 768 tokens.

The first four kernels are in `overlap.py`, and the last is here. It adds the pressure on a position in integers, which
know no order: every figure depends on its own row only, bit for bit, and identical positions tie.
"""

from __future__ import annotations

from types import NotImplementedType

import torch
import triton
import triton.language as tl
from torch import Tensor

from unmask.rules.kernels import next_power, run_here, serves
from unmask.rules.kernels import overlap as pairs
from unmask.rules.kernels.overlap import FIGURES
from unmask.rules.mean_field import MeanFieldCommit, Parameters

# The plain rule serves larger batches: a launch has no more programs for rows, the last kernel no more registers for
# positions.
_MOST_ROWS, _MOST_POSITIONS = 65_535, 4096

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


def commit_open(
    logits: Tensor,
    masked: Tensor,
    rule: Parameters,
    *,
    open_at_most: int | None,
    piece: int = 2048,  # tokens of one row whose softmax figures one program finds; a power of two
    steps: int = 12,  # of 64 tokens, which one program compares
    last: int = 4096,  # pairs at a time in the last kernel; a power of two
) -> MeanFieldCommit | NotImplementedType:
    """Open positions beyond the first `open_at_most` of a row are taken for closed.

    `piece`, `steps` and `last` decide the speed, and how sums are rounded.
    """
    b, k, v = logits.shape
    small = b <= _MOST_ROWS and k <= _MOST_POSITIONS
    if rule.interaction != "jsd" or rule.vocabulary is not None or not small or not serves(logits):
        return NotImplemented
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    is_open = masked.contiguous().view(torch.uint8)
    m = k if open_at_most is None else max(1, min(open_at_most, k))
    chunk = steps * pairs.STEP.value
    pieces, chunks, tiles, width = -(-v // piece), -(-v // chunk), (-(-m // pairs.MANY.value)) ** 2, -(-m // 16) * 16

    def new(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return logits.new_empty(shape, dtype=dtype)

    column_of, count = new(b, m, dtype=torch.int32), new(b, dtype=torch.int32)
    of_pieces, figures = new(b, m, 3, pieces, dtype=torch.float64), new(b, m, FIGURES.value)
    sums, overlap, normalised = new(b, tiles, chunks, pairs.PAIRS.value), new(b, m, width), new(b, k, k)
    commit, score, intensity, margin = new(b, k, dtype=torch.uint8), new(b, k), new(b, k), new(b, k)

    with torch.cuda.device_of(logits):  # a launch goes to the current device
        strides = logits.stride(0), logits.stride(1)
        read = logits, is_open, of_pieces, column_of, count, *strides, m, k, v
        run_here(pairs.piece_figures, (pieces, m, b), *read, K=next_power(k), W=piece, num_warps=2)
        run_here(pairs.row_figures, (m, b), of_pieces, count, figures, m, pieces, P=next_power(pieces), num_warps=1)
        # Left alone, the compiler takes half as many registers again: fewer programs share a multiprocessor.
        options = {"num_warps": 1, "maxnreg": 96 if logits.element_size() == 2 else 128}
        compared = logits, column_of, count, figures, sums, *strides, m, v, chunk
        run_here(pairs.pair_sums, (tiles, chunks, b), *compared, WHOLE=v % pairs.STEP.value == 0, **options)
        options = {"CHUNKS": chunks, "BLOCK": min(128, next_power(chunks)), "num_warps": 4}
        run_here(pairs.pair_overlaps, (2, tiles, b), sums, count, overlap, m, width, tiles, **options)
        size, whole = padded_size(m, k), next_power(k)
        at_a_time = min(size, max(1, last // size))
        sizes = {"M": size, "M_ROWS": at_a_time, "K": whole, "K_ROWS": min(whole, max(1, last // whole))}
        run_here(
            commit_rows if at_a_time == size else commit_rows_in_parts,
            (b,),
            *(is_open, column_of, count, figures, overlap),
            *(commit, score, intensity, margin, normalised),
            *(rule.threshold, m, k, width),
            ITERATIONS=rule.iterations,
            NORMALIZE=rule.normalize == "max",
            BY_FIELD=rule.fallback == "field",
            **sizes,
            num_warps=8,
        )
    decided = commit.view(torch.bool)
    return MeanFieldCommit(commit=decided, score=score, intensity=intensity, margin=margin, overlap=normalised)


def padded_size(m: int, k: int) -> int:
    """The number of open positions for which the last kernel is compiled, at least m.

    It is the power of two that holds k, divided by 4 as often as m allows. m shrinks while a text is generated, and
    every new size costs a compilation; up to 64 there is one size only.
    """
    size = next_power(k)
    while size > 64 and size // 4 >= m:
        size //= 4
    return size
