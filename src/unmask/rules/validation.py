"""What the mean-field rule refuses, each in one line that names the value and the way out."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unmask.errors import UnknownName, UnmaskError

INTERACTIONS = ("jsd", "uniform", "none")
NORMALIZERS = ("max", "none")
FALLBACKS = ("field", "confidence")


def check_mean_field(
    threshold: float,
    iterations: int,
    interaction: str,
    uniform_weight: float,
    normalize: str,
    fallback: str,
    vocabulary: int | None,
) -> None:
    """Raise unless these are parameters of the rule."""
    if not 0.0 < threshold <= 1.0:
        raise UnmaskError(f"threshold must be in (0, 1], got {threshold!r}")
    if isinstance(iterations, bool) or not isinstance(iterations, int) or iterations < 0:
        raise UnmaskError(f"iterations must be a whole number of at least 0, got {iterations!r}")
    if not 0.0 <= uniform_weight < math.inf:
        raise UnmaskError(f"uniform_weight must be a number of at least 0, got {uniform_weight!r}")
    for kind, name, known in (
        ("interaction", interaction, INTERACTIONS),
        ("normalize", normalize, NORMALIZERS),
        ("fallback", fallback, FALLBACKS),
    ):
        if name not in known:
            raise UnknownName(kind, str(name), known)
    check_vocabulary(vocabulary)


def check_vocabulary(vocabulary: int | None) -> None:
    """Raise unless it is a number of tokens to keep per row, or None for all."""
    if vocabulary is None:
        return
    if isinstance(vocabulary, bool) or not isinstance(vocabulary, int) or vocabulary < 1:
        raise UnmaskError(f"vocabulary must be None (all tokens) or a whole number of at least 1, got {vocabulary!r}")


def check_tensors(logits: Tensor, masked: Tensor) -> None:
    """Raise unless these are logits (b, k, v) and a boolean mask (b, k)."""
    if logits.ndim != 3 or logits.shape[-1] == 0 or not logits.is_floating_point():
        raise UnmaskError(f"logits must be floating point of shape (b, k, v), got {_describe(logits)}")
    if masked.dtype != torch.bool or masked.shape != logits.shape[:2]:
        raise UnmaskError(f"masked must be bool of shape {tuple(logits.shape[:2])}, got {_describe(masked)}")


def check_rows(logits: Float[Tensor, "b k v"], masked: Bool[Tensor, "b k"]) -> None:
    """Raise if an open position is no distribution."""
    best = logits.amax(-1)
    bad = masked & ~best.isfinite()
    if not bad.any():
        return
    row, position = bad.nonzero()[0].tolist()
    value = float(best[row, position])
    trouble = "are all -inf" if value == -math.inf else f"contain {'NaN' if math.isnan(value) else '+inf'}"
    raise UnmaskError(f"the logits of row {row}, position {position} {trouble}; every open position needs a prediction")


def most_open(masked: Bool[Tensor, "b k"], open_at_most: int | None) -> int:
    """How many positions the row with the most open ones has; raises if the caller said that there are fewer."""
    found = int(masked.sum(-1).max()) if masked.numel() else 0
    if open_at_most is not None and found > open_at_most:
        raise UnmaskError(f"open_at_most is {open_at_most}, but a row has {found} open positions")
    return found


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
