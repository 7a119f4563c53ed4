"""Largest gap between the two likeliest tokens first: Dream's `topk_margin`, and the same order on LLaDA's schedule."""

from __future__ import annotations

from unmask.policies.base import policy
from unmask.policies.schedule import Scheduled
from unmask.policies.scores import probability_gap


@policy("margin", pure=Scheduled.pure)
class Margin(Scheduled):
    """Commit the positions whose best token leads the second best by the largest probability (Dream)."""

    score = staticmethod(probability_gap)
