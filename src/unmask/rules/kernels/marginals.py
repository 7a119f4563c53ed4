"""The functions of `rules/marginals.py` in two launches that read the logits once and do not wait for the device.

The first kernel finds the figures of pieces of a row, the second those of the row. They compute in float32, whatever
the logits are; the result is within 1e-6 of the plain function's.

x = n ln 2 + f with n whole and |f| <= (ln 2) / 2, so e^x = 2^n e^f. The second factor depends on x alone and the first
is exact, so a weight has the same bits in whatever piece it stands, and the sum in float64 is rounded once, at the end:
equal distributions tie whatever the order of their tokens.
"""

from __future__ import annotations

from functools import partial
from types import NotImplementedType

import torch
import triton
import triton.language as tl
from torch import Tensor

from unmask.rules.kernels import next_power, run_here, serves

_PIECE = 4096  # tokens of a row that one program reads; it depends on no other size
_LOG2_E = tl.constexpr(1.4426950408889634)
# ln 2 in two numbers, of which the first times a whole number below 16,384 is exact in float32.
_LN_2 = tl.constexpr(0.6931471805599453)
_LN_2_HIGH = tl.constexpr(0.693359375)
_LN_2_LOW = tl.constexpr(-2.1219444005469057e-4)
# Added to a small number, it leaves the nearest whole number in the last bits.
_ROUND = tl.constexpr(12582912.0)
# A piece whose best logit is beyond _LARGE is first moved to 0. A logit _DEPTH below the best of its piece counts for
# nothing.
_LARGE = tl.constexpr(8192.0)
_DEPTH = tl.constexpr(80.0)

# What is known of a piece: its best logit, the second best, log2 of the unit of its sums, the sum of the weights, and
# of the weights times how far their logits are from the best.
PARTS = tl.constexpr(5)


@triton.jit
def _split(x):
    """e^f; n, and n in the last bits of an integer."""
    rounded = tl.fma(x, _LOG2_E, _ROUND)
    whole = rounded - _ROUND
    rest = tl.fma(whole, _LN_2_LOW * -1.0, tl.fma(whole, _LN_2_HIGH * -1.0, x))
    return tl.exp2(rest * _LOG2_E), whole, rounded.to(tl.int32, bitcast=True)


@triton.jit
def _base(best):
    """What is subtracted from the logits of a piece before they are split; NaN or infinite where the best logit is."""
    return tl.where(tl.abs(best) < _LARGE, 0.0, best)


@triton.jit
def piece_parts(logits, parts, stride, v, SPREAD: tl.constexpr, SECOND: tl.constexpr, W: tl.constexpr):
    """The figures of W tokens of one row. Grid (rows, pieces). `parts` (rows, PARTS, pieces) float64."""
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    tokens = piece * W + tl.arange(0, W)
    x = tl.load(logits + row * stride + tokens, mask=tokens < v, other=-float("inf")).to(tl.float32)
    best = tl.max(x, axis=0)
    # tl.max skips NaN.
    best = tl.where(tl.max((x != x).to(tl.int32), axis=0) > 0, float("nan"), best)
    into = parts + row * PARTS * tl.num_programs(1) + piece
    tl.store(into, best.to(tl.float64))
    if SECOND:
        several = tl.sum((x == best).to(tl.int32), axis=0) > 1
        second = tl.where(several, best, tl.max(tl.where(x == best, -float("inf"), x), axis=0))
        tl.store(into + tl.num_programs(1), second.to(tl.float64))
    base = _base(best)
    _, unit, unit_bits = _split(best - base)
    near = tl.maximum(x, best - _DEPTH)
    weight, _, bits = _split(near - base)
    weight = (weight.to(tl.int32, bitcast=True) + ((bits - unit_bits) << 23)).to(tl.float32, bitcast=True)
    weight = tl.where(x >= best - _DEPTH, weight, 0.0).to(tl.float64)
    tl.store(into + 2 * tl.num_programs(1), base.to(tl.float64) / _LN_2 + unit.to(tl.float64))
    tl.store(into + 3 * tl.num_programs(1), tl.sum(weight, axis=0))
    if SPREAD:
        tl.store(into + 4 * tl.num_programs(1), tl.sum(weight * (near - best).to(tl.float64), axis=0))


@triton.jit
def _part(parts, row, which, pieces, number, other):
    return tl.load(parts + (row * PARTS + number) * pieces + which, mask=which < pieces, other=other)


@triton.jit
def _weight(x, best, unit):
    """The weight of the logit x, in float64 and in units of 2^unit, in a row whose best logit is `best`."""
    base = _base(best)
    weight, whole, _ = _split(tl.maximum(x, best - 1000.0) - base)
    power = tl.maximum(whole.to(tl.float64) + (base.to(tl.float64) / _LN_2 - unit), -1074.0)
    return tl.where(x == -float("inf"), 0.0, weight.to(tl.float64) * tl.exp2(power))


@triton.jit
def row_figure(
    logits, tokens, parts, out, stride, v, pieces, PROBABILITY: tl.constexpr, ENTROPY: tl.constexpr, P: tl.constexpr
):
    """The probability of a token of one row, or the row's entropy, or its two largest probabilities. Grid (rows,).

    `out` (rows), or (rows, 2) for the two largest, float32.
    """
    row = tl.program_id(0).to(tl.int64)
    which = tl.arange(0, P)
    bests = _part(parts, row, which, pieces, 0, -float("inf"))
    best = tl.max(bests, axis=0)
    # A piece of -inf only has no weight. A row of such pieces only, or with NaN or +inf, has the figure NaN.
    some = bests > -float("inf")
    units = _part(parts, row, which, pieces, 2, -float("inf"))
    unit = tl.max(tl.where(bests == best, units, -float("inf")), axis=0)
    scale = tl.where(some, tl.exp2(tl.maximum(units - unit, -1000.0)), 0.0)
    totals = tl.where(some, _part(parts, row, which, pieces, 3, 0.0), 0.0)
    total = tl.sum(totals * scale, axis=0)
    spoilt = tl.sum(((bests != bests) | (bests == float("inf"))).to(tl.int32), axis=0) > 0
    total = tl.where(spoilt | (best == -float("inf")), float("nan"), total)
    first = best.to(tl.float32)
    if PROBABILITY:
        token = tl.load(tokens + row)
        x = tl.load(logits + row * stride + token, mask=(token >= 0) & (token < v), other=float("nan")).to(tl.float32)
        tl.store(out + row, (_weight(x, first, unit) / total).to(tl.float32))
    elif ENTROPY:
        spreads = tl.where(some, _part(parts, row, which, pieces, 4, 0.0), 0.0)
        spread = tl.sum((spreads + tl.where(some, bests - best, 0.0) * totals) * scale, axis=0)
        value = tl.log2(total / _weight(first, first, unit)) * _LN_2 - spread / total
        tl.store(out + row, value.to(tl.float32))
    else:
        seconds = _part(parts, row, which, pieces, 1, -float("inf"))
        several = tl.sum((bests == best).to(tl.int32), axis=0) > 1
        others = tl.maximum(tl.where(bests == best, -float("inf"), bests), seconds)
        second = tl.where(several, best, tl.max(others, axis=0)).to(tl.float32)
        tl.store(out + 2 * row, (_weight(first, first, unit) / total).to(tl.float32))
        tl.store(out + 2 * row + 1, (_weight(second, first, unit) / total).to(tl.float32))


@triton.jit
def piece_best(logits, best, token, stride, v, W: tl.constexpr):
    """The largest of W logits of one row, and where it stands. Grid (rows, pieces), the shape of `best` and `token`."""
    row, piece = tl.program_id(0).to(tl.int64), tl.program_id(1)
    tokens = piece * W + tl.arange(0, W)
    x = tl.load(logits + row * stride + tokens, mask=tokens < v, other=-float("inf")).to(tl.float32)
    # tl.max skips NaN.
    largest, where = tl.max(tl.where(x != x, float("inf"), x), axis=0, return_indices=True)
    tl.store(best + row * tl.num_programs(1) + piece, largest)
    tl.store(token + row * tl.num_programs(1) + piece, piece * W + where)


@triton.jit
def row_best(best, token, out, pieces, P: tl.constexpr):
    """Where the largest logit of a row stands. Grid (rows,)."""
    row = tl.program_id(0)
    which = tl.arange(0, P)
    values = tl.load(best + row * pieces + which, mask=which < pieces, other=-float("inf"))
    _, where = tl.max(values, axis=0, return_indices=True)
    tl.store(out + row, tl.load(token + row * pieces + where).to(tl.int64))


def best_token(logits: Tensor, *, piece: int = _PIECE) -> Tensor | NotImplementedType:
    if not serves(logits):
        return NotImplemented
    rows, n, v, pieces = _rows(logits, piece)
    best, token = (rows.new_empty((n, pieces), dtype=dtype) for dtype in (torch.float32, torch.int32))
    out = rows.new_empty(n, dtype=torch.long)
    with torch.cuda.device_of(rows):
        run_here(piece_best, (n, pieces), rows, best, token, rows.stride(0), v, W=piece, num_warps=4)
        run_here(row_best, (n,), best, token, out, pieces, P=next_power(pieces), num_warps=1)
    return out.reshape(logits.shape[:-1])


def probability_of(
    tokens: Tensor, logits: Tensor, *, dtype: torch.dtype | None = None, piece: int = _PIECE
) -> Tensor | NotImplementedType:
    """NaN for an id outside the vocabulary."""
    return _figure("probability", logits, dtype=dtype, piece=piece, tokens=tokens.contiguous())


def _figure(
    kind: str, logits: Tensor, *, dtype: torch.dtype | None = None, piece: int = _PIECE, tokens: Tensor | None = None
) -> Tensor | NotImplementedType:
    if not serves(logits):
        return NotImplemented
    rows, n, v, pieces = _rows(logits, piece)
    parts = rows.new_empty((n, PARTS.value, pieces), dtype=torch.float64)
    out = rows.new_empty((n, 2) if kind == "best two" else (n,), dtype=torch.float32)
    with torch.cuda.device_of(rows):  # a launch goes to the current device
        flags = {"SPREAD": kind == "entropy", "SECOND": kind == "best two"}
        run_here(piece_parts, (n, pieces), rows, parts, rows.stride(0), v, **flags, W=piece, num_warps=4)
        flags = {"PROBABILITY": kind == "probability", "ENTROPY": kind == "entropy"}
        given = rows, rows if tokens is None else tokens, parts, out, rows.stride(0), v, pieces
        run_here(row_figure, (n,), *given, **flags, P=next_power(pieces), num_warps=1)
    return out.reshape((*logits.shape[:-1], *out.shape[1:])).to(dtype or logits.dtype)


entropy = partial(_figure, "entropy")
top2_probabilities = partial(_figure, "best two")


def _rows(logits: Tensor, piece: int) -> tuple[Tensor, int, int, int]:
    """The logits as rows, in each of which the tokens lie side by side; their number, length, and pieces of each."""
    rows = logits.detach().reshape(-1, logits.shape[-1])
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    n, v = rows.shape
    return rows, n, v, -(-v // piece)
