"""Mean-Field Parallel Decoding: the default policy, around the rule of the same name.

The rule decides which positions are safe to commit together. `unmask.rules.mean_field_commit` is it for other
loops.
"""

from __future__ import annotations

from unmask.policies.base import Base, Decision, StepView, policy
from unmask.policies.scores import eligible
from unmask.rules.commit import commit_open
from unmask.rules.mean_field import Parameters


@policy("mean_field", pure=True)
class MeanField(Parameters, Base):
    """Commit where the mean-field intensity reaches `threshold` (Mean-Field Parallel Decoding, Algorithm 1)."""

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        # A position whose proposed token is ruled out (logit -inf) must not repel the others: `eligible` leaves it out,
        # and the engine commits it when nothing else is left.
        found = commit_open(view.logits, eligible(view), self, open_at_most=view.open_at_most)
        decision = Decision(commit=found.commit, score=found.score, intensity=found.intensity, overlap=found.overlap)
        return decision, None
