"""The functions of `rules/marginals.py` in two launches that read the logits once and do not wait for the device.

They compute in float32, whatever the logits are; the result is within 1e-6 of the plain function's.
"""

from __future__ import annotations

from types import NotImplementedType
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.rules.kernels import next_power, serves, triton_marginals

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
    return _figure("probability", logits, dtype, piece, tokens.contiguous())


def entropy(
    logits: Float[Tensor, "*positions v"], *, dtype: torch.dtype | None = None, piece: int = _PIECE
) -> Float[Tensor, "*positions"] | NotImplementedType:
    return _figure("entropy", logits, dtype, piece)


def top2_probabilities(
    logits: Float[Tensor, "*positions v"], *, dtype: torch.dtype | None = None, piece: int = _PIECE
) -> Float[Tensor, "*positions 2"] | NotImplementedType:
    return _figure("best two", logits, dtype, piece)


def best_token(
    logits: Float[Tensor, "*positions v"], *, piece: int = _PIECE
) -> Int[Tensor, "*positions"] | NotImplementedType:
    if not serves(logits):
        return NotImplemented
    rows = _rows(logits)
    n, v = rows.shape
    pieces = -(-v // piece)
    best, token = (rows.new_empty((n, pieces), dtype=dtype) for dtype in (torch.float32, torch.int32))
    out = rows.new_empty(n, dtype=torch.long)
    with torch.cuda.device_of(rows):
        _KERNELS.piece_best[(n, pieces)](rows, best, token, rows.stride(0), v, W=piece, num_warps=4)
        _KERNELS.row_best[(n,)](best, token, out, pieces, P=next_power(pieces), num_warps=1)
    return out.reshape(logits.shape[:-1])


def _figure(
    kind: str, logits: Tensor, dtype: torch.dtype | None, piece: int, tokens: Tensor | None = None
) -> Tensor | NotImplementedType:
    if not serves(logits):
        return NotImplemented
    rows = _rows(logits)
    n, v = rows.shape
    pieces = -(-v // piece)
    parts = rows.new_empty((n, _KERNELS.PARTS.value, pieces), dtype=torch.float64)
    out = rows.new_empty((n, 2) if kind == "best two" else (n,), dtype=torch.float32)
    # A launch goes to the current device.
    with torch.cuda.device_of(rows):
        flags = {"SPREAD": kind == "entropy", "SECOND": kind == "best two"}
        _KERNELS.piece_parts[(n, pieces)](rows, parts, rows.stride(0), v, **flags, W=piece, num_warps=4)
        flags = {"PROBABILITY": kind == "probability", "ENTROPY": kind == "entropy"}
        given = (rows, rows if tokens is None else tokens, parts, out, rows.stride(0), v, pieces)
        _KERNELS.row_figure[(n,)](*given, **flags, P=next_power(pieces), num_warps=1)
    return out.reshape((*logits.shape[:-1], *out.shape[1:])).to(dtype or logits.dtype)


def _rows(logits: Float[Tensor, "*positions v"]) -> Float[Tensor, "n v"]:
    """The logits as rows, in each of which the tokens lie side by side."""
    rows = logits.detach().reshape(-1, logits.shape[-1])
    return rows if rows.stride(-1) == 1 else rows.contiguous()
