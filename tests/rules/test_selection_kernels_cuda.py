"""`rules/kernels/selection.py` on a CUDA device, against plain torch on a CPU."""

import math

import pytest
import torch

from unmask.rules.selection import best_scored, can_occur, kept, rank_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
HARD = torch.tensor([math.nan, math.inf, -math.inf, torch.finfo(torch.float32).min, torch.finfo(torch.float32).max])


def draw_scores(generator, b, k, dtype):
    """Many are equal, some are no numbers or at the ends of what there is."""
    values = torch.randn(b, k, generator=generator).mul(2).round().to(dtype)
    hard = HARD.to(dtype)[torch.randint(len(HARD), (b, k), generator=generator)]
    return torch.where(torch.rand(b, k, generator=generator) < torch.rand(b, 1, generator=generator), hard, values)


@pytest.fixture(autouse=True)
def kernels():
    pytest.importorskip("triton")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("b", "k"), [(1, 1), (8, 32), (3, 65), (2, 1500)])
def test_positions_are_ranked_and_counted_as_on_a_cpu(b, k, dtype):
    generator = torch.Generator().manual_seed(k)
    for _ in range(5):
        score = draw_scores(generator, b, k, dtype)
        masked = torch.rand(b, k, generator=generator) < torch.rand(b, 1, generator=generator)
        count = torch.randint(-1, k + 2, (b,), generator=generator)
        there = score.cuda(), masked.cuda()
        assert torch.equal(rank_of(*there).cpu(), rank_of(score, masked))
        assert torch.equal(best_scored(*there, count.cuda()).cpu(), best_scored(score, masked, count))


@pytest.mark.parametrize("dtype", DTYPES)
def test_values_are_kept_and_tokens_found_as_on_a_cpu(dtype):
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(8, 32, 1000, generator=generator).to(dtype)[..., :900]
    logits[torch.rand(8, 32, 900, generator=generator) < 0.3] = -math.inf
    logits[0, 0] = math.nan
    masked = torch.rand(8, 32, generator=generator) < 0.7
    tokens = torch.randint(0, 900, (8, 32), generator=generator).masked_fill(~masked, -1)
    assert torch.equal(can_occur(tokens.cuda(), logits.cuda(), masked.cuda()).cpu(), can_occur(tokens, logits, masked))
    masked[0, 0] = False
    values = logits[..., 0]
    for other in (0.0, -math.inf):
        assert torch.equal(kept(values.cuda(), masked.cuda(), other).cpu(), kept(values, masked, other))
