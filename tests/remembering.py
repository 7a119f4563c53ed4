"""Policies of a user's own that need only logits: with state, with positions taken back, with waiting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from unmask import Decision, StepView, policies, rules


@dataclass(frozen=True, slots=True)
class Before:
    """The likeliest tokens of the pass before."""

    tokens: Tensor  # (b, k)


@policies.register("steady")
@dataclass(frozen=True, slots=True, kw_only=True)
class Steady(policies.Policy):
    """Commit where the likeliest token is that of the pass before; wait in the first pass over a block."""

    def select(self, view: StepView, state: Before | None = None) -> tuple[Decision, Before]:
        first = view.step == 0
        same = torch.zeros_like(view.masked) if state is None else view.proposed == state.tokens
        confidence = rules.probability_of(view.proposed, view.working(view.logits))
        decision = Decision(commit=view.masked & same & ~first[:, None], score=confidence, wait=first)
        return decision, Before(view.proposed.clone())


@policies.register("hesitant")
@dataclass(frozen=True, slots=True, kw_only=True)
class Hesitant(policies.Policy):
    """Commit two positions a pass, and take one back after the second pass over a block."""

    remasks: ClassVar[bool] = True

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        score = rules.probability_of(view.proposed, view.working(view.logits))
        two = rules.selection.best_scored(score, view.masked, 2)
        doubtful = rules.selection.best_scored(-score, view.decoded, 1) & (view.step == 1)[:, None]
        return Decision(commit=two, score=score, remask=doubtful), None


@policies.register("thirds")
@dataclass(frozen=True, slots=True, kw_only=True)
class Thirds(policies.Policy):
    """Commit every third position of the text."""

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        position = view.start[:, None] + torch.arange(view.masked.shape[1])
        score = rules.probability_of(view.proposed, view.working(view.logits))
        return Decision(commit=view.masked & (position % 3 == 0), score=score), None


@policies.register("idle")
@dataclass(frozen=True, slots=True, kw_only=True)
class Idle(policies.Policy):
    """Commit nothing as long as it is let to."""

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        nothing = torch.zeros_like(view.masked)
        return Decision(commit=nothing, score=nothing.float(), wait=~nothing.any(-1)), None
