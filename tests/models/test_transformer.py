"""The transformer against transformers' Llama, Qwen2 and Qwen3 layers, and rows of a batch against the rows alone."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch
from references import CLOSE, as_llama, as_qwen2, bidirectional, canvas, loaded, part, sizes, whole

from unmask.cache.storage import KVCache, Storage
from unmask.errors import UnmaskError
from unmask.models import transformer
from unmask.models.base import ModelSpec
from unmask.models.layers import TransformerShape, rotary_table
from unmask.models.transformer import Transformer

pytestmark = pytest.mark.usefixtures("no_grad")

MakeFolder = Callable[..., Path]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n_kv_heads": 2},
        {"n_kv_heads": None, "multi_query_attention": None},
        {"weight_tying": True},
        {"embedding_size": 300},
    ],
    ids=["plain", "grouped", "no-kv-heads-key", "tied", "padded-embedding"],
)
def test_llada_logits_equal_llama_without_a_causal_mask(make_llada: MakeFolder, changes: dict[str, Any]) -> None:
    folder = make_llada(**changes)
    model, tokens = loaded(folder), canvas(3, 17)
    expected = bidirectional(as_llama(folder, model), tokens)
    torch.testing.assert_close(model.predict(tokens).logits, expected, **CLOSE)


@pytest.mark.parametrize("tied", [False, True])
def test_dream_logits_equal_qwen2_without_a_causal_mask_shifted_by_one(make_dream: MakeFolder, tied: bool) -> None:
    folder = make_dream(tie_word_embeddings=tied)
    model, tokens = loaded(folder), canvas(2, 13)
    raw = bidirectional(as_qwen2(folder, model), tokens)
    expected = torch.cat([raw[:, :1], raw[:, :-1]], dim=1)
    torch.testing.assert_close(model.predict(tokens).logits, expected, **CLOSE)


@pytest.mark.parametrize("lengths", [[21, 9, 1, 14], [21, 20, 21, 19]], ids=["packed", "padded"])
def test_rows_of_a_ragged_batch_equal_the_rows_alone(model: Transformer, lengths: list[int]) -> None:
    computed = positions_computed(model)
    tokens, cache, at = canvas(4, 21), KVCache(Storage(rows=6, length=24), [4, 0, 5, 2]), torch.tensor([[0], [7]])
    at = at.T.expand(4, -1).clamp(max=torch.tensor(lengths)[:, None] - 1)
    together = model.predict(tokens, plan=whole(*lengths), cache=cache, states=True)
    assert computed == [45 if sum(lengths) == 45 else 84]
    chosen = model.predict(tokens, plan=whole(*lengths), at=at).logits
    assert together.logits.isfinite().all()
    for row, length in enumerate(lengths):
        filled = KVCache.new(1, length)
        alone = model.predict(tokens[row : row + 1, :length], cache=filled, states=True)
        torch.testing.assert_close(together.logits[row, :length], alone.logits[0], **CLOSE)
        torch.testing.assert_close(together.states[row, :length], alone.states[0], **CLOSE)
        torch.testing.assert_close(chosen[row], alone.logits[0, at[row]], **CLOSE)
        for found, expected in zip(cache.storage.layers, filled.storage.layers, strict=True):
            for kind in (0, 1):
                kept = found[kind][cache.slots[row], :, :length]
                torch.testing.assert_close(kept, expected[kind][0], **CLOSE)


def positions_computed(model: Transformer) -> list[int]:
    """By the first layer, in every pass from now on."""
    found: list[int] = []
    block = model.blocks[0]
    block.down.register_forward_hook(lambda module, given, result: found.append(result.shape[:-1].numel()))
    return found


def test_tokens_behind_the_end_of_a_row_are_never_seen(model: Transformer) -> None:
    tokens, lengths = canvas(2, 12), (12, 7)
    before = model.predict(tokens, plan=whole(*lengths)).logits
    tokens[1, 7:] = 5
    after = model.predict(tokens, plan=whole(*lengths)).logits
    assert torch.equal(before[1, :7], after[1, :7])


@pytest.mark.parametrize("lengths", [[5, 0], [5] * 10 + [0]], ids=["packed", "padded"])
def test_an_empty_row_gives_finite_numbers(llada: Transformer, lengths: list[int]) -> None:
    tokens = canvas(len(lengths), 5)
    logits = llada.predict(tokens, plan=whole(*lengths)).logits
    assert logits.isfinite().all()
    torch.testing.assert_close(logits[0], llada.predict(tokens[:1]).logits[0], **CLOSE)


def test_full_lengths_change_nothing(llada: Transformer) -> None:
    tokens = canvas(2, 9)
    assert torch.equal(llada.predict(tokens).logits, llada.predict(tokens, plan=whole(9, 9)).logits)


def test_chosen_positions_get_the_logits_of_the_full_pass(model: Transformer) -> None:
    tokens, at = canvas(2, 15), torch.tensor([[0, 1, 7], [14, 3, 3]])
    everywhere = model.predict(tokens).logits
    chosen = model.predict(tokens, at=at).logits
    torch.testing.assert_close(
        chosen, everywhere.gather(1, at[..., None].expand(-1, -1, everywhere.shape[-1])), **CLOSE
    )


def test_the_last_layer_computes_nothing_behind_its_attention_that_is_not_asked_for(model: Transformer) -> None:
    rows: list[list[int]] = []
    for block in model.blocks:
        block.down.register_forward_hook(lambda module, given, result: rows[-1].append(result.shape[1]))
    tokens, cache = canvas(2, 9), KVCache.new(2, 9)
    at = torch.tensor([[2, 3], [5, 6]])
    for options in ({"at": at}, {"at": at, "cache": cache}, {"at": at, "states": True}, {}):
        rows.append([])
        prediction = model.predict(tokens, **options)
        assert (prediction.states is not None) == ("states" in options)
    layers = len(model.blocks) - 1
    assert rows == [[9] * layers + [2], [9] * layers + [2], [9] * layers + [9], [9] * layers + [9]]


def test_a_shifted_head_predicts_positions_zero_and_one_from_the_same_state(dream: Transformer) -> None:
    logits = dream.predict(canvas(1, 6)).logits
    assert torch.equal(logits[:, 0], logits[:, 1])
    assert not torch.equal(logits[:, 1], logits[:, 2])


def test_bfloat16_stays_close_to_float32(llada_folder: Path) -> None:
    tokens, plan = canvas(2, 12), whole(12, 7)
    exact = loaded(llada_folder).predict(tokens, plan=plan, attention_layers=range(2))
    rounded = loaded(llada_folder, dtype="bfloat16").predict(tokens, plan=plan, attention_layers=range(2))
    assert rounded.logits.dtype == torch.bfloat16
    assert (rounded.logits[0] - exact.logits[0]).abs().max() < 0.1 * exact.logits.abs().max()
    torch.testing.assert_close(rounded.attention, exact.attention, atol=0.05, rtol=0.0)


def test_rotary_angles_keep_float32_and_live_with_the_model(llada_folder: Path) -> None:
    model = loaded(llada_folder).to(torch.bfloat16)
    model.predict(canvas(1, 4))
    (table,) = model.fast.values()
    assert table.dtype == torch.float32
    model.predict(canvas(1, 40))
    model.predict(canvas(1, 3))
    assert any(kept is table for kept in model.fast.values())  # a captured graph may read it
    kept = weakref.ref(table)
    del model, table
    gc.collect()
    assert kept() is None


def test_threads_share_the_table_that_was_made_first(llada: Transformer, monkeypatch: pytest.MonkeyPatch) -> None:
    both, made = Barrier(2), []

    def make(*sizes: Any) -> torch.Tensor:
        made.append(rotary_table(*sizes))
        both.wait()
        return made[-1]

    monkeypatch.setattr(transformer, "rotary_table", make)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(llada._table, [8, 8])
    assert len(made) == 2
    assert first is second is llada._table(8)


def test_canvases_may_grow_beyond_the_positions_seen_so_far(llada: Transformer) -> None:
    short = llada.predict(canvas(1, 3)).logits
    llada.predict(canvas(1, 40))
    assert torch.equal(llada.predict(canvas(1, 3)).logits, short)


WHOLE = "attention maps and shadow predictions need the whole canvas: they go with no cache"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache": KVCache.new(1, 4), "attention_layers": range(1)}, WHOLE),
        ({"cache": KVCache.new(1, 4), "shadow": torch.tensor([[1]])}, WHOLE),
        ({"plan": part((1, 2, 4))}, "a pass over part of a canvas needs a cache that a whole pass has filled"),
    ],
)
def test_combinations_without_meaning_are_refused(llada: Transformer, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnmaskError) as caught:
        llada.predict(canvas(1, 4), **options)
    assert str(caught.value) == message


def test_queries_and_keys_normalised_head_by_head_equal_qwen3() -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    shape = TransformerShape(
        width=32,
        hidden=48,
        n_layers=2,
        n_heads=4,
        n_kv_heads=2,
        head_width=16,
        vocab_size=280,
        rope_theta=10_000.0,
        norm_eps=1e-6,
        qk_norm=True,
    )
    torch.manual_seed(0)
    spec = ModelSpec(
        name="qwen3",
        family="qwen3",
        convention="llada",
        vocab_size=280,
        n_layers=2,
        max_length=64,
        mask_id=279,
        eos_id=278,
        end_ids=frozenset({278}),
    )
    model = Transformer(shape, spec).eval()
    reference = Qwen3ForCausalLM(Qwen3Config(**sizes(model), head_dim=16)).eval()
    for ours, theirs in zip(model.layers(), reference.model.layers, strict=True):
        attention = theirs.self_attn
        for norm in (attention.q_norm, attention.k_norm):
            norm.weight.copy_(1 + 0.3 * torch.randn(16))
        ours.attention.qkv.weight.copy_(
            torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
        )
        ours.attention.query_norm.weight.copy_(attention.q_norm.weight)
        ours.attention.key_norm.weight.copy_(attention.k_norm.weight)
        ours.attention.out.weight.copy_(attention.o_proj.weight)
        ours.gate_up.weight.copy_(torch.cat([theirs.mlp.gate_proj.weight, theirs.mlp.up_proj.weight]))
        ours.down.weight.copy_(theirs.mlp.down_proj.weight)
    model.embedding.weight.copy_(reference.model.embed_tokens.weight)
    model.head.weight.copy_(reference.lm_head.weight)
    tokens = canvas(2, 11)
    torch.testing.assert_close(model.predict(tokens).logits, bidirectional(reference, tokens), **CLOSE)
