import math

import pytest
import torch

from unmask.rules.selection import best_if_none, best_scored, open_scores, order_of, rank_of

INF, NAN = math.inf, math.nan


def test_open_positions_come_first_and_ties_go_to_the_lowest_index():
    score = torch.tensor([[1.0, 5.0, 3.0, 3.0, NAN, -INF]])
    masked = torch.tensor([[True, False, True, True, True, True]])
    assert order_of(score, masked).tolist() == [[2, 3, 0, 4, 5, 1]]
    assert rank_of(score, masked).tolist() == [[2, 5, 0, 1, 3, 4]]
    assert open_scores(score, masked)[0, 1] == -INF
    assert open_scores(score, masked)[0, [0, 2, 3, 4, 5]].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("columns", [0, 1, 5])
def test_the_best_if_none_is_the_first_of_the_best_scored(columns, dtype):
    generator = torch.Generator().manual_seed(columns)
    values = torch.tensor([-INF, NAN, -3e38, -1.0, 0.0, 0.5, 3e38, INF])
    pick = torch.randint(len(values), (500, columns), generator=generator)
    score = values[pick].to(dtype)
    masked, commit = (torch.rand(500, columns, generator=generator) < share for share in (0.6, 0.2))
    expected = best_scored(score, masked, 1) & ~commit.any(-1, keepdim=True)
    assert torch.equal(best_if_none(commit, score, masked), expected)


@pytest.mark.parametrize("count", [-1, 0, 1, 2, 7])
def test_as_many_open_positions_are_chosen_as_asked_for_or_all(count):
    score, masked = torch.tensor([[0.1, 0.9, 0.5, 0.5]]), torch.tensor([[True, False, True, True]])
    chosen = [[2], [2, 3], [0, 2, 3]][: max(count, 0)]
    found = best_scored(score, masked, torch.tensor([count]))
    assert found.nonzero()[:, 1].tolist() == (chosen[-1] if chosen else [])
