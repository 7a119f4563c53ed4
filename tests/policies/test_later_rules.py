"""The rules of 2025 and 2026 beyond the paper's rivals: tables of tiny cases by hand."""

import math

import pytest
import torch
from policies.rows import committed, peaked

from unmask import policies
from unmask.errors import UnmaskError
from unmask.types import StepView


def row(*columns, step=0, remaining=None):
    """A row of two tokens: an open column has the probability of token 0; a closed one, as (p,), is decoded as token 0.

    A closed column written as (p, 1) holds token 1.
    """
    p = [c[0] if isinstance(c, tuple) else c for c in columns]
    tokens = [c[1] if isinstance(c, tuple) and len(c) == 2 else 0 for c in columns]
    masked = torch.tensor([[not isinstance(c, tuple) for c in columns]])
    logits = torch.tensor([[[x, 1 - x] for x in p]], dtype=torch.float64).log()
    left = masked.sum(-1) if remaining is None else torch.tensor([remaining])
    step = torch.tensor([step])
    return StepView(logits=logits, masked=masked, tokens=torch.tensor([tokens]), step=step, remaining=left)


def opened(policy, view, state=None):
    return policy.select(view, state)[0].remask[0].nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ((0.95, 0.6, 0.91, 0.7), [0, 2]),  # one run: its best, and all above 0.9
        ((0.7, 0.8, (0.9,), 0.75, 0.7), [1, 3]),  # two runs: the best of each
        ((0.7, 0.8, (0.9,), 0.55, 0.6), [1]),  # nothing in the second run is above 0.66
        ((0.75, 0.75, 0.75), [0]),  # equal ones: the first
    ],
)
def test_hierarchical_commits_the_best_of_every_run(columns, expected):
    assert committed(policies.get("hierarchical", low_threshold=0.66), row(*columns)) == expected


def test_hierarchical_commits_just_the_best_when_all_is_below_the_low_threshold():
    view = StepView(logits=peaked([0.2, 0.3, 0.25])[None], masked=torch.ones(1, 3, dtype=torch.bool))
    assert committed(policies.get("hierarchical"), view) == [1]


def test_hierarchical_reopens_doubtful_tokens_and_commits_more_than_it_reopens():
    logits = peaked([0.2, 0.95, 0.6, 0.55, 0.3])[None]
    masked = torch.tensor([[False, False, True, True, False]])
    view = StepView(logits=logits, masked=masked, tokens=torch.zeros(1, 5, dtype=torch.long))
    plain, taking_back = policies.get("hierarchical"), policies.get("hierarchical", remask_threshold=0.4)
    assert committed(plain, view) == [2]
    assert plain.select(view)[0].remask is None
    assert committed(taking_back, view) == [2, 3]  # two are doubted: it would take three commits to open both
    assert opened(taking_back, view) == [0]  # the least likely one
    assert not plain.remasks
    assert taking_back.remasks


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ((0.95, 0.92, 0.91), [0, 1, 2]),  # all above the threshold
        ((0.7, 0.64, 0.62, 0.61), [0, 1, 2, 3]),  # the ranks need 0, 1/3, 1/2, 3/5
        ((0.7, 0.64, 0.62, 0.59), [0, 1, 2]),
        ((0.59, 0.64, 0.62, 0.7), [1, 2, 3]),  # the order is that of the confidences
    ],
)
def test_bound_asks_more_of_every_rank(columns, expected):
    assert committed(policies.get("bound"), row(*columns)) == expected


def test_bound_has_a_floor_but_always_commits_the_best():
    view = StepView(logits=peaked([0.35, 0.4, 0.2])[None], masked=torch.ones(1, 3, dtype=torch.bool))
    assert committed(policies.get("bound"), view) == [1]
    assert committed(policies.get("bound", floor=0.25), view) == [0, 1]  # 0.35 is above 1/3


@pytest.mark.parametrize(
    ("columns", "remaining", "expected"),
    [
        ((0.85, 0.8, 0.7, 0.6), 4, [0]),  # nothing is filled: 0.9 holds, the best is forced
        (((0.9,), (0.9,), 0.7, 0.6), 2, [2]),  # half is filled: 0.9 x 0.85 = 0.765; forced
        (((0.9,), (0.9,), 0.77, 0.6), 2, [2]),
        (((0.9,), (0.9,), (0.9,), 0.7), 1, [3]),  # 0.9 x (1 - 0.3 x 3/4) = 0.6975
        (((0.9,), (0.9,), 0.78, 0.77), 6, [2]),  # masks behind the block count: 0.9 x (1 - 0.3 x 2/8) = 0.8325; forced
    ],
)
def test_context_threshold_falls_as_the_text_fills(columns, remaining, expected):
    policy, view = policies.get("context_threshold"), row(*columns, remaining=remaining)
    assert committed(policy, view) == expected


def test_context_threshold_commits_all_that_reach_the_lowered_threshold():
    view = row((0.9,), (0.9,), 0.78, 0.77)
    assert committed(policies.get("context_threshold"), view) == [2, 3]  # 0.765
    assert committed(policies.get("threshold"), view) == [2]


def test_the_certainty_prior_prefers_positions_near_what_is_known():
    even = torch.ones(1, 6, dtype=torch.bool)
    view = StepView(logits=peaked([0.6] * 6)[None], masked=even)
    assert committed(policies.get("certainty_prior", sigma=2.0), view) == [0]
    # A position among known ones beats a somewhat surer one far from them.
    masked = torch.tensor([[False, True, False, True, True, True, True, True]])
    logits = peaked([0.9, 0.6, 0.9, 0.6, 0.6, 0.6, 0.62, 0.6])[None]
    near = StepView(logits=logits, masked=masked, remaining=torch.tensor([20]))
    assert committed(policies.get("certainty_prior", sigma=1.0), near) == [1]
    assert committed(policies.get("fixed"), near) == [6]


def test_the_density_of_the_certainty_prior_is_a_gaussian_share():
    masked = torch.tensor([[True, False, True]])
    view = StepView(logits=peaked([0.5, 0.5, 0.5])[None], masked=masked, remaining=torch.tensor([5]))
    policy = policies.get("certainty_prior", sigma=1.0)
    weight = {d: math.exp(-d * d / 2) for d in range(-9, 10)}
    expected = []
    for i in (0, 2):
        known = [j for j in range(i - 5, i + 6) if j < 0 or j == 1]
        expected.append(0.5 * sum(weight[i - j] for j in known) / sum(weight[i - j] for j in range(i - 5, i + 6)))
    score = policy.select(view)[0].score[0]
    assert score[[0, 2]].tolist() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("columns", "penalty", "expected"),
    [
        ((0.99, 0.98, 0.97), 0.0, [0, 1, 2]),  # entropies 0.056, 0.098, 0.135
        ((0.99, 0.98, 0.97), 0.2, [0, 1]),  # + 0, 0.2, 0.4
        ((0.6, 0.6, 0.99), 0.2, [2]),  # 0.673, 0.873, 0.456: none is below 0.4, the third is the least
        (((0.5,), 0.9, 0.99), 0.1, [1, 2]),  # distances count from the first mask: 0.325, 0.156
    ],
)
def test_position_entropy_charges_for_distance(columns, penalty, expected):
    assert committed(policies.get("position_entropy", penalty=penalty), row(*columns)) == expected


def test_p2_keeps_a_growing_share_and_opens_the_least_certain():
    policy = policies.get("p2", passes=4)
    assert committed(policy, row(0.6, 0.9, 0.7, 0.8)) == [1]
    view = row(0.6, (0.75,), 0.9, 0.8, step=1)  # two of four are kept: the token that stands has become the third
    assert committed(policy, view) == [2, 3]
    assert opened(policy, view) == [1]
    view = row(0.6, (0.85,), 0.9, (0.8, 1), step=1)  # token 1 stands where token 0 has 0.8
    assert committed(policy, view) == [2]
    assert opened(policy, view) == [3]
    view = row(0.6, (0.75,), (0.9,), 0.8, step=3)  # the last pass fills the block
    assert committed(policy, view) == [0, 3]
    assert opened(policy, view) == []


def test_credit_raises_a_token_that_stays_the_likeliest():
    policy = policies.get("credit", threshold=0.8, weight=1.0, boost=0.0, decay=0.5)
    # Boost 0: a credit of 1 each time. The odds of the likeliest token are 1 + credit times what they were.
    view = row(0.6, 0.55)
    assert policy.select(view)[0].score[0].tolist() == pytest.approx([1.2 / 1.6, 1.1 / 1.55])
    _, state = policy.select(view)
    later, state = policy.select(row(0.6, 0.45, step=1), state)
    # Column 0 has credit 1.5 on token 0. In column 1 the likeliest changed: 0.5 on token 0, 1 on token 1.
    assert later.score[0].tolist() == pytest.approx([1.5 / 1.9, 1.1 / 1.775])
    assert later.tokens[0].tolist() == [0, 1]
    third, _ = policy.select(row(0.6, 0.45, step=0), state)  # a new block: no credit
    assert third.score[0].tolist() == pytest.approx([1.2 / 1.6, 1.1 / 1.55])


def test_credit_can_keep_a_token_that_was_overtaken_by_a_little():
    policy = policies.get("credit", weight=1.0, boost=0.0, decay=1.0)
    _, state = policy.select(row(0.9))
    _, state = policy.select(row(0.9, step=1), state)
    later, _ = policy.select(row(0.45, step=2), state)  # odds 0.45 x 3 against 0.55 x 2
    assert later.tokens[0].tolist() == [0]


def test_saber_learns_its_threshold_and_takes_back_what_fell():
    policy = policies.get("saber")
    first, state = policy.select(row(0.9, 0.8, 0.7, 0.6, 0.65))
    assert first.commit[0].tolist() == [True, True, False, False, False]
    assert not first.remask.any()
    # The mean of the commits is 0.85. Columns 2 and 3 are above; of what is filled or chosen, column 1 fell most.
    second, state = policy.select(row((0.9,), (0.6,), 0.95, 0.9, 0.65, step=1), state)
    assert second.commit[0].tolist() == [False, False, True, True, False]
    assert second.remask[0].tolist() == [False, True, False, False, False]
    # Nothing is above the mean of 0.8875 now: the best two, which fill the block, so nothing is taken back.
    third, _ = policy.select(row((0.5,), 0.7, (0.5,), (0.5,), 0.65, step=2), state)
    assert third.commit[0].tolist() == [False, True, False, False, True]
    assert not third.remask.any()


def test_sabers_threshold_outlives_the_block():
    policy = policies.get("saber", least=1)
    _, state = policy.select(row(0.6, 0.55))
    second, _ = policy.select(row(0.7, 0.65, 0.5, step=0), state)  # a new block; the mean is 0.6
    assert second.commit[0].tolist() == [True, True, False]


@pytest.mark.parametrize(("doubt", "expected"), [("unlikely", [2]), ("replaced", [2]), ("unsteady", [1])])
def test_remask_reopens_by_its_kind_of_doubt(doubt, expected):
    policy = policies.get("remask", doubt=doubt, share=0.5)
    _, state = policy.select(row(0.9, 0.99, 0.06))  # column 2 commits token 1 with 0.94
    # The tokens of columns 0 to 2 had 0.9, 0.99 and 0.94, and have 0.9, 0.6 and, for two kinds of doubt, 0.05.
    third = 0.1 if doubt == "unsteady" else 0.95
    assert opened(policy, row((0.9,), (0.6,), (third, 1), 0.5, step=1), _wider(state)) == expected


def _wider(state):
    return type(state)(*(torch.nn.functional.pad(part, (0, 1)) for part in (state.times, state.before)))


def test_remask_reopens_a_share_at_most_and_no_position_for_ever():
    policy = policies.get("remask", times=2, share=0.25)
    view = row((0.1,), (0.2,), (0.3,), (0.4,), 0.5, step=1)
    seen, state = [], None
    for _ in range(9):
        decision, state = policy.select(view, state)
        seen += decision.remask[0].nonzero().flatten().tolist()
    assert seen == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("hierarchical", {"remask_threshold": 2}, "remask_threshold must be a number"),
        ("credit", {"decay": 1.5}, "decay must be a number"),
        ("certainty_prior", {"sigma": 0}, "sigma must be a number"),
        ("p2", {"passes": 0}, "passes must be a whole number"),
        ("saber", {"least": 0}, "least must be a whole number"),
        ("remask", {"doubt": "often"}, "unknown doubt"),
    ],
)
def test_wrong_parameters_are_refused(name, parameters, message):
    with pytest.raises(UnmaskError, match=message):
        policies.get(name, **parameters)
