"""Figures of one position's predictive distribution, straight from its logits.

The caller decides the precision: float32 and float64 are computed as they come, half precision is computed in float32
and rounded once, at the end, unless `dtype` asks for another result. A logit of -inf is a token that cannot occur; a
row without a finite logit is the caller's mistake and gives NaN.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from unmask.device import widest_float, with_kernel

_TOGETHER = 8  # values that a CUDA device reads at a time, at the most


def probabilities(logits: Float[Tensor, "*positions v"]) -> Float[Tensor, "*positions v"]:
    """Probability of every token."""
    centred = _centred(logits).exp_()
    return centred.div_(_total(centred).unsqueeze(-1)).to(logits.dtype)


def log_probabilities(logits: Float[Tensor, "*positions v"]) -> Float[Tensor, "*positions v"]:
    """Log-probability of every token."""
    centred = _centred(logits)
    return (centred - _total(centred.exp()).unsqueeze(-1).log()).to(logits.dtype)


@with_kernel
def best_token(logits: Float[Tensor, "*positions v"]) -> Int[Tensor, "*positions"]:
    """The likeliest token, the first of several; a logit that is not a number counts as the largest."""
    return logits.argmax(-1)


@with_kernel
def probability_of(
    tokens: Int[Tensor, "*positions"], logits: Float[Tensor, "*positions v"], *, dtype: torch.dtype | None = None
) -> Float[Tensor, "*positions"]:
    """Probability of the given tokens, one per position."""
    centred = _centred(logits)
    chosen = centred.gather(-1, tokens.long().unsqueeze(-1)).squeeze(-1)
    return (chosen.exp() / _total(centred.exp_())).to(dtype or logits.dtype)


@with_kernel
def entropy(logits: Float[Tensor, "*positions v"], *, dtype: torch.dtype | None = None) -> Float[Tensor, "*positions"]:
    """Shannon entropy in nats, with 0 ln 0 = 0."""
    centred = _centred(logits)
    weight = centred.exp()
    mass = _total(weight)
    # 0 * -inf is NaN, and a token that cannot occur adds nothing.
    spread = _total(weight.mul_(centred.clamp_(min=torch.finfo(centred.dtype).min)))
    return (mass.log() - spread / mass).to(dtype or logits.dtype)


def top2_margin(logits: Float[Tensor, "*positions v"]) -> Float[Tensor, "*positions"]:
    """Gap between the log-probabilities of the two best tokens, at least float32; +inf where only one can occur."""
    # The two best are found before they are widened, which for half precision saves a copy of all logits.
    best = logits.detach().topk(min(2, logits.shape[-1]), dim=-1).values
    best = best.to(torch.promote_types(best.dtype, torch.float32))
    return best[..., 0] - best[..., 1] if best.shape[-1] == 2 else torch.full_like(best[..., 0], torch.inf)


@with_kernel
def top2_probabilities(
    logits: Float[Tensor, "*positions v"], *, dtype: torch.dtype | None = None
) -> Float[Tensor, "*positions 2"]:
    """Probabilities of the two best tokens, best first; the second is 0 where only one token can occur."""
    centred = _centred(logits)
    best = centred.topk(min(2, logits.shape[-1]), dim=-1).values.exp()
    both = pad(best, (0, 2 - best.shape[-1]))
    return (both / _total(centred.exp_()).unsqueeze(-1)).to(dtype or logits.dtype)


def aligned(values: Tensor) -> Tensor:
    """The values, on a CUDA device padded with zeros so that every row begins at a multiple of `_TOGETHER` values.

    There the rounding of a row's sum depends on where in memory the row begins, and identical rows must tie.
    """
    missing = -values.shape[-1] % _TOGETHER if values.is_cuda else 0
    return pad(values, (0, missing)) if missing else values


def _centred(logits: Tensor) -> Tensor:
    """A fresh copy, at least float32, whose largest entry is 0."""
    wide = logits.detach() if logits.dtype == torch.float64 else logits.detach().float()
    return wide - wide.amax(-1, keepdim=True)


def _total(values: Tensor) -> Tensor:
    """The sum over tokens, rounded once, so that equal distributions tie whatever the order of their tokens.

    torch's own softmax on a CPU adds float32 one after the other in each vector lane: over 126,464 tokens its
    probabilities add up to 1 only within 5e-5.
    """
    return aligned(values).sum(-1, dtype=widest_float(values.device)).to(values.dtype)
