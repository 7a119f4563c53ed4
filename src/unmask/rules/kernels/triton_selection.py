"""Positions of a row compared with each other, and picked, as Triton kernels; `selection` launches them.

Triton compiles these functions from their text. `no_type_check` keeps those away who would wrap them in Python.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def open_scores(score, is_open, LOWEST: tl.constexpr, HIGHEST: tl.constexpr):
    """Scores, at least float32, in which an open position beats a closed one, even if it is scored -inf or NaN.

    LOWEST and HIGHEST are the ends of the dtype that the scores come in; what is beyond them counts as they do.
    """
    if score.dtype != tl.float64:
        score = score.to(tl.float32)
    score = tl.where((score != score) | (score == -float("inf")), LOWEST, score)
    score = tl.where(score == float("inf"), HIGHEST, score)
    return tl.where(is_open, score, -float("inf"))


@triton.jit(do_not_specialize=["k"])
@no_type_check
def compare_positions(
    score, masked, count, out, k,
    LOWEST: tl.constexpr, HIGHEST: tl.constexpr, COUNTED: tl.constexpr, MINE: tl.constexpr, OTHERS: tl.constexpr,
):  # fmt: skip
    """The rank of some positions in their row, or whether it is below the row's count. Grid (b, parts of k).

    `out` (b, k): int64 ranks, or with COUNTED uint8.
    """
    row = tl.program_id(0).to(tl.int64)
    score += row * k
    masked += row * k
    mine = tl.program_id(1) * MINE + tl.arange(0, MINE)
    is_open = tl.load(masked + mine, mask=mine < k, other=0) != 0
    my_score = open_scores(tl.load(score + mine, mask=mine < k, other=0.0), is_open, LOWEST, HIGHEST)
    rank = tl.zeros([MINE], dtype=tl.int32)
    for first in range(0, k, OTHERS):
        # Places past the end count as closed, and so come after all that are there.
        others = first + tl.arange(0, OTHERS)
        others_open = tl.load(masked + others, mask=others < k, other=0) != 0
        their_score = open_scores(tl.load(score + others, mask=others < k, other=0.0), others_open, LOWEST, HIGHEST)
        earlier = others[None, :] < mine[:, None]
        above = their_score[None, :] > my_score[:, None]
        level = their_score[None, :] == my_score[:, None]
        rank += tl.sum((above | (level & earlier)).to(tl.int32), axis=1)
    if COUNTED:
        chosen = is_open & (rank < tl.load(count + row))
        tl.store(out + row * k + mine, chosen.to(tl.uint8), mask=mine < k)
    else:
        tl.store(out + row * k + mine, rank.to(tl.int64), mask=mine < k)


@triton.jit(do_not_specialize=["size"])
@no_type_check
def keep_values(values, kept, out, other, size, W: tl.constexpr):
    """Values where they are kept, else another. Grid (parts of the size,)."""
    places = tl.program_id(0).to(tl.int64) * W + tl.arange(0, W)
    there = places < size
    keeps = tl.load(kept + places, mask=there, other=0) != 0
    value = tl.load(values + places, mask=there, other=0.0)
    tl.store(out + places, tl.where(keeps, value.to(tl.float32), other), mask=there)


@triton.jit(do_not_specialize=["stride_b", "stride_k", "k", "size", "v"])
@no_type_check
def find_possible(logits, tokens, masked, out, stride_b, stride_k, k, size, v, W: tl.constexpr):
    """Open positions whose token has a logit other than -inf. Grid (parts of the size,), which is b times k."""
    places = tl.program_id(0).to(tl.int64) * W + tl.arange(0, W)
    there = places < size
    is_open = tl.load(masked + places, mask=there, other=0) != 0
    token = tl.load(tokens + places, mask=is_open, other=0)
    at = logits + (places // k) * stride_b + (places % k) * stride_k + token
    logit = tl.load(at, mask=is_open & (token >= 0) & (token < v), other=-float("inf"))
    tl.store(out + places, (is_open & (logit.to(tl.float32) != -float("inf"))).to(tl.uint8), mask=there)
