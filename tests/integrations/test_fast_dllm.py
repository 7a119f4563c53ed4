import pytest
import torch
from doubles import continuing, fill, tiny_config

from unmask import policies
from unmask.errors import UnmaskError
from unmask.integrations.fast_dllm import configure, get_transfer_index
from unmask.models.random_weights import random_model
from unmask.settings import Settings


@pytest.fixture(autouse=True)
def default_policy():
    yield
    configure("mean_field")


@pytest.fixture(scope="module")
def model():
    return random_model(tiny_config("llada"), std=0.4)


def their_loop(model, prompt, new, block, *, per_step=None, threshold=None):
    """A block loop written as those scripts are, around the one function that is replaced."""
    x = torch.full((1, len(prompt) + new), model.spec.mask_id)
    x[0, : len(prompt)] = torch.tensor(prompt)
    passes = 0
    for start in range(len(prompt), len(prompt) + new, block):
        while (x[:, start : start + block] == model.spec.mask_id).any():
            mask_index = x == model.spec.mask_id
            mask_index[:, start + block :] = False
            x0, transfer = get_transfer_index(
                model.predict(x).logits, 0.0, "low_confidence", mask_index, x, per_step, threshold
            )
            x[transfer] = x0[transfer]
            passes += 1
    return x[0].tolist(), passes


@pytest.mark.parametrize(
    "name", ["mean_field", "threshold", "eb", "factor", "local_leap", "fixed", "margin", "entropy"]
)
def test_their_loop_with_our_function_decodes_what_our_loop_decodes(model, name):
    policy = policies.get(name)
    configure(policy)
    tokens, passes = their_loop(model, [3, 1, 4], 20, 8)
    canvas = continuing([3, 1, 4], 20, mask_id=model.spec.mask_id, block_size=8)
    fill(model, [canvas], policy, Settings(cache="none"))
    assert (tokens, passes) == (canvas.tokens, canvas.passes)


def test_a_threshold_replaces_the_policys_own(model):
    configure(policies.get("threshold", threshold=0.999))
    slow = their_loop(model, [3], 16, 16)[1]
    fast = their_loop(model, [3], 16, 16, threshold=0.01)[1]
    assert fast < slow
    configure("eb")
    with pytest.raises(UnmaskError, match="eb has no threshold"):
        their_loop(model, [3], 4, 4, threshold=0.5)


def test_the_callers_schedule_decides_how_many_fixed_commits(model):
    configure("fixed")
    assert their_loop(model, [3], 16, 16, per_step=torch.tensor([4]))[1] == 4
    configure("mean_field")
    assert their_loop(model, [3], 16, 16, per_step=torch.tensor([1]))[1] < 16


def case(rows):
    torch.manual_seed(0)
    logits = torch.randn(rows, 9, 12) * 3
    x = torch.randint(0, 10, (rows, 9))
    mask_index = torch.rand(rows, 9) < 0.5
    mask_index[:, 4] = True
    x[mask_index] = 11
    return logits, mask_index, x


def test_rows_are_independent_and_the_rest_is_left_alone():
    logits, mask_index, x = case(4)
    mask_index[3] = False
    x[3] = 5
    x_before = x.clone()
    x0, transfer = get_transfer_index(logits, 0.0, "low_confidence", mask_index, x, None)
    assert torch.equal(x, x_before)
    assert torch.equal(x0[~mask_index], x[~mask_index])
    assert not (transfer & ~mask_index).any()
    assert transfer.any(-1).tolist() == [True, True, True, False]
    assert not (x0 == 11).any()
    for row in range(4):
        alone = get_transfer_index(
            logits[row : row + 1], 0.0, "low_confidence", mask_index[row : row + 1], x[row : row + 1], None
        )
        assert torch.equal(alone[0][0], x0[row])
        assert torch.equal(alone[1][0], transfer[row])


def test_only_masked_rows_are_read():
    logits, mask_index, x = case(2)
    x0, transfer = get_transfer_index(logits, 0.0, "low_confidence", mask_index, x, None)
    logits[~mask_index] = torch.nan
    again = get_transfer_index(logits, 0.0, "low_confidence", mask_index, x, None)
    assert torch.equal(again[0], x0)
    assert torch.equal(again[1], transfer)


def test_nothing_masked_gives_nothing():
    logits, mask_index, x = case(1)
    x0, transfer = get_transfer_index(logits, 0.0, "low_confidence", torch.zeros_like(mask_index), x, None)
    assert torch.equal(x0, x)
    assert not transfer.any()


def test_random_remasking_needs_the_random_policy():
    logits, mask_index, x = case(1)
    with pytest.raises(UnmaskError, match="needs the policy random"):
        get_transfer_index(logits, 0.0, "random", mask_index, x, torch.tensor([1]))
    configure("random")
    _, transfer = get_transfer_index(logits, 0.0, "random", mask_index, x, torch.tensor([2]))
    assert transfer.sum() == 2
    with pytest.raises(UnmaskError, match="remasking must be"):
        get_transfer_index(logits, 0.0, "entropy", mask_index, x, None)


def test_temperature_draws_from_the_global_generator():
    logits, mask_index, x = case(1)
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(get_transfer_index(logits / 3, 1.0, "low_confidence", mask_index, x, None)[0].tolist())
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_policy_that_keeps_state_is_refused_because_the_loop_would_drop_it(users_policies):
    logits, mask_index, x = case(2)
    configure("steady")
    with pytest.raises(UnmaskError, match="the policy steady keeps state"):
        get_transfer_index(logits, 0.0, "low_confidence", mask_index, x, None)


@pytest.mark.parametrize("name", ["dawn", "dapd", "wino", "klass"])
def test_policies_that_need_more_than_logits_are_refused_and_the_one_before_stays(name):
    logits, mask_index, x = case(3)
    configure(policies.get("threshold", threshold=0.3))
    before = get_transfer_index(logits, 0.0, "low_confidence", mask_index, x, None)[1]
    with pytest.raises(UnmaskError, match="which the loop of Fast-dLLM does not give"):
        configure(name)
    with pytest.raises(UnmaskError, match="needs to know the pass"):
        configure(policies.get("entropy", schedule="dream"))
    assert torch.equal(get_transfer_index(logits, 0.0, "low_confidence", mask_index, x, None)[1], before)
    configure("mean_field")
    assert not torch.equal(get_transfer_index(logits, 0.0, "low_confidence", mask_index, x, None)[1], before)
