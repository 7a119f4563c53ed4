"""The joint rule: tiny cases by hand, and random ones against plain Python."""

import math
import random
from dataclasses import replace

import pytest
import torch
from policies.rows import committed

from unmask import policies
from unmask.errors import UnmaskError
from unmask.policies.joint import distance_to_decided
from unmask.types import StepView


def view_of(positions, closed=()):
    """Positions as (probability, token); the rest of the probability goes to the next token."""
    rows = torch.zeros(1, len(positions), 6, dtype=torch.float64)
    for at, (p, token) in enumerate(positions):
        rows[0, at, token], rows[0, at, token + 1] = p, 1 - p
    masked = torch.tensor([[at not in closed for at in range(len(positions))]])
    return StepView(logits=rows.log(), masked=masked)


def alternating(*probabilities):
    return [(p, 2 * (at % 2)) for at, p in enumerate(probabilities)]


@pytest.mark.parametrize(
    ("probabilities", "risk", "expected"),
    [
        ((0.99, 0.98, 0.97), 0.05, {0, 1, 2}),  # all are certain
        ((0.991, 0.6, 0.98), 0.01, {0, 2}),  # 0.098 nats at distance 2 are the least; 0.009 is within 0.98 of the risk
        ((0.6, 0.9), 0.05, {1}),  # none is certain; 0.325 nats at distance 2 against 0.673 at distance 1
        ((0.6, 0.89), 0.05, {0}),  # 0.347 nats are too many at that distance
        ((0.98, 0.6, 0.5), 0.05, {0, 1}),  # beside the pivot 0.03 is allowed, and 0.02 is within that
        ((0.96, 0.6, 0.5), 0.05, {1}),  # 0.04 is within the risk, but not beside this pivot
        ((0.98, 0.6, 0.5, 0.98), 0.05, {0, 1, 3}),  # each is within it, however many there are
        ((0.99, 0.99, 0.6, 0.5), 0.05, {0, 1}),  # two certain before it, two uncertain: the pivot waits
        ((0.6, 0.5, 0.99, 0.99), 0.05, {0, 2, 3}),  # the certain ones lie behind it: it goes
    ],
)
def test_what_is_certain_goes_together_with_one_that_is_not(probabilities, risk, expected):
    assert set(committed(policies.Joint(risk=risk), view_of(alternating(*probabilities)))) == expected


def test_a_run_of_one_token_before_the_pivot_counts_once():
    certain = [(0.999, 0)] * 4
    assert committed(policies.Joint(), view_of([*certain, (0.6, 2), (0.5, 4)])) == [0, 1, 2, 3, 4]
    assert committed(policies.Joint(), view_of([*alternating(*[0.999] * 4), (0.6, 4), (0.5, 2)])) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("written", "step", "goes"),
    [
        ((1, 2, 1, 2), 1, False),  # four in one pass, and one is uncertain: the next pass may finish the block
        ((1, 2, 1, 2), 2, True),  # two a pass
        ((1, 2, 1, 2), 0, False),  # blocks that slide begin with what was written before
        ((1, 2, 1), 1, True),  # no more than three times as many
        ((1, 1, 1, 1, 1), 1, True),  # a run of one token counts once
    ],
)
def test_the_pivot_waits_where_earlier_passes_wrote_much_more_than_is_uncertain(written, step, goes):
    *closed, pivot, sure = range(len(written) + 2)
    view = view_of([(0.9, 0)] * len(written) + [(0.6, 0), (0.999, 2)], closed=closed)
    tokens = torch.tensor([[*written, -1, -1]])
    view = replace(view, tokens=tokens, decoded=tokens >= 0, step=torch.tensor([step]))
    assert committed(policies.Joint(), view) == ([pivot, sure] if goes else [sure])


def test_a_pivot_without_certain_tokens_never_waits():
    tokens = torch.tensor([[1, 2, 1, 2, -1]])
    view = view_of([(0.9, 0)] * 4 + [(0.6, 0)], closed=range(4))
    view = replace(view, tokens=tokens, decoded=tokens >= 0, step=torch.tensor([1]))
    assert committed(policies.Joint(), view) == [4]


def test_closed_positions_are_decided_ones():
    positions = alternating(0.1, 0.6, 0.6, 0.85)
    assert committed(policies.Joint(), view_of(positions, closed={0})) == [1]  # 0.673 x 1 against 0.423 x 3
    assert committed(policies.Joint(), view_of(positions, closed={0, 2})) == [3]  # now at distance 1


def test_distances_count_from_the_last_decided_position():
    uncertain = torch.tensor([[True, True, False, True, True, True], [False, False, True, False, True, True]])
    assert distance_to_decided(uncertain).tolist() == [[1, 2, 0, 1, 2, 3], [0, 0, 1, 0, 1, 2]]


def plain(positions, masked, risk):
    """The rule as docs/joint.md has it, for one row."""
    p = {at: positions[at][0] for at in masked}
    tokens = [token for _, token in positions]

    def within(chance):
        return {at for at in masked if 1 - p[at] <= chance}

    certain = within(risk)
    uncertain = sorted(set(masked) - certain)
    if not uncertain:
        return certain

    def cost(at):
        entropy = -sum(q * math.log(q) for q in (p[at], 1 - p[at]) if q > 0)
        return entropy * (at - max((before for before in range(-1, at) if before not in uncertain), default=-1))

    pivot = min(uncertain, key=lambda at: (cost(at), at))
    ends = [at for at in certain if at < pivot and (at + 1 == len(tokens) or tokens[at] != tokens[at + 1])]
    if 2 * len(ends) > len(uncertain):
        return certain
    return within(risk * p[pivot]) | {pivot}


def test_it_agrees_with_plain_python():
    rng, policy = random.Random(0), policies.Joint(risk=0.035)
    for _ in range(400):
        width = rng.randint(1, 9)
        levels = (0.55, 0.7, 0.9, 0.97, 0.99, 0.999)
        positions = [(rng.choice(levels) - 1e-4 * rng.random(), rng.choice((0, 2, 4))) for _ in range(width)]
        masked = sorted(rng.sample(range(width), rng.randint(1, width)))
        view = view_of(positions, closed=set(range(width)) - set(masked))
        assert set(committed(policy, view)) == plain(positions, masked, 0.035)


@pytest.mark.parametrize("risk", [-0.1, 1.0, float("nan"), "low"])
def test_a_risk_that_is_none_is_refused(risk):
    with pytest.raises(UnmaskError, match="risk must be"):
        policies.Joint(risk=risk)
