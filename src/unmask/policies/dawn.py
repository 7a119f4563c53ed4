"""Dependency-aware decoding: DAWN.

A graph of dependence, read from the attention of the last layers, relaxes the threshold of positions that depend on
an anchor, and keeps coupled positions of middling confidence apart. The threshold of a confident position, 0.9, is
DAWN's constant.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unmask import rules
from unmask.device import widest_float
from unmask.policies.base import Base, Decision, StepView, parameter, policy, require
from unmask.policies.scores import block_positions, confidence, over_positions
from unmask.rules.selection import compatible

CONFIDENT = 0.9
LAYERS = 4


@policy("dawn", needs=frozenset({"sequence_logits", "attention"}))
class Dawn(Base):
    """Commit confident positions, positions that depend on an anchor, and a conflict-free choice of the rest (DAWN)."""

    tau_sink: float = parameter(0.01, within="[0, 1]")
    tau_edge: float = parameter(0.07, within="(0, 1]")
    tau_induce: float = parameter(0.7, within="(0, 1]")
    tau_low: float = parameter(0.75, within="(0, 1]")
    conflict_with: str = parameter("intersection", choices=("intersection", "union"))

    def attention_layers(self, n_layers: int) -> range:
        return range(max(n_layers - LAYERS, 0), n_layers)

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        sequence_logits = require(view, "sequence_logits", "dawn")
        at = block_positions(view, sequence_logits.shape[1])
        attention = view.working(require(view, "attention", "dawn"))
        length = torch.full_like(view.start, attention.shape[1]) if view.length is None else view.length
        # Strong attention is dependence, on anything but a sink. That a position may depend on itself has no effect:
        # none is both free and settled.
        received = attention.sum(1, dtype=widest_float(attention.device)) / length[:, None]
        sink = received.to(attention.dtype) > self.tau_sink
        depends = (attention.take_along_dim(at[:, :, None], 1) >= self.tau_edge) & ~sink[:, None, :]
        within = depends.take_along_dim(at[:, None, :], 2)

        score = confidence(view)
        confident = view.masked & (score >= CONFIDENT)
        anchored = (depends & _anchors(view, sequence_logits)[:, None, :]).any(-1)
        induced = view.masked & anchored & (score >= self.tau_induce)
        settled = confident & induced if self.conflict_with == "intersection" else confident | induced
        free = view.masked & (score >= self.tau_low) & ~confident & ~induced
        free = free & ~(within & settled[:, None, :]).any(-1)
        apart = compatible(free, score, within | within.transpose(1, 2))
        return Decision(commit=confident | induced | apart, score=score), None


def _anchors(view: StepView, sequence_logits: Float[Tensor, "b n v"]) -> Bool[Tensor, "b n"]:
    """Closed positions up to the end of the block where the model is confident of a token, even of another one."""
    column = torch.arange(sequence_logits.shape[1], device=view.start.device) - view.start[:, None]
    columns = view.masked.shape[1]
    width = columns if view.tokens is None else (view.tokens != -1).sum(-1, keepdim=True)
    open_ = view.masked.gather(1, column.clamp(0, columns - 1)) & (column >= 0) & (column < columns)
    if view.sequence_masked is not None:
        open_ = open_ | view.sequence_masked
    likeliest = over_positions(lambda logits: rules.probabilities(view.working(logits)).amax(-1), sequence_logits)
    return (column < width) & ~open_ & (likeliest >= CONFIDENT)
