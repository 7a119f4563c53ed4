"""The mean-field rule on a CUDA device: exact over the whole vocabulary, in five launches and without waiting for it.

Experimental: the kernels are checked against the plain rule in Triton's interpreter and compiled for sm_80 and sm_90,
but no device has run them yet. So they are off unless the environment variable UNMASK_KERNELS is 1; then
`mean_field_commit(..., validate=False)` comes here whenever it can.

Closed positions are never read. Shapes depend on the host's numbers only, and what is allocated comes from torch, so a
CUDA graph can capture it all. Beside the result it needs 4 bytes for every pair of positions and 1,024 tokens.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unmask.rules.mean_field import MeanFieldCommit

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_WIDE = torch.float32

# Beyond these the plain rule has to do: rows are a dimension of a launch, positions registers of the last kernel.
_MOST_ROWS, _MOST_POSITIONS = 65_535, 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """How the tokens of a row are cut, in powers of two: they decide the speed, and how sums are rounded."""

    piece: int = 4096  # tokens of one row whose softmax figures one program finds
    chunk: int = 1024  # tokens that one program compares
    width: int = 64  # of these at a time; 32 threads share them
    tile: int = 4096  # pairs at a time in the last kernel


DEFAULT_TILES = Tiles()


def kernels_take(logits: Tensor, *, interaction: str, vocabulary: int | None, diagnostics: bool) -> bool:
    """Whether `commit_by_kernels` is to decide instead of the plain rule."""
    if os.environ.get("UNMASK_KERNELS") != "1" or not logits.is_cuda or logits.dtype not in _DTYPES:
        return False
    if interaction != "jsd" or vocabulary is not None or diagnostics:
        return False
    b, k = logits.shape[:2]
    return 0 < b <= _MOST_ROWS and 0 < k <= _MOST_POSITIONS and importlib.util.find_spec("triton") is not None


def commit_by_kernels(
    logits: Float[Tensor, "b k v"],
    masked: Bool[Tensor, "b k"],
    *,
    threshold: float = 0.85,
    iterations: int = 2,
    normalize: str = "max",
    fallback: str = "field",
    open_at_most: int | None = None,
    tiles: Tiles = DEFAULT_TILES,
) -> MeanFieldCommit:
    """What `mean_field_commit` decides with interaction 'jsd'. Its caller has checked the arguments.

    Open positions beyond the first `open_at_most` of a row are taken for closed.
    """
    from unmask.rules import triton_kernels

    kernels: Any = triton_kernels  # a launch is no call that a type checker understands
    logits = logits.detach()
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    is_open = masked.contiguous().view(torch.uint8)
    b, k, v = logits.shape
    m = k if open_at_most is None else max(1, min(open_at_most, k))
    pieces, chunks, squares = -(-v // tiles.piece), -(-v // tiles.chunk), _squares(m, kernels.SIDE.value)

    new = logits.new_empty
    column_of, count = new((b, m), dtype=torch.int32), new((b,), dtype=torch.int32)
    of_pieces, figures = new((b, m, 3, pieces), dtype=torch.float64), new((b, m, kernels.FIGURES.value), dtype=_WIDE)
    sums, overlap = new((b, squares, chunks, kernels.SIDE.value**2), dtype=_WIDE), new((b, m, m), dtype=_WIDE)
    commit = new((b, k), dtype=torch.uint8)
    score, intensity, margin = (new((b, k), dtype=_WIDE) for _ in range(3))
    normalised = new((b, k, k), dtype=_WIDE)

    # A launch goes to the current device.
    with torch.cuda.device_of(logits):
        rows, columns = logits.stride(0), logits.stride(1)
        kernels.piece_figures[(pieces, m, b)](
            *(logits, is_open, of_pieces, column_of, count, rows, columns, m, k, v),
            K=_power(k),
            W=tiles.piece,
            num_warps=4,
        )
        kernels.row_figures[(m, b)](of_pieces, count, figures, m, pieces, P=_power(pieces), num_warps=1)
        kernels.pair_sums[(squares, chunks, b)](
            logits, column_of, count, figures, sums, rows, columns, m, v, CHUNK=tiles.chunk, W=tiles.width, num_warps=1
        )
        kernels.pair_overlaps[(squares, b)](
            sums, count, overlap, m, CHUNKS=chunks, BLOCK=min(128, _power(chunks)), num_warps=4
        )
        kernels.settle[(b,)](
            *(is_open, column_of, count, figures, overlap),
            *(commit, score, intensity, margin, normalised),
            *(threshold, m, k),
            ITERATIONS=iterations,
            NORMALIZE=normalize == "max",
            BY_FIELD=fallback == "field",
            M=_power(m),
            M_ROWS=min(_power(m), max(1, tiles.tile // _power(m))),
            K=_power(k),
            K_ROWS=min(_power(k), max(1, tiles.tile // _power(k))),
            num_warps=4 if _power(m) <= 32 else 8,
        )
    return MeanFieldCommit(
        commit=commit.view(torch.bool), score=score, intensity=intensity, margin=margin, overlap=normalised
    )


def _squares(m: int, side: int) -> int:
    """How many squares of pairs cover the upper triangle, when an odd number of groups is made even."""
    groups = -(-m // side)
    even = groups + groups % 2
    return even // 2 * (even + 1)


def _power(number: int) -> int:
    """The next power of two: a tensor in a kernel has no other size."""
    return 1 << max(0, number - 1).bit_length()
