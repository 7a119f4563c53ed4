"""Low-confidence remasking: LLaDA's fixed number of commits per pass and, with Dream's schedule, its `maskgit_plus`."""

from __future__ import annotations

from unmask.policies.base import policy
from unmask.policies.schedule import Scheduled
from unmask.policies.scores import confidence


@policy("fixed", pure=Scheduled.pure)
class Fixed(Scheduled):
    """Commit the most confident positions (LLaDA)."""

    score = staticmethod(confidence)
