"""`rules/commit.py`'s `commit_open` in five launches: exact over the whole vocabulary, without waiting for the device.

Closed positions are never read. Shapes depend on the host's numbers only, and what is allocated comes from torch, so a
CUDA graph can capture it all. Beside the result it needs about 4 bytes for every pair of positions and 768 tokens.
"""

from __future__ import annotations

from types import NotImplementedType
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unmask.rules.kernels import next_power, serves, triton_field, triton_overlap
from unmask.rules.mean_field import MeanFieldCommit, Parameters

_OVERLAP: Any = triton_overlap  # a launch is no call that a type checker understands
_FIELD: Any = triton_field

_WIDE = torch.float32

# The plain rule serves larger batches: a launch has no more programs for rows, the last kernel no more registers for
# positions.
_MOST_ROWS, _MOST_POSITIONS = 65_535, 4096


def commit_open(
    logits: Float[Tensor, "b k v"],
    masked: Bool[Tensor, "b k"],
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
    chunk = steps * _OVERLAP.STEP.value
    pieces, chunks = -(-v // piece), -(-v // chunk)
    compared = (-(-m // _OVERLAP.MANY.value)) ** 2

    new = logits.new_empty
    column_of, count = new((b, m), dtype=torch.int32), new((b,), dtype=torch.int32)
    of_pieces, figures = new((b, m, 3, pieces), dtype=torch.float64), new((b, m, _OVERLAP.FIGURES.value), dtype=_WIDE)
    width = -(-m // 16) * 16
    sums, overlap = new((b, compared, chunks, _OVERLAP.PAIRS.value), dtype=_WIDE), new((b, m, width), dtype=_WIDE)
    commit = new((b, k), dtype=torch.uint8)
    score, intensity, margin = (new((b, k), dtype=_WIDE) for _ in range(3))
    normalised = new((b, k, k), dtype=_WIDE)

    # A launch goes to the current device.
    with torch.cuda.device_of(logits):
        rows, columns = logits.stride(0), logits.stride(1)
        _OVERLAP.piece_figures[(pieces, m, b)](
            *(logits, is_open, of_pieces, column_of, count, rows, columns, m, k, v),
            K=next_power(k),
            W=piece,
            num_warps=2,
        )
        _OVERLAP.row_figures[(m, b)](of_pieces, count, figures, m, pieces, P=next_power(pieces), num_warps=1)
        _OVERLAP.pair_sums[(compared, chunks, b)](
            *(logits, column_of, count, figures, sums, rows, columns, m, v, chunk),
            WHOLE=v % _OVERLAP.STEP.value == 0,
            num_warps=1,
            # Left alone, the compiler takes half as many registers again: fewer programs share a multiprocessor.
            maxnreg=96 if logits.element_size() == 2 else 128,
        )
        _OVERLAP.pair_overlaps[(2, compared, b)](
            *(sums, count, overlap, m, width, compared),
            CHUNKS=chunks,
            BLOCK=min(128, next_power(chunks)),
            num_warps=4,
        )
        size, whole = padded_size(m, k), next_power(k)
        at_a_time = min(size, max(1, last // size))
        commit_rows = _FIELD.commit_rows if at_a_time == size else _FIELD.commit_rows_in_parts
        commit_rows[(b,)](
            *(is_open, column_of, count, figures, overlap),
            *(commit, score, intensity, margin, normalised),
            *(rule.threshold, m, k, width),
            ITERATIONS=rule.iterations,
            NORMALIZE=rule.normalize == "max",
            BY_FIELD=rule.fallback == "field",
            M=size,
            M_ROWS=at_a_time,
            K=whole,
            K_ROWS=min(whole, max(1, last // whole)),
            num_warps=8,
        )
    return MeanFieldCommit(
        commit=commit.view(torch.bool), score=score, intensity=intensity, margin=margin, overlap=normalised
    )


def padded_size(m: int, k: int) -> int:
    """The number of open positions for which the last kernel is compiled, at least m.

    It is the power of two that holds k, divided by 4 as often as m allows. m shrinks while a text is generated, and
    every new size costs a compilation; up to 64 there is one size only.
    """
    size = next_power(k)
    while size > 64 and size // 4 >= m:
        size //= 4
    return size
