from collections import Counter

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from unmask import policies
from unmask.policies import with_progress
from unmask.rules.selection import best_scored
from unmask.types import Decision, StepView

NAN, INF = torch.nan, torch.inf


def progress(commit, score, masked, wait=None):
    decision = Decision(
        commit=torch.tensor([commit]),
        score=torch.tensor([score]),
        wait=None if wait is None else torch.tensor([wait]),
    )
    return with_progress(decision, torch.tensor([masked]))[0].tolist()


def test_commits_are_clipped_to_the_open_positions():
    assert progress([True, True, False], [0.0] * 3, [False, True, True]) == [False, True, False]


@pytest.mark.parametrize(
    ("score", "best"),
    [
        ([9.0, 0.1, 0.3, 0.2], 2),
        ([9.0, 0.3, 0.3, 0.2], 1),
        ([9.0, -INF, -INF, -INF], 1),
        ([9.0, NAN, NAN, NAN], 1),
        ([9.0, NAN, -INF, -5.0], 3),
        ([INF, -INF, INF, 0.0], 2),
        ([NAN, -3e38, -INF, NAN], 1),
    ],
)
def test_a_row_without_a_commit_gets_its_best_open_position(score, best):
    expected = [column == best for column in range(4)]
    assert progress([False] * 4, score, [False, True, True, True]) == expected
    assert progress([True, False, False, False], score, [False, True, True, True]) == expected


def test_a_full_row_and_a_waiting_row_get_nothing():
    assert progress([False, False], [1.0, 2.0], [False, False]) == [False, False]
    assert progress([False, False], [1.0, 2.0], [True, True], wait=True) == [False, False]
    assert progress([False, False], [1.0, 2.0], [True, True], wait=False) == [False, True]


def test_rows_are_completed_independently():
    decision = Decision(commit=torch.tensor([[True, False], [False, False]]), score=torch.tensor([[0.0, 1.0]] * 2))
    assert with_progress(decision, torch.ones(2, 2, dtype=torch.bool)).tolist() == [[True, False], [False, True]]


def test_the_best_scored_are_counted_per_row_and_ties_go_to_the_lowest_index():
    score = torch.tensor([[1.0, 3.0, 3.0, 2.0]] * 4)
    masked = torch.tensor([[True] * 4, [True] * 4, [True, False, True, True], [False] * 4])
    chosen = best_scored(score, masked, torch.tensor([0, 1, 9, 2]))
    assert chosen.nonzero().tolist() == [[1, 1], [2, 0], [2, 2], [2, 3]]


def operations(work):
    with profile(activities=[ProfilerActivity.CPU]) as found:
        work()
    return Counter(event.name for event in found.events())


def test_a_pass_neither_sorts_for_one_position_nor_counts_masks_in_vain():
    view = StepView(logits=torch.randn(2, 4, 8), masked=torch.ones(2, 4, dtype=torch.bool))
    decision = Decision(commit=view.masked, score=torch.rand(2, 4))
    done = operations(lambda: with_progress(decision, view.masked))
    assert done["aten::argmax"] == 1
    assert not done["aten::sort"]
    assert not done["aten::scatter"]
    plain, counting = policies.get("fixed"), policies.get("fixed", passes=2)
    sums = [operations(lambda one=one: one.select(view))["aten::sum"] for one in (plain, counting)]
    assert sums[1] == sums[0] + 1
