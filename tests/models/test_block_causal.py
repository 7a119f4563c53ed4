"""Models in which a block sees itself and the blocks before it, against Llama with that mask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from references import CLOSE, as_llama, canvas, loaded, part, whole
from torch import Tensor

from unmask.cache.storage import KVCache
from unmask.models.transformer import Transformer

pytestmark = pytest.mark.usefixtures("no_grad")

MakeFolder = Callable[..., Path]


def block_causal(model: Transformer, block_size: int) -> Transformer:
    """The same weights, in a model whose blocks see themselves and what lies before them."""
    model.spec = replace(model.spec, causal=True, block_size=block_size)
    return model


def block_causal_reference(reference: Any, tokens: Tensor, block_size: int) -> Tensor:
    """The oracle's logits with the mask written out."""
    block = torch.arange(tokens.shape[1]) // block_size
    hidden = (block[:, None] < block[None, :])[None, None]
    mask = torch.zeros(hidden.shape).masked_fill(hidden, torch.finfo(torch.float32).min)
    return reference(tokens, attention_mask=mask.expand(len(tokens), -1, -1, -1), use_cache=False).logits


@pytest.mark.parametrize("block_size", [1, 4, 5, 100])
def test_block_causal_logits_equal_llama_with_the_mask_written_out(make_llada: MakeFolder, block_size: int) -> None:
    folder = make_llada(n_kv_heads=2)
    model, tokens = loaded(folder), canvas(2, 14)
    expected = block_causal_reference(as_llama(folder, model), tokens, block_size)
    model = block_causal(model, 7)
    torch.testing.assert_close(model.predict(tokens, block_size=block_size).logits, expected, **CLOSE)
    own = block_causal_reference(as_llama(folder, model), tokens, 7)
    torch.testing.assert_close(model.predict(tokens).logits, own, **CLOSE)


def test_the_size_of_blocks_means_nothing_to_a_model_that_sees_both_ways(model: Transformer) -> None:
    tokens = canvas(2, 9)
    assert torch.equal(model.predict(tokens, block_size=3).logits, model.predict(tokens).logits)


@pytest.mark.parametrize("lengths", [[14, 5, 3], [14, 13, 14]], ids=["packed", "padded"])
def test_rows_of_a_ragged_block_causal_batch_equal_the_rows_alone(llada: Transformer, lengths: list[int]) -> None:
    model, tokens = block_causal(llada, 4), canvas(3, 14)
    together = model.predict(tokens, plan=whole(*lengths)).logits
    for row, length in enumerate(lengths):
        alone = model.predict(tokens[row : row + 1, :length]).logits
        torch.testing.assert_close(together[row, :length], alone[0], **CLOSE)


def test_blocks_one_after_the_other_give_what_a_whole_block_causal_pass_gives(llada: Transformer) -> None:
    model, tokens, cache = block_causal(llada, 4), canvas(2, 14), KVCache.new(2, 16)
    expected = model.predict(tokens).logits
    for first, end in ((0, 4), (4, 8), (4, 12), (12, 14)):  # one block, the next, two at once, and a short one
        found = model.predict(tokens, cache=cache, plan=part(*[(first, end, end)] * 2)).logits
        torch.testing.assert_close(found[:, : end - first], expected[:, first:end], **CLOSE)


def test_what_lies_behind_a_block_is_not_seen_by_it(llada: Transformer) -> None:
    model, tokens, cache = block_causal(llada, 4), canvas(1, 12), KVCache.new(1, 12)
    before = model.predict(tokens, cache=cache).logits
    tokens[:, 8:] = 1
    model.predict(tokens, cache=cache, plan=part((8, 12, 12)))
    for visible in (8, 12):  # the cache holds more than the block may see
        found = model.predict(tokens, cache=cache, plan=part((4, 8, visible))).logits
        torch.testing.assert_close(found, before[:, 4:8], **CLOSE)


def test_shadows_of_a_block_causal_model_see_no_further_than_their_blocks(llada: Transformer) -> None:
    tokens, shadow = canvas(1, 12), torch.tensor([[0, 1, 2, 3]])
    both_ways = llada.predict(tokens[:, :4], shadow=shadow).shadow_logits  # in the first block nothing lies before
    model = block_causal(llada, 4)
    torch.testing.assert_close(model.predict(tokens, shadow=shadow).shadow_logits, both_ways, **CLOSE)
    later = model.predict(tokens, shadow=torch.tensor([[0, 1, 2, 3, 6]])).shadow_logits
    torch.testing.assert_close(later[:, :4], both_ways, **CLOSE)  # nor do they see the shadow of a later block
    tokens[:, 0] = 1
    changed = model.predict(tokens, shadow=torch.tensor([[0, 1, 2, 3, 6]])).shadow_logits
    assert not torch.allclose(changed[:, 4], later[:, 4], atol=1e-5)  # a shadow sees the blocks before its own
