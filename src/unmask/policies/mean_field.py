"""Mean-Field Parallel Decoding: the headline policy, around the rule of the same name.

The rule decides which positions are safe to commit together; see `unmask.rules.mean_field_commit`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from unmask import rules
from unmask.policies.base import Base, register
from unmask.policies.parameters import check_choice, check_number, check_whole
from unmask.policies.scores import eligible
from unmask.rules.validation import FALLBACKS, INTERACTIONS, NORMALIZERS
from unmask.types import Decision, StepView


@register("mean_field")
@dataclass(frozen=True, slots=True, kw_only=True)
class MeanField(Base):
    """Commit where the mean-field intensity reaches `threshold` (Mean-Field Parallel Decoding, Algorithm 1)."""

    pure: ClassVar[bool] = True

    threshold: float = 0.85
    iterations: int = 2
    interaction: str = "jsd"
    uniform_weight: float = 1.0
    normalize: str = "max"
    fallback: str = "field"
    vocabulary: int | None = None  # compare the likeliest tokens only, the rest merged into one

    def __post_init__(self) -> None:
        check_number(self, "threshold", within="(0, 1]")
        check_whole(self, "iterations", least=0)
        check_choice(self, "interaction", INTERACTIONS)
        check_number(self, "uniform_weight", within="[0, inf)")
        check_choice(self, "normalize", NORMALIZERS)
        check_choice(self, "fallback", FALLBACKS)
        check_whole(self, "vocabulary", least=1, optional=True)

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        # A position that is to come last must not hold others back either, so it takes no part.
        active = eligible(view)
        result = rules.mean_field_commit(
            view.logits,  # the rule itself widens half precision, where it has to
            active,
            threshold=self.threshold,
            iterations=self.iterations,
            interaction=self.interaction,
            uniform_weight=self.uniform_weight,
            normalize=self.normalize,
            fallback=self.fallback,
            vocabulary=self.vocabulary,
            open_at_most=view.open_at_most,
            validate=False,
        )
        score = result.score.where(active, -torch.inf)
        decision = Decision(commit=result.commit, score=score, intensity=result.intensity, overlap=result.overlap)
        return decision, None
