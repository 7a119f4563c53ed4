"""How good each position looks on its own.

Most scores are for open positions: closed ones score 0 and their logits, even NaN, are never used. `likeliest` and
`standing` also look at positions that were decoded, for policies that take tokens back. `over_positions` looks at the
whole canvas, and `block_positions` says where in it the block lies.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask import rules
from unmask.types import StepView

POSITIONS_AT_ONCE = 128  # at a vocabulary of 126,464 one float64 copy is 130 MB


def confidence(view: StepView) -> Float[Tensor, "b k"]:
    """Probability of the proposed token, which at temperature 0 is the largest one."""
    return probability(view, view.proposed, view.masked)


def entropy(view: StepView) -> Float[Tensor, "b k"]:
    """Entropy of the predicted distribution in nats."""
    return rules.entropy(view.logits, dtype=view.working_dtype(view.logits)).where(view.masked, 0.0)


def probability_gap(view: StepView) -> Float[Tensor, "b k"]:
    """Difference between the probabilities of the two likeliest tokens."""
    best, second = rules.top2_probabilities(view.logits, dtype=view.working_dtype(view.logits)).unbind(-1)
    return (best - second).where(view.masked, 0.0)


def likeliest(view: StepView) -> Float[Tensor, "b k"]:
    """The largest probability at each position that is open or was decoded."""
    return probability(view, view.logits.argmax(-1), view.masked | decoded(view))


def standing(view: StepView, logits: Float[Tensor, "b k v"] | None = None) -> Float[Tensor, "b k"]:
    """The probability of the token that stands at each decoded position, by the view's logits or by others."""
    return probability(view, standing_tokens(view), decoded(view), logits)


def probability(
    view: StepView, tokens: Int[Tensor, "b k"], at: Bool[Tensor, "b k"], logits: Float[Tensor, "b k v"] | None = None
) -> Float[Tensor, "b k"]:
    """The probability of each token where `at` says so, 0 elsewhere: there tokens and logits may be anything."""
    logits = view.logits if logits is None else logits
    return rules.probability_of(tokens.long().where(at, 0), logits, dtype=view.working_dtype(logits)).where(at, 0.0)


def standing_tokens(view: StepView) -> Int[Tensor, "b k"]:
    """What stands in the block; the proposed tokens if the view does not say."""
    return view.proposed if view.tokens is None else view.tokens


def decoded(view: StepView) -> Bool[Tensor, "b k"]:
    """Positions filled earlier in a block that is not full; none if the view does not say what stands in the block."""
    filled = view.decoded
    if filled is None:
        filled = torch.zeros_like(view.masked) if view.tokens is None else ~view.masked & (view.tokens >= 0)
    return filled & view.masked.any(-1, keepdim=True)


def eligible(view: StepView) -> Bool[Tensor, "b k"]:
    """Open positions whose proposed token can occur. The others, with a logit of -inf, are to be committed last."""
    tokens = view.proposed.long().where(view.masked, 0)
    return view.masked & (view.logits.gather(-1, tokens[..., None]).squeeze(-1) != -torch.inf)


def block_positions(view: StepView, length: int) -> Int[Tensor, "b k"]:
    """Absolute position of each column; columns past the end of the canvas, never open, point to its last position."""
    columns = torch.arange(view.masked.shape[1], device=view.masked.device)
    return (view.start[:, None] + columns).clamp(max=length - 1)


def over_positions(figure: Callable[..., Tensor], *logits: Float[Tensor, "b n v"]) -> Float[Tensor, "b n *figures"]:
    """`figure` of every position's logits, computed a few positions at a time."""
    parts = zip(*(part.split(POSITIONS_AT_ONCE, dim=1) for part in logits), strict=True)
    return torch.cat([figure(*part) for part in parts], dim=1)
