"""Rows one behind the other, and back; passes over more of one row than of another."""

from copy import deepcopy

import pytest
import torch
from doubles import tiny_config

from unmask.cache.kv import KVCache
from unmask.models.packing import Packing, is_worth_packing, known_lengths, known_spans
from unmask.models.random_weights import random_model

SPANS = [(0, 3), (0, 1), (0, 4)]
TOKENS = torch.tensor([[10, 11, 12, 0], [20, 0, 0, 0], [30, 31, 32, 33]])


CPU = torch.device("cpu")


def test_lengths_are_known_where_they_are_on_the_host():
    assert known_lengths(torch.tensor([5, 2, 9]), 5) == [5, 2, 5]
    assert known_lengths(None, 5) is None
    assert known_lengths(torch.empty(2, dtype=torch.long, device="meta"), 5) is None


def test_spans_are_known_where_queries_are_on_the_host():
    queries = torch.tensor([[4, 5, 6, 7], [2, 3, 3, 3], [9, 9, 9, 9]])
    assert known_spans(queries) == [(4, 8), (2, 4), (9, 10)]
    assert known_spans(queries.to("meta")) is None
    assert known_spans(queries[:, :0]) is None


@pytest.mark.parametrize(("positions", "padded"), [(0, 100), (91, 100), (129, 256), (1100, 1200), (1200, 1200)])
def test_what_is_worth_packing(positions, padded):
    assert is_worth_packing(positions, padded, kernels=False) == (positions == 129)
    assert is_worth_packing(positions, padded, kernels=True) == (positions == 1100)


def test_positions_of_the_rows_follow_each_other():
    packing = Packing.of(SPANS, 8, CPU)
    assert packing.packed(TOKENS)[:, 0].tolist() == [10, 11, 12, 20, 30, 31, 32, 33]
    assert packing.position.tolist() == [0, 1, 2, 0, 0, 1, 2, 3]
    assert packing.row.tolist() == [0, 0, 0, 1, 2, 2, 2, 2]
    assert packing.places(torch.tensor([[0, 2], [0, 0], [3, 1]])).tolist() == [[0, 2], [3, 3], [7, 5]]


def test_a_position_behind_the_end_of_a_row_never_belongs_to_another():
    assert Packing.of(SPANS, 12, CPU).places(torch.tensor([[3], [2], [9]]))[:, 0].tolist() == [2, 3, 7]


def test_what_is_unpacked_has_zeros_for_padding():
    values = 1.0 + torch.arange(8.0)[:, None, None].expand(-1, 1, 2)
    assert Packing.of(SPANS, 8, CPU).unpacked(values, 4)[..., 1].tolist() == [[1, 2, 3, 0], [4, 0, 0, 0], [5, 6, 7, 8]]


def test_positions_that_round_up_belong_to_no_row():
    packing = Packing.of(SPANS, 12, CPU)
    assert packing.position.tolist() == [0, 1, 2, 0, 0, 1, 2, 3, -1, -1, -1, -1]
    assert packing.packed(TOKENS).shape == (12, 1)
    values = torch.full((12, 1, 1), torch.nan)
    values[:8] = 1.0
    assert torch.equal(packing.unpacked(values, 4)[..., 0], (TOKENS > 0).float())


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
    assert packing.columns(torch.tensor([[2, 0], [3, 1], [3, 9]])).tolist() == [[1, 0], [3, 1], [0, 0]]
    values = 1.0 + torch.arange(9.0)[:, None, None]
    assert packing.unpacked(values, 4)[..., 0].tolist() == [[1, 2, 0, 0], [3, 4, 5, 6], [7, 0, 0, 0]]


UNEVEN = [(0, 21), (6, 9), (4, 5), (2, 14)]
ENDS = [21, 9, 21, 14]


@pytest.mark.parametrize("lengths", [torch.tensor(ENDS), None], ids=["ragged", "equal"])
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_pass_over_more_of_one_row_than_of_another_is_that_over_each_row_alone(family, lengths):
    model, computed = random_model(tiny_config(family), std=0.4), []
    model.blocks[0].down.register_forward_hook(lambda _module, _given, out: computed.append(out.shape[:-1].numel()))
    generator = torch.Generator().manual_seed(0)
    before, tokens = torch.randint(0, 60, (2, 4, 21), generator=generator)
    cache = KVCache.new(6, 24).only(torch.tensor([4, 0, 5, 2]))
    model.predict(before, lengths=lengths, cache=cache)
    queries = torch.stack([torch.arange(first, first + 21).clamp(max=end - 1) for first, end in UNEVEN])
    at = torch.stack([torch.tensor([end - 2, end - 1]).clamp(min=first) for first, end in UNEVEN])
    computed.clear()
    found, told = [], []
    for wanted in (False, True):
        own = deepcopy(cache)
        told.append(model.predict(tokens, lengths=lengths, at=at, cache=own, queries=queries, states=wanted))
        found.append(own.storage.layers)
    assert computed == [sum(end - first for first, end in UNEVEN)] * 2
    assert told[0].states is None
    for row, (first, end) in enumerate(UNEVEN):
        [place] = alone = cache.places[row : row + 1]
        own, rows = deepcopy(cache).only(torch.tensor([row])), slice(row, row + 1)
        assert torch.equal(own.places, alone)
        length = None if lengths is None else lengths[rows]
        expected = model.predict(
            tokens[rows], lengths=length, at=at[rows], cache=own, queries=queries[rows, : end - first], states=True
        )
        for prediction, layers in zip(told, found, strict=True):
            torch.testing.assert_close(prediction.logits[row], expected.logits[0], rtol=1e-4, atol=1e-5)
            for kept, wanted in zip(layers, own.storage.layers, strict=True):
                for kind in (0, 1):
                    torch.testing.assert_close(kept[kind][place], wanted[kind][place], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(told[1].states[row, : end - first], expected.states[0], rtol=1e-4, atol=1e-5)


def test_queries_of_one_size_are_not_packed():
    model = random_model(tiny_config("llada"))
    cache, tokens = KVCache.new(2, 12), torch.zeros(2, 12, dtype=torch.long)
    model.predict(tokens, cache=cache)
    seen = []
    model.blocks[0].down.register_forward_hook(lambda _module, _given, out: seen.append(tuple(out.shape[:-1])))
    model.predict(tokens, cache=cache, queries=torch.tensor([[1, 2], [3, 4]]), at=torch.tensor([[2], [4]]))
    assert seen == [(2, 2)]


def test_states_of_spans_are_as_wide_as_the_queries_and_positions_outside_a_span_are_taken_for_its_last():
    model, cache = random_model(tiny_config("llada"), std=0.4), KVCache.new(3, 12)
    tokens = torch.arange(36).view(3, 12)
    model.predict(tokens, cache=cache)
    queries = torch.tensor([[4, 5, 5, 5, 5, 5], [2, 2, 2, 2, 2, 2], [7, 8, 8, 8, 8, 8]])
    outside = torch.tensor([[9, 0], [9, 0], [9, 0]])
    given = {"at": outside, "cache": cache, "queries": queries}
    without, told = (model.predict(tokens, **given, states=wanted) for wanted in (False, True))
    torch.testing.assert_close(told.logits, without.logits)
    assert told.states.shape == (3, 6, model.shape.width)
    expected = model.predict(tokens, at=torch.tensor([[5, 4], [2, 2], [8, 7]])).logits
    torch.testing.assert_close(without.logits, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_canvases_for_which_nothing_is_planned_are_packed_though_none_is_padded(family, cached, states, monkeypatch):
    model, seen = random_model(tiny_config(family), std=0.4), []
    tokens, at = torch.randint(0, 60, (3, 11), generator=torch.Generator().manual_seed(0)), torch.tensor([[2, 7]] * 3)
    caches = [KVCache.new(3, 12) if cached else None for _ in range(3)]
    options = {"at": at, "states": states}
    expected = model.predict(tokens, cache=caches[0], **options)
    monkeypatch.setattr(type(model), "_is_planned", lambda self, *shape: shape in self._expected)
    model.blocks[0].down.register_forward_hook(lambda _module, _given, out: seen.append(tuple(out.shape[:-1])))
    found = [model.predict(tokens, cache=caches[1], **options)]
    found.append(model.predict(tokens, lengths=torch.tensor([11, 11, 11]), cache=caches[2], **options))
    assert seen == [(33, 1)] * 2
    for prediction in found:
        torch.testing.assert_close(prediction.logits, expected.logits, rtol=1e-4, atol=1e-5)
        if states:
            torch.testing.assert_close(prediction.states, expected.states, rtol=1e-4, atol=1e-5)
    if cached:
        for other in caches[1:]:
            for kept, wanted in zip(other.storage.layers, caches[0].storage.layers, strict=True):
                torch.testing.assert_close(torch.stack(kept), torch.stack(wanted), rtol=1e-4, atol=1e-5)
    model.expect(3, 11)
    assert torch.equal(model.predict(tokens, **options).logits, expected.logits)
    assert seen[2:] == [(3, 11)]
    assert model._is_planned(3, 11)


def test_without_kernels_and_in_single_precision_nothing_needs_a_plan(monkeypatch):
    model = random_model(tiny_config("llada"))
    assert model._is_planned(1, 5)
    monkeypatch.setattr(type(model), "_fused", True)
    assert model._is_planned(1, 5)
    model.bfloat16()
    assert not model._is_planned(1, 5)
    model.expect(1, 5)
    assert model._is_planned(1, 5)
    assert not model._is_planned(2, 5)
