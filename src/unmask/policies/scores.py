"""How good each open position looks on its own. Closed positions score 0 and their logits, even NaN, are never used."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask import rules
from unmask.types import StepView


def confidence(view: StepView) -> Float[Tensor, "b k"]:
    """Probability of the proposed token, which at temperature 0 is the largest one."""
    return _open(view, rules.probability_of(_proposed(view), view.working(view.logits)))


def entropy(view: StepView) -> Float[Tensor, "b k"]:
    """Entropy of the predicted distribution in nats."""
    return _open(view, rules.entropy(view.working(view.logits)))


def probability_gap(view: StepView) -> Float[Tensor, "b k"]:
    """Difference between the probabilities of the two likeliest tokens."""
    best, second = rules.top2_probabilities(view.working(view.logits)).unbind(-1)
    return _open(view, best - second)


def eligible(view: StepView) -> Bool[Tensor, "b k"]:
    """Open positions but those to be committed last, whose proposed token has been ruled out by a logit of -inf."""
    return view.masked & (view.logits.gather(-1, _proposed(view)[..., None]).squeeze(-1) != -torch.inf)


def _proposed(view: StepView) -> Int[Tensor, "b k"]:
    return view.proposed.long().where(view.masked, 0)


def _open(view: StepView, values: Float[Tensor, "b k"]) -> Float[Tensor, "b k"]:
    return values.where(view.masked, 0.0)
