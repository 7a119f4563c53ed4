"""The one switch of every fuzz test.

A test run makes a few cases of each kind, always the same. `UNMASK_FUZZ=5000 pytest -s -o timeout=0 FILE` makes as many
as it says, others every time, and prints how they ended. docs/security.md lists the files.
"""

from __future__ import annotations

import os
from collections import Counter

from hypothesis import HealthCheck, Phase, settings

from unmask.errors import UnmaskError

WANTED = int(os.environ.get("UNMASK_FUZZ", "0"))


def cases(few: int) -> int:
    """How many cases to make, where a test run makes a few."""
    return WANTED or few


def fuzz(few: int) -> settings:
    return settings(
        max_examples=cases(few),
        deadline=None,
        derandomize=not WANTED,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate),  # a failure is small already
    )


def check_one_line(error: UnmaskError) -> None:
    assert len(str(error)) < 1500
    assert "\n" not in str(error)


def tell(ends: Counter[str]) -> None:
    """Print how the cases ended; pytest shows it with -s."""
    print(dict(ends.most_common()))  # noqa: T201
