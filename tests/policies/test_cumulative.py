"""The cumulative rule: a table of tiny cases by hand, and random ones against plain Python."""

import math
import random

import pytest
import torch
from policies.rows import committed, peaked

from unmask import policies
from unmask.errors import UnmaskError
from unmask.types import StepView


@pytest.mark.parametrize(
    ("probabilities", "threshold", "expected"),
    [
        ((0.99, 0.98, 0.6), 0.95, {0, 1}),  # 0.99, 0.9702, 0.582
        ((0.99, 0.98, 0.97), 0.95, {0, 1}),  # the third would make it 0.941
        ((0.6, 0.99, 0.98), 0.5, {0, 1, 2}),
        ((0.7, 0.8, 0.6), 0.9, {1}),  # none reaches it: the best alone
        ((0.95, 0.95, 0.95), 0.9, {0, 1}),  # equal ones by their places: 0.9025, then 0.857
        ((1.0, 1.0, 1.0), 1.0, {0, 1, 2}),
    ],
)
def test_the_longest_prefix_whose_product_reaches_the_threshold_is_committed(probabilities, threshold, expected):
    rows = torch.tensor([[[p, 1 - p, 0.0, 0.0] for p in probabilities]], dtype=torch.float64)
    view = StepView(logits=rows.log(), masked=torch.ones(1, len(probabilities), dtype=torch.bool))
    assert set(committed(policies.Cumulative(threshold=threshold), view)) == expected


def test_closed_positions_count_for_nothing():
    view = StepView(logits=peaked([0.99, 0.2, 0.97])[None], masked=torch.tensor([[False, True, True]]))
    assert committed(policies.Cumulative(threshold=0.9), view) == [2]


def test_it_agrees_with_plain_python():
    rng = random.Random(0)
    for _ in range(300):
        width = rng.randint(1, 8)
        best = [rng.choice([0.99, 0.97, 0.9, rng.uniform(0.5, 1.0)]) for _ in range(width)]
        masked = [rng.random() < 0.8 for _ in range(width)]
        masked[rng.randrange(width)] = True
        threshold = rng.choice([0.5, 0.8, 0.9, 0.99])
        order = sorted((i for i in range(width) if masked[i]), key=lambda i: (-best[i], i))
        count = 0
        while count < len(order) and math.prod(best[i] for i in order[: count + 1]) >= threshold:
            count += 1
        rows = torch.tensor([[[p, 1 - p] for p in best]], dtype=torch.float64)
        view = StepView(logits=rows.log(), masked=torch.tensor([masked]))
        assert set(committed(policies.Cumulative(threshold=threshold), view)) == set(order[: max(count, 1)])


@pytest.mark.parametrize("threshold", [0.0, 1.1, "much"])
def test_a_threshold_outside_its_interval_is_refused(threshold):
    with pytest.raises(UnmaskError, match=r"threshold must be a number in \(0, 1\]"):
        policies.Cumulative(threshold=threshold)
