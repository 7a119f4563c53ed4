"""When passes are captured and what is copied for a replay; a function that is called again stands for the graph."""

from functools import partial

import pytest
import torch
from recalled import Recalled

pytest.importorskip("triton")

from unmask.models.kernels import graphs
from unmask.models.kernels.graphs import padded_rows

Graphs = partial(graphs.Graphs, record=Recalled)


def double(x, bias):
    return (2 * x + bias,)


@pytest.fixture
def recorded():
    """What is recorded from now on, and how to have graphs that record there."""
    made = []

    def record(*given):
        made.append(Recalled(*given))
        return made[-1]

    return made, partial(graphs.Graphs, record=record)


def test_a_shape_is_captured_after_some_runs_and_gives_the_same():
    found = Graphs(after=2, pads=False)
    for turn in range(5):
        x = torch.arange(6.0).reshape(3, 2) + turn
        assert torch.equal(found(double, x, torch.ones(3, 1))[0], 2 * x + 1)
        assert len(found.captured) == (turn >= 2)
    found(double, torch.zeros(2, 2), torch.ones(2, 1))
    assert len(found.captured) == 1  # another shape begins anew


def test_rows_are_padded_with_the_last_one_so_that_a_shrinking_batch_keeps_its_graph(recorded):
    assert [padded_rows(rows) for rows in range(1, 10)] == [1, 2, 4, 4, 8, 8, 8, 8, 12]
    made, recording = recorded
    found = recording(after=1, pads=True)
    for rows in (8, 8, 7, 6, 5):
        x = torch.rand(rows, 3, generator=torch.Generator().manual_seed(rows))
        out = found(double, x, torch.ones(rows, 1))[0]
        assert torch.equal(out, 2 * x + 1)
    [graph] = made
    assert torch.equal(graph.inputs[0][5:], x[-1:].expand(3, -1))


def test_steady_inputs_are_copied_when_another_tensor_comes():
    found, bias = Graphs(after=0, pads=True, steady=(1,)), torch.ones(3, 1)
    x = torch.zeros(3, 2)
    assert (found(double, x, bias)[0] == 1).all()
    bias.fill_(5.0)  # which the caller has promised not to do
    assert (found(double, x, bias)[0] == 1).all()
    assert (found(double, x, torch.full((3, 1), 7.0))[0] == 7).all()
    x.fill_(1.0)  # the others may be changed
    assert (found(double, x, torch.full((3, 1), 7.0))[0] == 9).all()


def test_what_is_prepared_is_copied_at_once_and_computed_when_it_is_called(recorded):
    made, recording = recorded
    found = recording(after=0, pads=False)
    found(double, torch.zeros(1, 1), torch.zeros(1, 1))
    x = torch.ones(1, 1)
    ready, replays = found.prepare(double, x, torch.zeros(1, 1))
    assert replays
    [graph] = made
    assert graph.outputs[0].item() == 0
    x.fill_(3.0)
    assert ready()[0].item() == 2


def test_nothing_is_run_or_captured_before_what_was_prepared_is_called():
    found, calls = Graphs(after=0, pads=False), []
    ready, replays = found.prepare(lambda x: calls.append(x) or (x,), torch.ones(1))
    assert not calls
    assert not replays
    assert ready()[0].item() == 1
    assert found.captured


def test_numbers_of_different_kinds_share_no_graph():
    found = Graphs(after=0, pads=False)
    for dtype in (torch.float32, torch.float64):
        assert found(lambda x: (2 * x,), torch.ones(1, 1, dtype=dtype))[0].dtype == dtype
    assert len(found.captured) == 2


def test_runs_of_different_kinds_share_no_graph():
    found, x = Graphs(after=0, pads=False), torch.ones(1, 1)
    for _ in range(2):
        assert found(lambda x: (2 * x,), x, kind="twice")[0].item() == 2
        assert found(lambda x: (3 * x,), x, kind="thrice")[0].item() == 3
    assert len(found.captured) == 2


def test_what_is_at_home_is_read_where_it_lies_and_copied_where_rows_must_be_added(recorded):
    made, recording = recorded
    for rows in (4, 3):
        found, x = recording(after=0, pads=True), torch.zeros(rows, 1)
        bias = torch.ones(rows, 1)
        found(double, x, bias, at_home=(0,))
        assert (made[-1].inputs[0] is x) == (rows == 4)
        assert made[-1].inputs[1] is not bias
        x.fill_(2.0)
        assert (found(double, x, bias, at_home=(0,))[0] == 5).all()
    assert len(made) == 2


def test_graphs_share_memory_while_one_of_them_is_kept(recorded):
    made, recording = recorded
    found = recording(after=0, pads=False, most=2)
    for width in (1, 2, 3, 4):
        found(double, torch.zeros(1, width), torch.ones(1, 1))
    assert len({id(graph.pool) for graph in made}) == 1
    recording(after=0, pads=False)(double, torch.zeros(1, 1), torch.ones(1, 1))
    assert made[-1].pool is not made[0].pool  # another function's


def test_the_graph_that_was_not_used_for_longest_goes_and_must_prove_itself_again():
    found = Graphs(after=1, pads=False, most=2)

    def widths():
        return [sizes[0][1] for _, sizes, *_ in found.captured]

    def use(width):
        return found(double, torch.zeros(1, width), torch.ones(1, 1))

    for width in (1, 1, 2, 2, 1, 3, 3):
        use(width)
    assert widths() == [1, 3]
    use(2)
    assert widths() == [1, 3]
    use(2)
    assert widths() == [3, 2]


def test_inputs_of_a_graph_that_was_captured_in_inference_mode_can_be_filled_outside_of_it(recorded):
    made, recording = recorded
    found = recording(after=0, pads=True)
    with torch.inference_mode():
        found(double, torch.zeros(3, 1), torch.ones(3, 1))
    assert not any(value.is_inference() for value in made[0].inputs)


def test_inputs_may_have_leading_sizes_of_their_own_where_no_rows_are_added():
    found = Graphs(after=0, pads=False)

    def total(x, weights):
        return (x.sum(0, keepdim=True) + weights.sum(),)

    for rows in (2, 3, 2, 1):
        for x in (torch.ones(4, 1), torch.full((4, 1), 2.0)):
            assert found(total, x, torch.ones(rows))[0].item() == 4 * x[0].item() + rows
    assert [sizes for _, sizes, *_ in found.captured] == [((4, 1), (3,)), ((4, 1), (2,)), ((4, 1), (1,))]
