"""The functions of `rules/marginals.py` in two launches that read the logits once and do not wait for the device.

They compute in float32, whatever the logits are; the result is within 1e-6 of the plain function's.
"""

from __future__ import annotations

from types import NotImplementedType
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.rules.kernels import triton_marginals
from unmask.rules.kernels.serving import next_power, serves

_KERNELS: Any = triton_marginals  # a launch is no call that a type checker understands
_PIECE = 4096  # tokens of a row that one program reads; it depends on no other size


def probability_of(
    tokens: Int[Tensor, "*positions"],
    logits: Float[Tensor, "*positions v"],
    *,
    dtype: torch.dtype | None = None,
    piece: int = _PIECE,
) -> Float[Tensor, "*positions"] | NotImplementedType:
    """NaN for an id outside the vocabulary."""
    if not serves(logits):
        return NotImplemented
    return _figure(logits, tokens.contiguous(), piece, PROBABILITY=True).to(dtype or logits.dtype)


def entropy(
    logits: Float[Tensor, "*positions v"], *, dtype: torch.dtype | None = None, piece: int = _PIECE
) -> Float[Tensor, "*positions"] | NotImplementedType:
    if not serves(logits):
        return NotImplemented
    return _figure(logits, None, piece, ENTROPY=True).to(dtype or logits.dtype)


def top2_probabilities(
    logits: Float[Tensor, "*positions v"], *, dtype: torch.dtype | None = None, piece: int = _PIECE
) -> Float[Tensor, "*positions 2"] | NotImplementedType:
    if not serves(logits):
        return NotImplemented
    return _figure(logits, None, piece).to(dtype or logits.dtype)


def best_token(
    logits: Float[Tensor, "*positions v"], *, piece: int = _PIECE
) -> Int[Tensor, "*positions"] | NotImplementedType:
    if not serves(logits):
        return NotImplemented
    *positions, v = logits.shape
    rows = logits.detach().reshape(-1, v)
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    pieces = -(-v // piece)
    best, token = (rows.new_empty((len(rows), pieces), dtype=dtype) for dtype in (torch.float32, torch.int32))
    out = rows.new_empty(len(rows), dtype=torch.long)
    with torch.cuda.device_of(rows):
        _KERNELS.piece_best[(len(rows), pieces)](rows, best, token, rows.stride(0), v, W=piece, num_warps=4)
        _KERNELS.row_best[(len(rows),)](best, token, out, pieces, P=next_power(pieces), num_warps=1)
    return out.reshape(positions)


def _figure(
    logits: Tensor, tokens: Tensor | None, piece: int, *, PROBABILITY: bool = False, ENTROPY: bool = False
) -> Tensor:
    *positions, v = logits.shape
    rows = logits.detach().reshape(-1, v)
    rows = rows if rows.stride(-1) == 1 else rows.contiguous()
    pieces = -(-v // piece)
    parts = rows.new_empty((len(rows), _KERNELS.PARTS.value, pieces), dtype=torch.float64)
    best_two = not (PROBABILITY or ENTROPY)
    out = rows.new_empty((len(rows), 2) if best_two else (len(rows),), dtype=torch.float32)
    # A launch goes to the current device.
    with torch.cuda.device_of(rows):
        _KERNELS.piece_parts[(len(rows), pieces)](
            rows, parts, rows.stride(0), v, SPREAD=ENTROPY, SECOND=best_two, W=piece, num_warps=4
        )
        _KERNELS.row_figure[(len(rows),)](
            *(rows, rows if tokens is None else tokens, parts, out, rows.stride(0), v, pieces),
            PROBABILITY=PROBABILITY,
            ENTROPY=ENTROPY,
            P=next_power(pieces),
            num_warps=1,
        )
    return out.reshape((*positions, *out.shape[1:]))
