"""Small things that decisions need: their kernels in Triton's interpreter against plain torch."""

import math

import pytest
import torch
from decision_cases import V, scores

from unmask.policies.base import best_scored, rank_of
from unmask.rules.selection import best_by_kernel, can_occur, kept, kept_by_kernel, possible_by_kernel, rank_by_kernel

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("b", "k"), [(1, 1), (3, 32), (2, 65), (2, 300)])
def test_the_kernel_ranks_and_counts_as_sorting_does(interpreted, b, k, dtype):
    generator = torch.Generator().manual_seed(k)
    for _ in range(2):
        score = scores(generator, b, k, dtype)
        masked = torch.rand(b, k, generator=generator) < torch.rand(b, 1, generator=generator)
        count = torch.randint(-1, k + 2, (b,), generator=generator)
        assert torch.equal(interpreted(rank_by_kernel, score, masked), rank_of(score, masked))
        assert torch.equal(interpreted(best_by_kernel, score, masked, count), best_scored(score, masked, count))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernel_keeps_what_is_to_be_kept(interpreted, dtype):
    values = torch.randn(3, 700).to(dtype)
    values[0, ::7], where = math.nan, torch.rand(3, 700) < 0.5
    where[0, ::7] = False
    for other in (0.0, -math.inf):
        found = interpreted(kept_by_kernel, values, where, other)
        assert found.dtype == dtype
        assert torch.equal(found, kept(values, where, other))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernel_finds_the_tokens_that_can_occur(interpreted, dtype):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 9, V + 2, generator=generator).to(dtype)[..., :V]
    logits[torch.rand(3, 9, V, generator=generator) < 0.3] = -math.inf
    logits[0, 0] = math.nan
    masked = torch.rand(3, 9, generator=generator) < 0.7
    masked[0, 0] = True
    tokens = torch.randint(0, V, (3, 9), generator=generator).masked_fill(~masked, -1)
    expected = can_occur(tokens, logits, masked)
    assert expected[0, 0]
    assert expected.any(-1).all()
    assert not expected.all()
    assert torch.equal(interpreted(possible_by_kernel, tokens, logits, masked), expected)
    apart = logits.mT.contiguous().mT
    assert torch.equal(interpreted(possible_by_kernel, tokens, apart, masked), expected)


def test_a_closed_position_keeps_nothing_even_of_what_is_no_number():
    values, where = torch.tensor([math.nan, 2.0]), torch.tensor([False, True])
    assert kept(values, where, 0.0).tolist() == [0.0, 2.0]
