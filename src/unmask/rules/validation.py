"""What the mean-field rule refuses, each in one line that names the value and the way out."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unmask.errors import UnmaskError
from unmask.options import checked

# What each parameter of the rule may be; the vocabulary may also be None.
BOUNDS: dict[str, dict[str, Any]] = {
    "threshold": {"within": "(0, 1]"},
    "iterations": {"least": 0},
    "interaction": {"choices": ("jsd", "uniform", "none")},
    "uniform_weight": {"within": "[0, inf)"},
    "normalize": {"choices": ("max", "none")},
    "fallback": {"choices": ("field", "confidence")},
    "vocabulary": {"least": 1},
}


def check_vocabulary(vocabulary: int | None) -> None:
    """Raise unless it is a number of tokens to keep per row, or None for all."""
    if vocabulary is not None:
        checked("vocabulary", vocabulary, **BOUNDS["vocabulary"])


def checked_parameters(*, vocabulary: int | None, **others: Any) -> dict[str, Any]:
    """The parameters of the rule; raises unless all of them keep to their bounds."""
    check_vocabulary(vocabulary)
    return {name: checked(name, value, **BOUNDS[name]) for name, value in others.items()} | {"vocabulary": vocabulary}


def check_tensors(logits: Tensor, masked: Tensor) -> None:
    """Raise unless these are logits (b, k, v) and a boolean mask (b, k)."""
    if logits.ndim != 3 or logits.shape[-1] == 0 or not logits.is_floating_point():
        raise UnmaskError(f"logits must be floating point of shape (b, k, v), got {_describe(logits)}")
    if masked.dtype != torch.bool or masked.shape != logits.shape[:2]:
        raise UnmaskError(f"masked must be bool of shape {tuple(logits.shape[:2])}, got {_describe(masked)}")


def check_rows(logits: Float[Tensor, "b k v"], masked: Bool[Tensor, "b k"]) -> None:
    """Raise if the logits of an open position are no distribution: with NaN or +inf, or all -inf."""
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
