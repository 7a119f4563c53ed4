"""The rules that work on confidences and entropies alone, against plain Python."""

import math
import random

import pytest
import torch
from policies.rows import committed, peaked

from unmask import policies
from unmask.policies.scores import eligible
from unmask.types import StepView


def view_with(probabilities, masked):
    logits = torch.tensor([probabilities], dtype=torch.float64).log()
    return StepView(logits=logits, masked=torch.tensor([masked]))


def random_case(rng):
    """Distributions over four tokens for up to nine positions, some closed; many are sharp and some are equal."""
    width = rng.randint(1, 9)
    rows = []
    for _ in range(width):
        weights = [rng.random() ** rng.choice([1, 8, 30]) + 1e-9 for _ in range(4)]
        rows.append([weight / sum(weights) for weight in weights])
    if width > 2 and rng.random() < 0.3:
        rows[-1] = rows[0]
    masked = [rng.random() < 0.8 for _ in range(width)]
    masked[rng.randrange(width)] = True
    return rows, masked


def by_confidence(rows, masked):
    return sorted((i for i, open_ in enumerate(masked) if open_), key=lambda i: (-max(rows[i]), i))


def factor_oracle(rows, masked, factor, quirks):
    order = by_confidence(rows, masked)
    if not quirks:
        fits = [n for n, i in enumerate(order, 1) if (n + 1) * (1 - max(rows[i])) < factor]
        return set(order[: max(fits, default=1)])
    bounds = [-1.0] + [1 - factor / (n + 1) for n in range(2, len(order) + 1)]
    failing = [j for j, (i, bound) in enumerate(zip(order, bounds, strict=True)) if max(rows[i]) < bound]
    first = failing[0] if failing else len(order) - 1
    return set(order[: first + 1 if first in (0, len(order) - 1) else first])


def eb_oracle(rows, masked, gamma, order):
    def entropy(row):
        return -sum(p * math.log(p) for p in row)

    def gap(row):
        best, second = sorted(row, reverse=True)[:2]
        return best - second

    proxy = {"entropy": entropy, "confidence": lambda row: 1 - max(row), "margin": lambda row: -gap(row)}[order]
    ordered = sorted((i for i, open_ in enumerate(masked) if open_), key=lambda i: (proxy(rows[i]), i))
    fits = [n for n in range(1, len(ordered) + 1) if _less_largest([entropy(rows[i]) for i in ordered[:n]]) <= gamma]
    return set(ordered[: max(fits)])


def _less_largest(values):
    return sum(values) - max(values)


def leap_oracle(rows, masked, threshold, relaxed, radius):
    opened = by_confidence(rows, masked)
    anchors = [i for i in opened if max(rows[i]) >= threshold]
    chosen = {opened[0]}
    for i in opened:
        near = any(abs(i - anchor) <= radius for anchor in anchors)
        if max(rows[i]) >= (relaxed if near else threshold):
            chosen.add(i)
    return chosen


def test_factor_commits_as_plain_python_does():
    rng = random.Random(0)
    for _ in range(150):
        rows, masked = random_case(rng)
        factor, quirks = rng.uniform(0.05, 3.0), rng.random() < 0.5
        policy = policies.Factor(factor=factor, reference_quirks=quirks)
        assert set(committed(policy, view_with(rows, masked))) == factor_oracle(rows, masked, factor, quirks)


def test_eb_commits_as_plain_python_does():
    rng = random.Random(1)
    for _ in range(150):
        rows, masked = random_case(rng)
        gamma, order = rng.uniform(0.0, 2.0), rng.choice(["entropy", "confidence", "margin"])
        policy = policies.EB(gamma=gamma, order=order)
        assert set(committed(policy, view_with(rows, masked))) == eb_oracle(rows, masked, gamma, order)


def test_local_leap_commits_as_plain_python_does():
    rng = random.Random(2)
    for _ in range(150):
        rows, masked = random_case(rng)
        threshold, relaxed, radius = rng.uniform(0.7, 0.99), rng.uniform(0.3, 0.7), rng.randint(0, 4)
        policy = policies.LocalLeap(threshold=threshold, relaxed_threshold=relaxed, radius=radius)
        assert set(committed(policy, view_with(rows, masked))) == leap_oracle(rows, masked, threshold, relaxed, radius)


@pytest.mark.parametrize(
    ("confidences", "plain", "quirky"),
    [([0.99, 0.99, 0.2], [0, 1], [0, 1, 2]), ([0.99, 0.2], [0], [0, 1]), ([0.3, 0.2], [0], [0, 1]), ([0.3], [0], [0])],
)
def test_factor_commits_a_failing_last_position_only_on_request(confidences, plain, quirky):
    logits = peaked(confidences)[None]
    view = StepView(logits=logits, masked=torch.ones(logits.shape[:2], dtype=torch.bool))
    assert committed(policies.Factor(), view) == plain
    assert committed(policies.Factor(reference_quirks=True), view) == quirky


def test_factor_asks_for_more_than_its_bound_and_the_public_code_for_no_less():
    # With a factor of 1.5 the bound for two positions is one half, which is what both have.
    view = StepView(logits=torch.zeros(1, 4, 2), masked=torch.tensor([[True, True, False, True]]))
    assert policies.Factor(factor=1.5).select(view)[0].commit.tolist() == [[True, False, False, False]]
    quirky = policies.Factor(factor=1.5, reference_quirks=True).select(view)[0]
    assert quirky.commit.tolist() == [[True, True, False, True]]


def test_factor_always_commits_the_most_confident_position():
    view = StepView(
        logits=torch.tensor([[[0.0, 0.0, 0.0], [0.1, 0.0, 0.0]]]), masked=torch.ones(1, 2, dtype=torch.bool)
    )
    assert policies.Factor(factor=0.1).select(view)[0].commit.tolist() == [[False, True]]


def test_eb_without_a_budget_commits_one_and_all_certain_positions():
    uncertain = StepView(logits=peaked([0.9, 0.8])[None], masked=torch.ones(1, 2, dtype=torch.bool))
    assert committed(policies.EB(gamma=0.0), uncertain) == [0]
    certain = torch.tensor([[[0.0, -torch.inf], [0.0, 0.0], [0.0, -torch.inf]]])
    assert committed(policies.EB(gamma=0.0), StepView(logits=certain, masked=torch.ones(1, 3, dtype=torch.bool))) == [
        0,
        1,
        2,
    ]


def test_a_relaxed_commit_of_local_leap_is_no_anchor_itself():
    view = StepView(logits=peaked([0.95, 0.8, 0.8])[None], masked=torch.ones(1, 3, dtype=torch.bool))
    assert committed(policies.LocalLeap(radius=1), view) == [0, 1]


def test_a_decoded_position_is_no_anchor_of_local_leap():
    view = StepView(logits=peaked([0.95, 0.8, 0.78])[None], masked=torch.tensor([[False, True, True]]))
    assert committed(policies.LocalLeap(), view) == [1]


def test_the_token_of_a_closed_position_is_never_looked_up():
    logits = torch.tensor([[[0.0, -torch.inf], [0.0, -torch.inf], [0.0, -torch.inf]]])
    tokens, masked = torch.tensor([[0, 1, 99]]), torch.tensor([[True, True, False]])
    view = StepView(logits=logits, masked=masked, proposed=tokens)
    assert eligible(view).tolist() == [[True, False, False]]
