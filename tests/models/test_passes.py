"""Passes that are padded, packed or read a cache, over more of one row than of another: all give the same logits."""

from copy import deepcopy

import pytest
import torch
from doubles import tiny_config

from unmask.cache.base import PassPlan, RowPlan
from unmask.cache.storage import KVCache, Storage
from unmask.models.random_weights import random_model
from unmask.models.transformer import Transformer

pytestmark = pytest.mark.usefixtures("no_grad")

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
LENGTH = 21
# Rows of which all is computed, some, one position, and some of a shorter row.
UNEVEN = [(0, 21), (6, 9), (4, 5), (2, 14)]
EVEN = [(0, 20), (1, 21), (1, 21), (0, 20)]
SLOTS = [4, 0, 5, 2]


def plan_of(spans, seen):
    plans = tuple(RowPlan(span=span, visible=keys) for span, keys in zip(spans, seen, strict=True))
    return PassPlan(plans, torch.device("cpu"))


def draw(seed=0):
    return torch.randint(0, 60, (4, LENGTH), generator=torch.Generator().manual_seed(seed))


def shapes_computed(model):
    """The rows and columns of the first layer, in every pass from now on."""
    seen = []
    model.blocks[0].down.register_forward_hook(lambda _module, _given, out: seen.append(tuple(out.shape[:-1])))
    return seen


def filled(model, tokens, lengths):
    cache = KVCache(Storage(rows=6, length=24), SLOTS)
    model.predict(tokens, plan=PassPlan.whole(lengths, torch.device("cpu")), cache=cache)
    return cache


def copied(cache, slots):
    """A copy of what the cache holds, for the rows in these slots."""
    return KVCache(deepcopy(cache.storage), slots)


@pytest.fixture(params=["llada", "dream"])
def model(request) -> Transformer:
    return random_model(tiny_config(request.param), std=0.4)


@pytest.mark.parametrize("seen", [[21, 9, 21, 14], [21] * 4], ids=["ragged", "equal"])
@pytest.mark.parametrize("spans", [UNEVEN, EVEN], ids=["packed", "padded"])
@pytest.mark.parametrize("states", [False, True])
def test_a_pass_over_parts_of_rows_is_that_over_each_row_alone(model, spans, seen, states):
    seen = [max(keys, end) for keys, (_, end) in zip(seen, spans, strict=True)]
    cache, tokens = filled(model, draw(), seen), draw(seed=1)
    at = torch.stack([torch.tensor([end - 2, end - 1]).clamp(min=first) for first, end in spans])
    computed, own = shapes_computed(model), copied(cache, SLOTS)
    found = model.predict(tokens, plan=plan_of(spans, seen), at=at, cache=own, states=states)
    positions = sum(end - first for first, end in spans)
    assert computed == [(positions, 1) if spans is UNEVEN else (4, 20)]
    for row, (first, end) in enumerate(spans):
        one, slot = slice(row, row + 1), SLOTS[row]
        alone = copied(cache, [slot])
        expected = model.predict(tokens[one], plan=plan_of(spans[one], seen[one]), at=at[one], cache=alone, states=True)
        torch.testing.assert_close(found.logits[row], expected.logits[0], **CLOSE)
        if states:
            torch.testing.assert_close(found.states[row, : end - first], expected.states[0], **CLOSE)
        for kept, wanted in zip(own.storage.layers, alone.storage.layers, strict=True):
            for kind in (0, 1):
                torch.testing.assert_close(kept[kind][slot], wanted[kind][slot], **CLOSE)


@pytest.mark.parametrize("spans", [UNEVEN, EVEN], ids=["packed", "padded"])
def test_parts_of_unchanged_rows_get_the_logits_of_a_whole_pass(model, spans):
    tokens = draw()
    cache, seen = filled(model, tokens, [LENGTH] * 4), [LENGTH] * 4
    expected = model.predict(tokens).logits
    found = model.predict(tokens, plan=plan_of(spans, seen), cache=cache)
    for row, (first, end) in enumerate(spans):
        own = slice(first + model.shift, end)  # a shifted head predicts the first from a position that is left out
        torch.testing.assert_close(found.logits[row, model.shift : end - first], expected[row, own], **CLOSE)


def test_a_mixed_pass_refreshes_some_rows_and_computes_parts_of_others(model):
    before, tokens = draw(), draw(seed=1)
    cache, seen = filled(model, before, [LENGTH] * 4), [LENGTH] * 4
    spans = [(0, LENGTH), (3, 7), (0, LENGTH), (3, 7)]
    at = torch.tensor([[4, 5, 6]]).expand(4, -1)
    found = model.predict(tokens, plan=plan_of(spans, seen), at=at, cache=cache).logits
    whole = model.predict(tokens, at=at).logits
    for row in (0, 2):  # as if there were no cache
        torch.testing.assert_close(found[row], whole[row], **CLOSE)
    for row in (1, 3):  # what lies around the part is out of date
        assert not torch.allclose(found[row], whole[row], atol=1e-2)


def test_a_plan_that_comes_again_is_not_changed(model):
    tokens, plan = draw(), plan_of(UNEVEN, [LENGTH] * 4)
    cache, at = filled(model, tokens, [LENGTH] * 4), torch.tensor([[4], [7], [4], [5]])
    first = model.predict(tokens, plan=plan, at=at, cache=cache).logits
    again = model.predict(tokens, plan=plan, at=at, cache=cache).logits
    assert torch.equal(first, again)
    assert plan.spans == UNEVEN
    assert at.tolist() == [[4], [7], [4], [5]]


def test_parts_of_one_size_are_not_packed(model):
    tokens = draw()
    cache, computed = filled(model, tokens, [LENGTH] * 4), shapes_computed(model)
    plan = plan_of([(1, 3), (3, 5), (18, 20), (0, 2)], [LENGTH] * 4)
    model.predict(tokens, plan=plan, at=plan.positions, cache=cache)
    assert computed == [(4, 2)]


@pytest.mark.parametrize(
    ("lengths", "shape"),
    [([20, 20, 20, 1], (61, 1)), ([20, 17, 17, 18], (72, 1)), ([20, 17, 18, 18], (4, 20)), ([20] * 4, (4, 20))],
)
def test_rows_are_packed_where_at_most_nine_tenths_of_the_padded_batch_are_computed(model, lengths, shape):
    computed = shapes_computed(model)
    model.predict(draw()[:, :20], plan=PassPlan.whole(lengths, torch.device("cpu")))
    assert computed == [shape]


def test_states_of_parts_are_as_wide_as_the_widest(model):
    tokens = draw()
    cache = filled(model, tokens, [LENGTH] * 4)
    plan = plan_of([(4, 10), (2, 3), (7, 9), (0, 1)], [LENGTH] * 4)
    found = model.predict(tokens, plan=plan, at=torch.tensor([[9], [2], [8], [0]]), cache=cache, states=True)
    assert found.states.shape == (4, 6, model.shape.width)
    assert torch.equal(found.states[1, 1:], found.states[1, :1].expand(5, -1))  # a shorter row repeats its last one
