"""Rows one behind the other, and back."""

import pytest
import torch

from unmask.models.packing import Packing, is_worth_packing, known_lengths

LENGTHS = torch.tensor([3, 1, 4])
TOKENS = torch.tensor([[10, 11, 12, 0], [20, 0, 0, 0], [30, 31, 32, 33]])


CPU = torch.device("cpu")


def test_lengths_are_known_where_they_are_on_the_host_and_some_row_is_shorter():
    lengths, sizes = known_lengths(torch.tensor([5, 2, 9]), 5, CPU)
    assert lengths.tolist() == sizes == [5, 2, 5]
    assert known_lengths(torch.tensor([5, 6]), 5, CPU) == (None, None)
    assert known_lengths(None, 5, CPU) == (None, None)
    elsewhere = torch.empty(2, dtype=torch.long, device="meta")
    assert known_lengths(elsewhere, 5, elsewhere.device) == (elsewhere, None)


@pytest.mark.parametrize(("positions", "padded"), [(0, 100), (91, 100), (129, 256), (1100, 1200), (1200, 1200)])
def test_what_is_worth_packing(positions, padded):
    assert is_worth_packing(positions, padded, kernels=False) == (positions == 129)
    assert is_worth_packing(positions, padded, kernels=True) == (positions == 1100)


def test_positions_of_the_rows_follow_each_other():
    packing = Packing.of(LENGTHS, 8)
    assert packing.packed(TOKENS)[:, 0].tolist() == [10, 11, 12, 20, 30, 31, 32, 33]
    assert packing.position.tolist() == [0, 1, 2, 0, 0, 1, 2, 3]
    assert packing.row.tolist() == [0, 0, 0, 1, 2, 2, 2, 2]
    assert packing.places(torch.tensor([[0, 2], [0, 0], [3, 1]])).tolist() == [[0, 2], [3, 3], [7, 5]]


def test_a_position_behind_the_end_of_a_row_never_belongs_to_another():
    assert Packing.of(LENGTHS, 12).places(torch.tensor([[3], [2], [9]]))[:, 0].tolist() == [2, 3, 7]


def test_what_is_unpacked_has_zeros_for_padding():
    values = 1.0 + torch.arange(8.0)[:, None, None].expand(-1, 1, 2)
    assert Packing.of(LENGTHS, 8).unpacked(values, 4)[..., 1].tolist() == [[1, 2, 3, 0], [4, 0, 0, 0], [5, 6, 7, 8]]


def test_positions_that_round_up_belong_to_no_row():
    packing = Packing.of(LENGTHS, 12)
    assert packing.position.tolist() == [0, 1, 2, 0, 0, 1, 2, 3, -1, -1, -1, -1]
    assert packing.packed(TOKENS).shape == (12, 1)
    values = torch.full((12, 1, 1), torch.nan)
    values[:8] = 1.0
    assert torch.equal(packing.unpacked(values, 4)[..., 0], (TOKENS > 0).float())


def test_rows_without_positions_change_nothing_for_the_others():
    packing = Packing.of(torch.tensor([0, 2, 0, 1, 0]), 3)
    assert packing.row.tolist() == [1, 1, 3]
    assert packing.position.tolist() == [0, 1, 0]
    assert packing.places(torch.tensor([[0], [0], [1], [0], [4]]))[:, 0].tolist() == [0, 0, 2, 2, 2]
