"""Passes over part of a canvas, with the keys and values that a cache holds of the rest."""

from __future__ import annotations

import pytest
import torch
from references import CLOSE, canvas, part, whole

from unmask.cache.storage import KVCache
from unmask.models.transformer import Transformer

pytestmark = pytest.mark.usefixtures("no_grad")


def test_filling_a_cache_changes_no_logits(model: Transformer) -> None:
    tokens = canvas(2, 10)
    assert torch.equal(model.predict(tokens, cache=KVCache.new(2, 10)).logits, model.predict(tokens).logits)


def test_recomputing_every_position_equals_a_pass_without_cache(model: Transformer) -> None:
    tokens, changed = canvas(2, 10), canvas(2, 10, seed=1)
    cache = KVCache.new(2, 16)  # longer than need be
    model.predict(tokens, cache=cache)
    again = model.predict(changed, cache=cache, plan=whole(10, 10)).logits
    torch.testing.assert_close(again, model.predict(changed).logits, **CLOSE)
    nearly = model.predict(tokens, cache=cache, plan=part((0, 10, 10), (1, 10, 10))).logits  # all but one position
    assert not torch.allclose(nearly, again)


def test_a_slice_of_unchanged_tokens_equals_the_full_pass(llada: Transformer) -> None:
    tokens, cache = canvas(2, 12), KVCache.new(2, 12)
    full = llada.predict(tokens, cache=cache).logits
    at = torch.tensor([[5, 8], [2, 4]])
    found = llada.predict(tokens, cache=cache, plan=part((4, 9, 12), (2, 5, 12)), at=at).logits
    torch.testing.assert_close(found, full.gather(1, at[..., None].expand(-1, -1, full.shape[-1])), **CLOSE)


def test_a_shifted_slice_repeats_its_first_row(dream: Transformer) -> None:
    tokens, cache = canvas(1, 12), KVCache.new(1, 12)
    full = dream.predict(tokens, cache=cache).logits
    for at in (torch.tensor([[4, 5, 6, 7]]), None):
        found = dream.predict(tokens, cache=cache, plan=part((4, 8, 12)), at=at).logits
        torch.testing.assert_close(found[:, 1:], full[:, 5:8], **CLOSE)
        assert torch.equal(found[:, 0], found[:, 1])  # position 4 is predicted by position 3, which was not recomputed


def test_changed_tokens_of_a_slice_are_seen_by_the_slice_alone(llada: Transformer) -> None:
    tokens, cache = canvas(1, 12), KVCache.new(1, 12)
    llada.predict(tokens, cache=cache)
    tokens[:, 6] = 1
    dual = llada.predict(tokens, cache=cache, plan=part((4, 8, 12))).logits
    fresh = llada.predict(tokens).logits
    assert not torch.allclose(dual, fresh[:, 4:8], atol=1e-4)  # keys outside the slice are stale, by design
    torch.testing.assert_close(llada.predict(tokens, cache=cache, plan=whole(12)).logits, fresh, **CLOSE)


def test_a_cache_works_on_ragged_batches(model: Transformer) -> None:
    tokens, cache = canvas(2, 14), KVCache.new(2, 14)
    full = model.predict(tokens, plan=whole(14, 9), cache=cache).logits
    at = torch.stack([torch.arange(5, 9), torch.arange(4, 8)])
    found = model.predict(tokens, plan=part((5, 9, 14), (4, 8, 9)), cache=cache, at=at).logits
    rows = full.gather(1, at[..., None].expand(-1, -1, full.shape[-1]))
    torch.testing.assert_close(found[:, 1:], rows[:, 1:], **CLOSE)
