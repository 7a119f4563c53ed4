"""What a policy is, and the guarantees that hold for every policy, whatever it answers.

A policy decides which open positions of a block to commit after one forward pass. It never touches a model or a canvas.
"""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.errors import UnmaskError
from unmask.registry import Registry
from unmask.types import Decision, StepView


class Policy(Protocol):
    """A frozen dataclass whose fields are its parameters.

    State is None or a frozen dataclass of tensors that lead with `b`; it lives as long as the generation, and a policy that
    starts afresh in each block does so in the rows where `view.step == 0`.
    """

    needs: ClassVar[frozenset[str]] = frozenset()  # of: sequence_logits, attention, shadow, uniform
    remasks: ClassVar[bool] = False  # may open decoded positions of the current block again

    def select(self, view: StepView, state: Any = None) -> tuple[Decision, Any]: ...


registry: Registry[Policy] = Registry("policy", "unmask.policies")
register = registry.register


def with_progress(decision: Decision, masked: Bool[Tensor, "b k"]) -> Bool[Tensor, "b k"]:
    """The policy's commits, clipped to the open positions; an open row with none gets its best-scored open position."""
    commit = decision.commit & masked
    best = _open_scores(decision.score, masked).argmax(-1, keepdim=True)
    stuck = masked.any(-1) & ~commit.any(-1)
    if decision.wait is not None:
        stuck &= ~decision.wait
    return commit | (torch.zeros_like(masked).scatter(-1, best, stuck[:, None]) & masked)


def require(view: StepView, need: str, policy: str) -> Tensor:
    """What the policy needs from the view, or an error that names it."""
    name = "shadow_logits" if need == "shadow" else need
    value = getattr(view, name)
    if value is None:
        raise UnmaskError(f"the policy {policy} needs {name}, and the view has none")
    return value


def best_scored(
    score: Float[Tensor, "b k"], masked: Bool[Tensor, "b k"], count: Int[Tensor, " b"]
) -> Bool[Tensor, "b k"]:
    """The `count` open positions of each row with the largest scores, ties to the lowest index."""
    order = _open_scores(score, masked).argsort(dim=-1, descending=True, stable=True)
    rank = torch.empty_like(order).scatter_(-1, order, torch.arange(order.shape[-1], device=order.device).expand_as(order))
    return masked & (rank < count[:, None])


def _open_scores(score: Float[Tensor, "b k"], masked: Bool[Tensor, "b k"]) -> Float[Tensor, "b k"]:
    """Scores in which an open position always beats a closed one, even if the policy scored it -inf or NaN."""
    lowest = torch.finfo(score.dtype).min
    return score.nan_to_num(nan=lowest, neginf=lowest).masked_fill(~masked, -torch.inf)
