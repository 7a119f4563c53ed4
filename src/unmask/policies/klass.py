"""KL-guided decoding: KLASS.

A position is ready when its distribution has hardly moved over the last passes and its token is likely enough. The two
public implementations differ in details, which `convention` chooses. Distributions are compared in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask import rules
from unmask.device import widest_float
from unmask.policies.base import Base, Decision, StepView, carried, parameter, policy, require
from unmask.policies.scores import block_positions, confidence, eligible, over_positions
from unmask.rules.selection import best_scored

EPSILON = 1e-12


@dataclass(frozen=True, slots=True)
class Drift:
    """The latest KL divergences, and the logits of the pass before: smaller than its distributions, which they give."""

    logits: Float[Tensor, "b n v"]
    divergence: Float[Tensor, "b n h"]
    masks: Int[Tensor, " b"]  # open when the row's block began


@policy("klass", needs=frozenset({"sequence_logits"}))
class Klass(Base):
    """Commit every position that is stable and confident, else the most confident ones (KLASS)."""

    confidence: float = parameter(0.6, within="(0, 1]")
    kl: float = parameter(0.015, within="(0, inf)")
    history: int = parameter(2, least=1)
    convention: str = parameter("llada", choices=("llada", "dream"))
    passes: int | None = parameter(None, least=1)  # per block: sets how many to commit when none is ready; None: one

    def select(self, view: StepView, state: Drift | None = None) -> tuple[Decision, Drift]:
        logits = require(view, "sequence_logits", "klass")
        figures = over_positions(_figures, logits, *(() if state is None else (state.logits,)))
        divergence, likeliest = figures.unbind(-1)
        before = divergence.new_zeros(*divergence.shape, self.history) if state is None else state.divergence
        recent = torch.cat([before[..., 1:], divergence[..., None]], dim=-1)

        at = block_positions(view, logits.shape[1])
        score, candidates, tokens, count = confidence(view), eligible(view), None, 1
        masks = carried(state, "masks", view, fresh=view.masked.sum(-1))
        if self.convention == "dream":
            confident = likeliest.gather(1, at) >= self.confidence
            # A token is drawn only to choose where to commit, and the likeliest one is written.
            tokens = torch.where(view.masked & ~candidates, view.proposed, view.logits.argmax(-1))
        else:
            confident = (score > self.confidence) & (view.step >= self.history - 1)[:, None]
            if self.passes is not None:  # this pass's share of the block, whatever was committed beyond it
                count = masks // self.passes + (view.step < masks % self.passes)
        ready = candidates & confident & (recent < self.kl).all(-1).gather(1, at)
        commit = torch.where(ready.any(-1, keepdim=True), ready, best_scored(score, view.masked, count))
        # The state must not alias a buffer that the next forward pass may fill anew.
        return Decision(commit=commit, score=score, tokens=tokens), Drift(logits.clone(), recent, masks)


def _figures(now: Float[Tensor, "b n v"], before: Float[Tensor, "b n v"] | None = None) -> Float[Tensor, "b n 2"]:
    """KL divergence from the pass before, which counts as all zeros in the first pass, and the top probability."""
    present = rules.probabilities(now.to(widest_float(now.device)))
    past = torch.zeros_like(present) if before is None else rules.probabilities(before.to(widest_float(before.device)))
    divergence = (present * ((present + EPSILON).log() - (past + EPSILON).log())).sum(-1)
    return torch.stack([divergence, present.amax(-1)], dim=-1)
