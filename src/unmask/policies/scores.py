"""How good each position looks on its own.

Most scores are for open positions: closed ones score 0 and their logits, even NaN, are never used. `likeliest` and
`standing` also look at positions that were decoded, for policies that take tokens back.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unmask import rules
from unmask.rules.selection import can_occur
from unmask.types import StepView


def confidence(view: StepView) -> Float[Tensor, "b k"]:
    """Probability of the proposed token, which at temperature 0 is the largest one."""
    tokens = view.proposed.long() * view.masked  # closed positions may hold any token
    return _open(view, rules.probability_of(tokens, view.logits, dtype=view.working_dtype(view.logits)))


def entropy(view: StepView) -> Float[Tensor, "b k"]:
    """Entropy of the predicted distribution in nats."""
    return _open(view, rules.entropy(view.logits, dtype=view.working_dtype(view.logits)))


def probability_gap(view: StepView) -> Float[Tensor, "b k"]:
    """Difference between the probabilities of the two likeliest tokens."""
    best, second = rules.top2_probabilities(view.logits, dtype=view.working_dtype(view.logits)).unbind(-1)
    return _open(view, best - second)


def likeliest(view: StepView) -> Float[Tensor, "b k"]:
    """The largest probability at each position that is open or was decoded, 0 elsewhere."""
    tokens = view.logits.argmax(-1)
    top = rules.probability_of(tokens, view.logits, dtype=view.working_dtype(view.logits))
    return top.where(view.masked | decoded(view), 0.0)


def decoded(view: StepView) -> Bool[Tensor, "b k"]:
    """Positions filled earlier in a block that is not full; none if the view does not say what stands in the block."""
    filled = view.decoded
    if filled is None:
        filled = torch.zeros_like(view.masked) if view.tokens is None else ~view.masked & (view.tokens >= 0)
    return filled & view.masked.any(-1, keepdim=True)


def standing(view: StepView) -> Float[Tensor, "b k"]:
    """The probability of the token that stands at each decoded position, 0 elsewhere."""
    filled = decoded(view)
    if view.tokens is None:
        return torch.zeros(filled.shape, dtype=view.working_dtype(view.logits), device=filled.device)
    tokens = view.tokens.long().where(filled, 0)
    return rules.probability_of(tokens, view.logits, dtype=view.working_dtype(view.logits)).where(filled, 0.0)


def eligible(view: StepView) -> Bool[Tensor, "b k"]:
    """Open positions whose proposed token can occur. The others, with a logit of -inf, are to be committed last."""
    return can_occur(view.proposed, view.logits, view.masked)


def _open(view: StepView, values: Float[Tensor, "b k"]) -> Float[Tensor, "b k"]:
    return values.where(view.masked, 0.0)
