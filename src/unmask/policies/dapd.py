"""Dependency-aware parallel decoding: DAPD.

Mutual attention between open positions measures how much they depend on each other; the less is left to decode, the
more dependence is tolerated. The constants 0.9 and one half of the staged variant are DAPD's.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.device import widest_float
from unmask.policies.base import Base, Decision, StepView, parameter, policy, require
from unmask.policies.scores import block_positions, confidence, eligible
from unmask.rules.selection import compatible


@policy("dapd", needs=frozenset({"attention"}))
class Dapd(Base):
    """Commit positions by confidence times degree, each unless it depends on a position already taken (DAPD).

    'staged' adds every confident position once half of the generation is decoded; 'direct' adds certain positions,
    which take no part in conflicts.
    """

    tau_min: float = parameter(0.01, within="[0, 1]")
    tau_max: float = parameter(0.05, within="[0, 1]")
    variant: str = parameter("staged", choices=("staged", "direct"))

    def attention_layers(self, n_layers: int) -> range:
        return range(n_layers * 7 // 10, n_layers)

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        dependence = self._dependence(view)
        probability, candidates = confidence(view), eligible(view)
        # Dividing both factors by their maxima in the row, as the paper does, leaves the order as it is.
        degree = dependence.sum(-1, dtype=widest_float(dependence.device)).to(dependence.dtype)
        score = degree * probability
        relative = dependence / dependence.amax(-1, keepdim=True).clamp(min=1e-8)
        progress = 1.0 - view.remaining.to(dependence.dtype) / view.total
        tau = self.tau_min + (self.tau_max - self.tau_min) * progress
        conflict = relative > tau[:, None, None]
        if self.variant == "staged":
            added = candidates & (probability >= 0.9) & (progress >= 0.5)[:, None]
            commit = compatible(candidates, score, conflict) | added
        else:
            # Certain in the model's own dtype: in bfloat16 everything from about 0.998 rounds to 1.
            certain = candidates & (probability.to(view.model_dtype or view.logits.dtype) >= 1.0)
            commit = compatible(candidates & ~certain, score, conflict) | certain
        return Decision(commit=commit, score=score.where(candidates, -torch.inf)), None

    def _dependence(self, view: StepView) -> Float[Tensor, "b k k"]:
        """Mean of the attention both ways between open positions; zero elsewhere and on the diagonal."""
        attention = require(view, "attention", "dapd")
        attention = attention.to(torch.promote_types(attention.dtype, torch.float32))
        at = block_positions(view, attention.shape[1])
        mutual = attention.take_along_dim(at[:, :, None], 1).take_along_dim(at[:, None, :], 2)
        mutual = (mutual + mutual.transpose(1, 2)) / 2
        itself = torch.eye(at.shape[1], dtype=torch.bool, device=at.device)
        return mutual.where(view.masked[:, :, None] & view.masked[:, None, :] & ~itself, 0.0)
