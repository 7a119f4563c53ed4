"""Mean-Field Parallel Decoding: the default policy, around the rule of the same name.

The rule decides which positions are safe to commit together; see `unmask.rules.mean_field_commit`.
"""

from __future__ import annotations

from dataclasses import dataclass

from unmask import rules
from unmask.options import parameter
from unmask.policies.base import Base, register
from unmask.policies.scores import eligible
from unmask.rules.commit import BOUNDS
from unmask.types import Decision, StepView


@register("mean_field")
@dataclass(frozen=True, slots=True, kw_only=True)
class MeanField(Base):
    """Commit where the mean-field intensity reaches `threshold` (Mean-Field Parallel Decoding, Algorithm 1)."""

    pure = True  # neither state nor host reads: a CUDA graph can capture a decision

    threshold: float = parameter(0.85, **BOUNDS["threshold"])
    iterations: int = parameter(2, **BOUNDS["iterations"])
    interaction: str = parameter("jsd", **BOUNDS["interaction"])
    uniform_weight: float = parameter(1.0, **BOUNDS["uniform_weight"])
    normalize: str = parameter("max", **BOUNDS["normalize"])
    fallback: str = parameter("field", **BOUNDS["fallback"])
    # Compare this many of the likeliest tokens, the rest merged into one.
    vocabulary: int | None = parameter(None, **BOUNDS["vocabulary"])

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        # A position whose proposed token is ruled out (logit -inf) must not repel the others: `eligible` leaves it out,
        # and the engine commits it when nothing else is left.
        result = rules.mean_field_commit(
            view.logits,
            eligible(view),
            threshold=self.threshold,
            iterations=self.iterations,
            interaction=self.interaction,
            uniform_weight=self.uniform_weight,
            normalize=self.normalize,
            fallback=self.fallback,
            vocabulary=self.vocabulary,
            open_at_most=view.open_at_most,
            validate=False,  # which would wait for the device
        )
        decision = Decision(
            commit=result.commit, score=result.score, intensity=result.intensity, overlap=result.overlap
        )
        return decision, None
