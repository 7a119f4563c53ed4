import pytest
from doubles import continuing

from unmask.engine.canvas import Canvas
from unmask.errors import UnmaskError

MASK = 9


def test_the_last_block_may_be_ragged():
    canvas = continuing([1, 2, 3], 10, mask_id=MASK, block_size=4)
    assert canvas.blocks == [(3, 7), (7, 11), (11, 13)]


def test_blocks_of_an_infilled_text_skip_stretches_without_a_hole():
    tokens = [1, MASK, 2, 3, 4, 5, 6, MASK, MASK, 7]
    canvas = Canvas(tokens=tokens, mask_id=MASK, block_size=2)
    assert canvas.blocks == [(1, 3), (7, 9)]
    assert canvas.holes == (1, 7, 8)


def test_a_sequence_without_a_mask_is_refused():
    with pytest.raises(UnmaskError, match="no mask"):
        Canvas(tokens=[1, 2], mask_id=MASK, block_size=2)


def test_writing_advances_to_the_next_block_only_when_the_block_is_full():
    canvas = continuing([1], 4, mask_id=MASK, block_size=2)
    assert not canvas.write({2: 5})
    assert (canvas.block, canvas.block_step) == ((1, 3), 1)
    assert canvas.write({1: 4})
    assert (canvas.block, canvas.block_step) == ((3, 5), 0)
    assert canvas.write({3: 6, 4: 7})
    assert canvas.finished
    assert canvas.filled == [4, 5, 6, 7]
    assert [canvas.step_map[p] for p in canvas.holes] == [1, 0, 2, 2]


def test_a_remasked_position_is_open_again_and_gets_a_new_step():
    canvas = continuing([], 2, mask_id=MASK, block_size=2)
    canvas.write({0: 3})
    assert not canvas.write({1: 4}, remasked=(0,))
    assert canvas.open_in_block() == 1
    canvas.write({0: 5})
    assert canvas.filled == [5, 4]
    assert canvas.step_map == {0: 2, 1: 1}


def test_the_prefix_ends_at_the_first_mask_or_at_the_last_finished_block():
    canvas = continuing([1], 4, mask_id=MASK, block_size=2)
    canvas.write({1: 3, 2: 4})
    canvas.write({3: 5})
    assert canvas.prefix(whole_blocks=False) == [3, 4, 5]
    assert canvas.prefix(whole_blocks=True) == [3, 4]


def test_ending_early_fills_the_rest():
    canvas = continuing([1], 4, mask_id=MASK, block_size=2)
    canvas.write({1: 3, 2: 0})
    canvas.end_here(fill=0)
    assert canvas.finished
    assert canvas.filled == [3, 0, 0, 0]
    assert [canvas.step_map[p] for p in canvas.holes] == [0, 0, 0, 0]
