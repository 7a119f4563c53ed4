import pytest
import torch

from unmask import policies
from unmask.errors import UnmaskError
from unmask.policies import with_progress
from unmask.policies.schedule import dream_odds
from unmask.types import StepView


def counts(policy, masks, limit=400):
    """Commits of each pass over one block, and which passes were declared idle."""
    masked, state, committed, waited = torch.ones(1, masks, dtype=torch.bool), None, [], []
    generator = torch.Generator().manual_seed(0)
    while masked.any():
        step = torch.tensor([len(committed)])
        logits = torch.randn(1, masks, 5, generator=generator)
        decision, state = policy.select(StepView(logits=logits, masked=masked, step=step), state)
        commit = with_progress(decision, masked)
        assert commit.sum() <= policies.most_commits(policy, int(masked.sum()), len(committed))
        committed.append(int(commit.sum()))
        waited.append(decision.wait is not None and bool(decision.wait[0]))
        masked = masked & ~commit
        assert len(committed) <= limit
    assert [count == 0 for count in committed] == waited
    return committed


@pytest.mark.parametrize("name", ["fixed", "random", "entropy", "margin"])
@pytest.mark.parametrize(
    ("params", "masks", "expected"),
    [
        ({}, 3, [1, 1, 1]),
        ({"tokens_per_pass": 3}, 8, [3, 3, 2]),
        ({"passes": 4}, 10, [3, 3, 2, 2]),
        ({"passes": 8}, 3, [1, 1, 1]),
        ({"passes": 1}, 5, [5]),
    ],
)
def test_the_even_schedule_gives_the_larger_shares_first(name, params, masks, expected):
    policy = policies.get(name, **params)
    assert counts(policy, masks) == expected
    left = [masks - sum(expected[:step]) for step in range(len(expected))]
    assert [policies.most_commits(policy, open_now, step) for step, open_now in enumerate(left)] == expected


@pytest.mark.parametrize("name", ["fixed", "entropy", "margin"])
@pytest.mark.parametrize("masks", [4, 32, 256])
def test_dreams_schedule_idles_first_and_commits_two_last_with_one_token_per_pass(name, masks):
    expected = [0] + [1] * (masks - 2) + [2]
    assert counts(policies.get(name, schedule="dream"), masks) == expected
    assert counts(policies.get(name, schedule="dream", passes=masks), masks) == expected


@pytest.mark.parametrize("masks", [8, 32, 256])
def test_dreams_schedule_with_half_as_many_passes_ends_with_three(masks):
    expected = [1] + [2] * (masks // 2 - 2) + [3]
    assert counts(policies.Entropy(schedule="dream", tokens_per_pass=2), masks) == expected
    assert counts(policies.Entropy(schedule="dream", passes=masks // 2), masks) == expected


@pytest.mark.parametrize(
    ("masks", "passes"), [(1, 1), (1, 3), (2, 2), (5, 3), (31, 17), (31, 64), (100, 17), (300, 64)]
)
def test_dreams_schedule_follows_its_time_grid(masks, passes):
    expected, left = [], masks
    times = [1.0 + (1e-3 - 1.0) * r / passes for r in range(passes + 1)]
    for r in range(passes):
        if left:
            expected.append(left if r == passes - 1 else int(left * (1.0 - times[r + 1] / times[r])))
            left -= expected[-1]
    assert counts(policies.Fixed(schedule="dream", passes=passes), masks) == expected


def test_dreams_share_is_that_of_its_time_grid():
    for passes in (2, 7, 334):
        times = [1.0 + (1e-3 - 1.0) * r / passes for r in range(passes + 1)]
        for r in range(passes - 1):
            view = StepView(
                logits=torch.zeros(1, 1, 2), masked=torch.ones(1, 1, dtype=torch.bool), step=torch.tensor([r])
            )
            numerator, denominator = dream_odds(view, torch.tensor([passes]))
            assert numerator.item() / denominator.item() == pytest.approx(1.0 - times[r + 1] / times[r], rel=1e-9)


def test_a_pass_past_the_end_of_the_schedule_commits_what_is_left():
    view = StepView(logits=torch.zeros(1, 5, 3), masked=torch.ones(1, 5, dtype=torch.bool), step=torch.tensor([9]))
    for schedule in ("even", "dream"):
        assert policies.Fixed(passes=4, schedule=schedule).select(view)[0].commit.all()


def test_the_masks_at_the_start_of_a_block_are_remembered_for_each_row():
    policy = policies.Fixed(schedule="dream", tokens_per_pass=2)
    masked = torch.tensor([[True] * 8, [True] * 4 + [False] * 4])
    _, state = policy.select(StepView(logits=torch.zeros(2, 8, 3), masked=masked))
    assert state.masks.tolist() == [8, 4]
    later = StepView(logits=torch.zeros(2, 8, 3), masked=masked[:, [0, 5, 6, 7, 0, 5, 6, 7]], step=torch.tensor([2, 0]))
    _, state = policy.select(later, state)
    assert state.masks.tolist() == [8, 2]


def test_random_on_dreams_schedule_commits_each_position_by_its_own_number():
    policy = policies.Random(schedule="dream", passes=4)
    masked = torch.tensor([[True, True, True, False]])
    uniform = torch.tensor([[0.1, 0.2497, 0.24976, 0.0]])
    view = StepView(logits=torch.zeros(1, 4, 3), masked=masked, uniform=uniform)
    decision, _ = policy.select(view)
    assert decision.commit.tolist() == [[True, True, False, False]]  # 0.999 / 4 = 0.24975
    last = StepView(logits=torch.zeros(1, 4, 3), masked=masked, uniform=uniform.new_ones(1, 4), step=torch.tensor([3]))
    assert policy.select(last)[0].commit.tolist() == masked.tolist()


def test_random_on_dreams_schedule_may_idle_but_ends_in_time():
    torch.manual_seed(3)
    committed = counts(policies.Random(schedule="dream"), 12)
    assert len(committed) <= 12
    assert sum(committed) == 12
    assert 0 in committed


def test_random_draws_its_numbers_when_the_view_has_none():
    view = StepView(logits=torch.zeros(1, 64, 3), masked=torch.ones(1, 64, dtype=torch.bool))
    torch.manual_seed(0)
    first, second = (policies.Random(tokens_per_pass=8).select(view)[0].commit for _ in range(2))
    torch.manual_seed(0)
    again = policies.Random(tokens_per_pass=8).select(view)[0].commit
    assert not torch.equal(first, second)
    assert torch.equal(first, again)


def test_entropy_on_dreams_schedule_scores_with_dreams_constant():
    logits = torch.tensor([[[0.0, 0.0, -torch.inf], [3.0, 0.0, -torch.inf]]], dtype=torch.float64)
    view = StepView(logits=logits, masked=torch.ones(1, 2, dtype=torch.bool))
    p = logits.softmax(-1)
    dream, _ = policies.Entropy(schedule="dream").select(view)
    torch.testing.assert_close(dream.score, (p * (p + 1e-10).log()).sum(-1), rtol=1e-14, atol=0)
    even, _ = policies.Entropy().select(view)
    torch.testing.assert_close(even.score, torch.special.entr(p).sum(-1).neg(), rtol=1e-14, atol=0)
    assert ((dream.score - even.score).abs() > 1e-11).all()


def test_passes_and_tokens_per_pass_exclude_each_other():
    with pytest.raises(UnmaskError, match="passes=4 and tokens_per_pass=2 exclude each other"):
        policies.Fixed(passes=4, tokens_per_pass=2)
    assert policies.Fixed(passes=4, tokens_per_pass=1).passes == 4
