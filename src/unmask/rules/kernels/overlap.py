"""The mean-field rule up to the overlaps as four Triton kernels, in the order of their launch by `commit.py`.

Probabilities live in powers of two: z = log2 p. Of two probabilities of a token let b be the smaller, d = |z_i - z_j|
and r = 2^-d their ratio. The terms of `overlap`, in bits, are then

    b (d + g(r)),    g(r) = (1 + r) log2(1 + r) / r

g is smooth, from 1.44 at r = 0 to 2 at r = 1, so five multiply-adds replace the logarithm. For even tokens r is
computed as 2^-d. For odd tokens it is b times the smaller of both 1 / p, which costs each row one 2^x more, and the
pairs none. So the special-function units and the arithmetic units both have enough to do. No term is ever negative.

Every figure depends on its own row or two rows only, bit for bit: how tokens are cut into pieces depends on no other
size, nor does which token gets which formula, and pieces are added in a fixed order.
"""

from __future__ import annotations

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

# What is known of a row: its best logit, log2 of its sum, margin, probability of the best token.
FIGURES = tl.constexpr(4)
# Tokens that a warp compares at a time: two in each thread.
STEP = tl.constexpr(64)
# A tile compares FEW positions with MANY others, twice as many: PAIRS pairs.
FEW = tl.constexpr(4)
MANY = tl.constexpr(8)
PAIRS = tl.constexpr(32)


@triton.jit
def _best_two(best, second, other_best, other_second):
    return tl.maximum(best, other_best), tl.maximum(tl.minimum(best, other_best), tl.maximum(second, other_second))


# m, how many positions can be open, changes while a text is generated, so no kernel is compiled for a particular m.
@triton.jit(do_not_specialize=["m"])
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
        # Eight neighbours share a thread.
        tokens = piece * W + tl.arange(0, W // 8)[:, None] * 8 + tl.arange(0, 8)[None, :]
        start = logits + row.to(tl.int64) * stride_b + column.to(tl.int64) * stride_k
        x = tl.load(start + tokens, mask=tokens < v, other=-float("inf")).to(tl.float32)
        nothing = tl.full([W // 8, 8], -float("inf"), tl.float32)
        best, second = tl.reduce(tl.reduce((x, nothing), 1, _best_two), 0, _best_two)
        centre = tl.where(best == -float("inf"), 0.0, best)
        total = tl.sum(tl.sum(tl.exp2((x - centre) * _LOG2_E), axis=1).to(tl.float64), axis=0)
        into = pieces + (row * m + slot) * 3 * tl.num_programs(0) + piece
        tl.store(into, best.to(tl.float64))
        tl.store(into + tl.num_programs(0), second.to(tl.float64))
        tl.store(into + 2 * tl.num_programs(0), total)


@triton.jit(do_not_specialize=["m"])
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
def _tile(which, found):
    """The positions that tile number `which` compares, whether all lie within a group, and whether the tile exists.

    Group g of MANY positions has 2 g + 1 tiles: its halves, of FEW, with each group before it, then itself. `left` is a
    half; `right` a whole group, or within a group its other half.
    """
    group = tl.sqrt(which.to(tl.float32) + 0.5).to(tl.int32)
    rest = which - group * group
    within = rest == 2 * group
    second = (rest >= group) & (rest < 2 * group)
    left = 2 * group + second.to(tl.int32)
    right = tl.where(within, left + 1, tl.where(second, rest - group, rest))
    return left, right, within, (found > 1) & (left * FEW < found)


@triton.jit
def _rows(logits, column_of, figures, i, found, stride_k):
    """Where the logits of some positions begin, their best logits, and log2 of their sums."""
    # A tile may reach beyond the last open position. That position then stands in, and its results are not used.
    i = tl.minimum(i, found - 1)
    at = logits + tl.load(column_of + i).to(tl.int64) * stride_k
    return at, tl.load(figures + i * FIGURES), tl.load(figures + i * FIGURES + 1)


@triton.jit
def _terms(z_i, p_i, inverse_i, z_j, p_j, inverse_j, total, PRODUCT: tl.constexpr):
    """Adds to the totals of some pairs their terms of one token in each thread."""
    d = tl.abs(z_i - z_j)
    smaller = tl.minimum(p_i, p_j)
    r = smaller * tl.minimum(inverse_i, inverse_j) if PRODUCT else tl.exp2(d * -1.0)
    g = tl.fma(tl.fma(tl.fma(tl.fma(tl.fma(r, _G5, _G4), r, _G3), r, _G2), r, _G1), r, _G0)
    return tl.fma(smaller, g + d, total)


@triton.jit
def _powers(x, best, log_total):
    """log2 p, p and 1 / p. None of them is infinite or 0."""
    z = tl.maximum(tl.fma(x.to(tl.float32) - best[:, None], _LOG2_E, log_total[:, None] * -1.0), _LEAST)
    return z, tl.exp2(z), tl.exp2(z * -1.0)


@triton.jit
def _add_terms(
    x_i, x_j, best_i, best_j, log_total_i, log_total_j, across, inside, WITHIN: tl.constexpr, PRODUCT: tl.constexpr
):
    """Adds one token in each thread to the totals of a tile."""
    # Without PRODUCT the inverses are not used, and Triton computes nothing that is not used.
    z_i, p_i, inverse_i = _powers(x_i, best_i, log_total_i)
    z_j, p_j, inverse_j = _powers(x_j, best_j, log_total_j)
    across = _terms(
        *(z_i[:, None, :], p_i[:, None, :], inverse_i[:, None, :]),
        *(z_j[None, :, :], p_j[None, :, :], inverse_j[None, :, :]),
        across,
        PRODUCT,
    )
    if WITHIN:
        # A thread holds every pair of the tile, so this is known when it is compiled, and costs nothing.
        above = (tl.arange(0, FEW)[:, None] < tl.arange(0, FEW)[None, :])[:, :, None]
        inside = _terms(
            tl.where(above, z_i[:, None, :], z_j[:, None, :]),
            tl.where(above, p_i[:, None, :], p_j[:, None, :]),
            tl.where(above, inverse_i[:, None, :], inverse_j[:, None, :]),
            tl.where(above, z_i[None, :, :], z_j[None, :, :]),
            tl.where(above, p_i[None, :, :], p_j[None, :, :]),
            tl.where(above, inverse_i[None, :, :], inverse_j[None, :, :]),
            inside,
            PRODUCT,
        )
    return across, inside


@triton.jit
def _tile_sums(
    at_i, at_j, best_i, best_j, log_total_i, log_total_j, first, last,
    RIGHT: tl.constexpr, WHOLE: tl.constexpr, WITHIN: tl.constexpr,
):  # fmt: skip
    """The totals of a tile over the tokens from `first` to before `last`, two in each thread at a time.

    First of the FEW positions on the left with the RIGHT others; then, WITHIN a group, of the pairs inside both halves,
    those on the left above the diagonal and those on the right below it.
    """
    across, inside = tl.zeros([FEW, RIGHT, 32], dtype=tl.float32), tl.zeros([FEW, FEW, 32], dtype=tl.float32)
    for start in range(first, last, STEP):
        tokens = start + tl.arange(0, 32)[:, None] * 2 + tl.arange(0, 2)[None, :]
        where_i, where_j = at_i[:, None, None] + tokens[None, :, :], at_j[:, None, None] + tokens[None, :, :]
        if WHOLE:
            x_i, x_j = tl.load(where_i), tl.load(where_j)
        else:
            there = (tokens < last)[None, :, :]
            x_i = tl.load(where_i, mask=there, other=-float("inf"))
            x_j = tl.load(where_j, mask=there, other=-float("inf"))
        even_i, odd_i = tl.split(x_i)
        even_j, odd_j = tl.split(x_j)
        across, inside = _add_terms(
            *(even_i, even_j, best_i, best_j, log_total_i, log_total_j, across, inside), WITHIN=WITHIN, PRODUCT=False
        )
        across, inside = _add_terms(
            *(odd_i, odd_j, best_i, best_j, log_total_i, log_total_j, across, inside), WITHIN=WITHIN, PRODUCT=True
        )
    return tl.sum(across, axis=2), tl.sum(inside, axis=2)


@triton.jit(do_not_specialize=["m"])
def pair_sums(logits, column_of, count, figures, sums, stride_b, stride_k, m, v, tokens, WHOLE: tl.constexpr):
    """Twice the overlap, of some `tokens` only, of the pairs of one tile. Grid (tiles, chunks, b), one warp each.

    A thread holds the same tokens of all rows, so nothing moves between threads but the sums. WHOLE: v is a multiple of
    STEP, which `tokens` always is. `sums` (b, tiles, chunks, PAIRS) float32.
    """
    which, chunk, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    found = tl.load(count + row)
    left, right, within, exists = _tile(which, found)
    if exists:
        few, many = tl.arange(0, FEW), tl.arange(0, MANY)
        logits += row.to(tl.int64) * stride_b
        column_of += row * m
        figures += row * m * FIGURES
        first, last = chunk * tokens, tl.minimum(chunk * tokens + tokens, v)
        into = sums + ((row * tl.num_programs(0) + which).to(tl.int64) * tl.num_programs(1) + chunk) * PAIRS
        at_i, best_i, log_i = _rows(logits, column_of, figures, left * FEW + few, found, stride_k)
        if within:
            at_j, best_j, log_j = _rows(logits, column_of, figures, right * FEW + few, found, stride_k)
            across, inside = _tile_sums(
                at_i, at_j, best_i, best_j, log_i, log_j, first, last, RIGHT=FEW, WHOLE=WHOLE, WITHIN=True
            )
            tl.store(into + few[:, None] * FEW + few[None, :], across)
            tl.store(into + FEW * FEW + few[:, None] * FEW + few[None, :], inside)
        else:
            at_g, best_g, log_g = _rows(logits, column_of, figures, right * MANY + many, found, stride_k)
            oblong, _ = _tile_sums(
                at_i, at_g, best_i, best_g, log_i, log_g, first, last, RIGHT=MANY, WHOLE=WHOLE, WITHIN=False
            )
            tl.store(into + few[:, None] * MANY + many[None, :], oblong)


@triton.jit(do_not_specialize=["m", "width", "tiles"])
def pair_overlaps(sums, count, overlap, m, width, tiles, CHUNKS: tl.constexpr, BLOCK: tl.constexpr):
    """The overlap of half the pairs of one tile from those of its chunks. Grid (2, tiles, b).

    `overlap` (b, m, width) float32. Not written: the diagonal, and what belongs to no open position.
    """
    half, which, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    found = tl.load(count + row)
    left, right, within, exists = _tile(which, found)
    if exists:
        pair = half * (PAIRS // 2) + tl.arange(0, PAIRS // 2)
        start = sums + (row * tiles + which).to(tl.int64) * CHUNKS * PAIRS
        total = tl.zeros([BLOCK, PAIRS // 2], dtype=tl.float64)
        for first in range(0, CHUNKS, BLOCK):
            chunk = first + tl.arange(0, BLOCK)
            at = start + chunk[:, None] * PAIRS + pair[None, :]
            total += tl.load(at, mask=(chunk < CHUNKS)[:, None], other=0.0).to(tl.float64)
        value = tl.minimum((0.5 * tl.sum(total, axis=0)).to(tl.float32), 1.0)
        i, j = left * FEW + pair // MANY, right * MANY + pair % MANY
        if within:
            across = pair < FEW * FEW
            y, x = pair // FEW % FEW, pair % FEW
            i = tl.where(across | (y < x), left, right) * FEW + y
            j = tl.where(across | (y >= x), right, left) * FEW + x
        there = (i != j) & (i < found) & (j < found)
        into = overlap + row.to(tl.int64) * m * width
        tl.store(into + i * width + j, value, mask=there)
        tl.store(into + j * width + i, value, mask=there)
