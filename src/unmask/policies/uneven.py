"""A rule for measurements and rehearsals, which nobody decodes text with: rows at paces of their own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from unmask.policies.base import Base, best_scored
from unmask.policies.scores import confidence
from unmask.types import Decision, StepView


@dataclass(frozen=True, slots=True, kw_only=True)
class Uneven(Base):
    """One to seven positions a pass, drawn by where the block begins and how often it was computed.

    So rows of different lengths are soon out of step, as by rules that commit what a model is sure of; but how many
    positions a pass commits does not depend on what the model says.
    """

    pure: ClassVar[bool] = True

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        score = confidence(view)
        drawn = (view.start + 1) * 73_856_093 ^ (view.step + 1) * 19_349_663
        return Decision(commit=best_scored(score, view.masked, 1 + drawn % 1009 % 7), score=score), None
