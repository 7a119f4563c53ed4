"""Figures of `marginals` on a CUDA device: logits are read once, in two launches and without waiting for the device.

In float32, whatever the logits are, and equal to what the plain function gives within 1e-6 of the figure.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

_PIECE = 4096  # tokens of a row that one program reads; it depends on no other size


def probability_by_kernels(
    tokens: Int[Tensor, "*positions"], logits: Float[Tensor, "*positions v"], *, piece: int = _PIECE
) -> Float[Tensor, "*positions"]:
    """What `probability_of` gives; NaN for a token that is none."""
    return _figure(logits, tokens.contiguous(), piece, PROBABILITY=True)


def entropy_by_kernels(logits: Float[Tensor, "*positions v"], *, piece: int = _PIECE) -> Float[Tensor, "*positions"]:
    """What `entropy` gives."""
    return _figure(logits, None, piece, ENTROPY=True)


def top2_by_kernels(logits: Float[Tensor, "*positions v"], *, piece: int = _PIECE) -> Float[Tensor, "*positions 2"]:
    """What `top2_probabilities` gives."""
    return _figure(logits, None, piece)


def best_by_kernels(logits: Float[Tensor, "*positions v"], *, piece: int = _PIECE) -> Int[Tensor, "*positions"]:
    """What `best_token` gives."""
    from unmask.rules import marginal_kernels

    kernels: Any = marginal_kernels
    *positions, v = logits.shape
    rows = logits.detach().reshape(-1, v)
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    pieces = -(-v // piece)
    best, token = (rows.new_empty((len(rows), pieces), dtype=dtype) for dtype in (torch.float32, torch.int32))
    out = rows.new_empty(len(rows), dtype=torch.long)
    with torch.cuda.device_of(rows):
        kernels.piece_best[(len(rows), pieces)](rows, best, token, rows.stride(0), v, W=piece, num_warps=4)
        kernels.row_best[(len(rows),)](best, token, out, pieces, P=1 << (pieces - 1).bit_length(), num_warps=1)
    return out.reshape(positions)


def _figure(
    logits: Tensor, tokens: Tensor | None, piece: int, *, PROBABILITY: bool = False, ENTROPY: bool = False
) -> Tensor:
    from unmask.rules import marginal_kernels

    kernels: Any = marginal_kernels  # a launch is no call that a type checker understands
    *positions, v = logits.shape
    rows = logits.detach().reshape(-1, v)
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    pieces = -(-v // piece)
    parts = rows.new_empty((len(rows), kernels.PARTS.value, pieces), dtype=torch.float64)
    best_two = not (PROBABILITY or ENTROPY)
    out = rows.new_empty((len(rows), 2) if best_two else (len(rows),), dtype=torch.float32)
    # A launch goes to the current device.
    with torch.cuda.device_of(rows):
        kernels.piece_parts[(len(rows), pieces)](
            rows, parts, rows.stride(0), v, SPREAD=ENTROPY, SECOND=best_two, W=piece, num_warps=4
        )
        kernels.row_figure[(len(rows),)](
            *(rows, rows if tokens is None else tokens, parts, out, rows.stride(0), v, pieces),
            PROBABILITY=PROBABILITY,
            ENTROPY=ENTROPY,
            P=1 << (pieces - 1).bit_length(),
            num_warps=1,
        )
    return out.reshape((*positions, *out.shape[1:]))
