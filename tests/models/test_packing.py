"""Rows one behind the other."""

import torch

from unmask.models.attention import Packing

SPANS = [(0, 3), (0, 1), (0, 4)]
TOKENS = torch.tensor([[10, 11, 12, 0], [20, 0, 0, 0], [30, 31, 32, 33]])
CPU = torch.device("cpu")


def test_positions_of_the_rows_follow_each_other():
    packing = Packing.of(SPANS, 8, CPU)
    assert packing.packed(TOKENS)[:, 0].tolist() == [10, 11, 12, 20, 30, 31, 32, 33]
    assert packing.position.tolist() == [0, 1, 2, 0, 0, 1, 2, 3]
    assert packing.row.tolist() == [0, 0, 0, 1, 2, 2, 2, 2]
    assert packing.places(torch.tensor([[0, 2], [0, 0], [3, 1]])).tolist() == [[0, 2], [3, 3], [7, 5]]


def test_a_position_behind_the_end_of_a_row_never_belongs_to_another():
    assert Packing.of(SPANS, 12, CPU).places(torch.tensor([[3], [2], [9]]))[:, 0].tolist() == [2, 3, 7]


def test_positions_that_round_up_belong_to_no_row():
    packing = Packing.of(SPANS, 12, CPU)
    assert packing.position.tolist() == [0, 1, 2, 0, 0, 1, 2, 3, -1, -1, -1, -1]
    assert packing.packed(TOKENS).shape == (12, 1)
    assert packing.places(torch.tensor([[2], [0], [3]]))[:, 0].tolist() == [2, 3, 7]


def test_rows_without_positions_change_nothing_for_the_others():
    packing = Packing.of([(0, 0), (0, 2), (0, 0), (0, 1), (0, 0)], 3, CPU)
    assert packing.row.tolist() == [1, 1, 3]
    assert packing.position.tolist() == [0, 1, 0]
    assert packing.places(torch.tensor([[0], [0], [1], [0], [4]]))[:, 0].tolist() == [0, 0, 2, 2, 2]


def test_positions_of_a_row_may_begin_anywhere():
    packing = Packing.of([(1, 3), (0, 4), (3, 4)], 9, CPU)
    assert packing.position.tolist() == [1, 2, 0, 1, 2, 3, 3, -1, -1]
    assert packing.rows.tolist() == [[1, 0, 3], [2, 4, 1], [0, 2, 6]]
    assert packing.packed(TOKENS)[:7, 0].tolist() == [11, 12, 20, 0, 0, 0, 33]
    assert packing.places(torch.tensor([[2, 0], [3, 1], [3, 9]])).tolist() == [[1, 0], [5, 3], [6, 6]]
