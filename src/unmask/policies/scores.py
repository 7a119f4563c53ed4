"""How good each open position looks on its own. Closed positions score 0 and their logits, even NaN, are never used."""

from __future__ import annotations

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


def eligible(view: StepView) -> Bool[Tensor, "b k"]:
    """Open positions whose proposed token can occur. The others, with a logit of -inf, are to be committed last."""
    return can_occur(view.proposed, view.logits, view.masked)


def _open(view: StepView, values: Float[Tensor, "b k"]) -> Float[Tensor, "b k"]:
    return values.where(view.masked, 0.0)
