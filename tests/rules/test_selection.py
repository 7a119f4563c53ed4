"""`rules/selection.py` in plain torch, and its kernels in Triton's interpreter against it."""

import math

import pytest
import torch

from unmask.rules.selection import best_scored, can_occur, kept, open_scores, order_of, rank_of

INF, NAN = math.inf, math.nan
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
V = 11
HARD = torch.tensor([NAN, INF, -INF, torch.finfo(torch.float32).min, torch.finfo(torch.float32).max])


def draw_scores(generator, b, k, dtype):
    """Many are equal, some are no numbers or at the ends of what there is."""
    values = torch.randn(b, k, generator=generator).mul(2).round().to(dtype)
    hard = HARD.to(dtype)[torch.randint(len(HARD), (b, k), generator=generator)]
    return torch.where(torch.rand(b, k, generator=generator) < torch.rand(b, 1, generator=generator), hard, values)


@pytest.fixture
def kernels(needs_triton):
    from unmask.rules.kernels import selection

    return selection


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("b", "k"), [(1, 1), (3, 32), (2, 65), (2, 300)])
def test_the_kernel_ranks_and_counts_as_sorting_does(interpreted, kernels, b, k, dtype):
    generator = torch.Generator().manual_seed(k)
    for _ in range(2):
        score = draw_scores(generator, b, k, dtype)
        masked = torch.rand(b, k, generator=generator) < torch.rand(b, 1, generator=generator)
        count = torch.randint(-1, k + 2, (b,), generator=generator)
        assert torch.equal(interpreted(kernels.rank_of, score, masked), rank_of(score, masked))
        assert torch.equal(interpreted(kernels.best_scored, score, masked, count), best_scored(score, masked, count))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernel_keeps_what_is_to_be_kept(interpreted, kernels, dtype):
    values = torch.randn(3, 700).to(dtype)
    values[0, ::7], where = NAN, torch.rand(3, 700) < 0.5
    where[0, ::7] = False
    for other in (0.0, -INF):
        found = interpreted(kernels.kept, values, where, other)
        assert found.dtype == dtype
        assert torch.equal(found, kept(values, where, other))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernel_finds_the_tokens_that_can_occur(interpreted, kernels, dtype):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 9, V + 2, generator=generator).to(dtype)[..., :V]
    logits[torch.rand(3, 9, V, generator=generator) < 0.3] = -INF
    logits[0, 0] = NAN
    masked = torch.rand(3, 9, generator=generator) < 0.7
    masked[0, 0] = True
    tokens = torch.randint(0, V, (3, 9), generator=generator).masked_fill(~masked, -1)
    expected = can_occur(tokens, logits, masked)
    assert expected[0, 0]
    assert expected.any(-1).all()
    assert not expected.all()
    assert torch.equal(interpreted(kernels.can_occur, tokens, logits, masked), expected)
    apart = logits.mT.contiguous().mT
    assert torch.equal(interpreted(kernels.can_occur, tokens, apart, masked), expected)


@pytest.mark.parametrize("values", [torch.zeros(2, 5, dtype=torch.float64), torch.zeros(0, 5), torch.zeros(2, 0)])
def test_the_kernels_leave_double_precision_and_empty_tensors_to_plain_torch(kernels, values):
    masked, count = torch.ones_like(values, dtype=torch.bool), torch.ones(len(values), dtype=torch.long)
    tokens, logits = torch.zeros_like(values, dtype=torch.long), values[..., None].expand(*values.shape, V)
    assert kernels.kept(values, masked, 0.0) is NotImplemented
    assert kernels.rank_of(values, masked) is NotImplemented
    assert kernels.best_scored(values, masked, count) is NotImplemented
    assert kernels.can_occur(tokens, logits, masked) is NotImplemented
    assert best_scored(values, masked, count).shape == rank_of(values, masked).shape == values.shape


def test_a_closed_position_keeps_nothing_even_of_what_is_no_number():
    values, where = torch.tensor([NAN, 2.0]), torch.tensor([False, True])
    assert kept(values, where, 0.0).tolist() == [0.0, 2.0]


def test_open_positions_come_first_and_ties_go_to_the_lowest_index():
    score = torch.tensor([[1.0, 5.0, 3.0, 3.0, NAN, -INF]])
    masked = torch.tensor([[True, False, True, True, True, True]])
    assert order_of(score, masked).tolist() == [[2, 3, 0, 4, 5, 1]]
    assert rank_of(score, masked).tolist() == [[2, 5, 0, 1, 3, 4]]
    assert open_scores(score, masked)[0, 1] == -INF
    assert open_scores(score, masked)[0, [0, 2, 3, 4, 5]].isfinite().all()


@pytest.mark.parametrize("count", [-1, 0, 1, 2, 7])
def test_as_many_open_positions_are_chosen_as_asked_for_or_all(count):
    score, masked = torch.tensor([[0.1, 0.9, 0.5, 0.5]]), torch.tensor([[True, False, True, True]])
    chosen = [[2], [2, 3], [0, 2, 3]][: max(count, 0)]
    found = best_scored(score, masked, torch.tensor([count]))
    assert found.nonzero()[:, 1].tolist() == (chosen[-1] if chosen else [])


def test_the_token_of_a_closed_position_is_never_looked_up():
    logits = torch.tensor([[[0.0, -INF], [0.0, -INF], [0.0, -INF]]])
    tokens, masked = torch.tensor([[0, 1, 99]]), torch.tensor([[True, True, False]])
    assert can_occur(tokens, logits, masked).tolist() == [[True, False, False]]
