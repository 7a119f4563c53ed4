"""The transformer against transformers' Llama, Qwen2 and Qwen3 layers, and against masks written out in full."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from unmask.cache.base import PassPlan, RowPlan
from unmask.cache.storage import KVCache, Storage
from unmask.errors import UnmaskError
from unmask.models.base import ModelSpec
from unmask.models.checkpoint.loading import load_model
from unmask.models.layers import TransformerShape
from unmask.models.transformer import Transformer

pytestmark = pytest.mark.usefixtures("no_grad")

MakeFolder = Callable[..., Path]
LLAMA_NAMES = {
    "model.transformer.wte": "model.embed_tokens",
    "model.transformer.ln_f": "model.norm",
    "model.transformer.ff_out": "lm_head",
    "model.transformer.blocks": "model.layers",
    "attn_norm": "input_layernorm",
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "attn_out": "self_attn.o_proj",
    "ff_norm": "post_attention_layernorm",
    "ff_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "ff_out": "mlp.down_proj",
}


def loaded(folder: Path, **options: Any) -> Transformer:
    model = load_model(folder, device="cpu", **options).model
    assert isinstance(model, Transformer)
    return model


def canvas(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 270, (rows, length), generator=torch.Generator().manual_seed(seed))


def whole(*lengths: int) -> PassPlan:
    """Of rows of these lengths."""
    return PassPlan.whole(list(lengths), torch.device("cpu"))


def part(*rows: tuple[int, int, int]) -> PassPlan:
    """Of rows (first position, end, keys seen)."""
    plans = tuple(RowPlan(span=(first, end), visible=seen) for first, end, seen in rows)
    return PassPlan(plans, torch.device("cpu"))


def as_llama(folder: Path, model: Transformer, **options: Any) -> Any:
    """transformers' Llama with the folder's weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    weights = {llama_name(name): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    return oracle(LlamaForCausalLM(LlamaConfig(**sizes(model), **options)), weights)


def as_qwen2(folder: Path, model: Transformer) -> Any:
    """transformers' Qwen2 with the folder's weights."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return oracle(Qwen2ForCausalLM(Qwen2Config(**sizes(model))), load_file(folder / "model.safetensors"))


def sizes(model: Transformer) -> dict[str, Any]:
    shape = model.shape
    return {
        "hidden_size": shape.width,
        "intermediate_size": shape.hidden,
        "num_hidden_layers": shape.n_layers,
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "vocab_size": shape.vocab_size,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.rope_theta},
        "rms_norm_eps": shape.norm_eps,
        "tie_word_embeddings": shape.tied,
    }


def llama_name(name: str) -> str:
    for ours, theirs in LLAMA_NAMES.items():
        if ours.startswith("model.") and name.startswith(f"{ours}."):
            name = name.replace(ours, theirs, 1)
    head, _, last = name.rpartition(".")
    stem, _, leaf = head.rpartition(".")
    return f"{stem}.{LLAMA_NAMES[leaf]}.{last}" if leaf in LLAMA_NAMES and stem.startswith("model.layers") else name


def oracle(model: Any, weights: dict[str, Tensor]) -> Any:
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model.eval()


def bidirectional(model: Any, tokens: Tensor) -> Tensor:
    """The oracle's logits with an additive mask that hides nothing: it lifts causality under every attention kernel."""
    length = tokens.shape[1]
    return model(tokens, attention_mask=torch.zeros(tokens.shape[0], 1, length, length), use_cache=False).logits


CLOSE = {"atol": 1e-4, "rtol": 0.0}


@pytest.fixture
def llada(llada_folder: Path) -> Transformer:
    return loaded(llada_folder)


@pytest.fixture
def dream(dream_folder: Path) -> Transformer:
    return loaded(dream_folder)


@pytest.fixture(params=["llada", "dream"])
def model(request: pytest.FixtureRequest) -> Transformer:
    return request.getfixturevalue(request.param)


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


@pytest.mark.parametrize("layers", [range(2), range(1, 2)])
def test_attention_maps_equal_those_of_eager_attention(make_llada: MakeFolder, layers: range) -> None:
    folder = make_llada(n_kv_heads=2)
    model, tokens = loaded(folder), canvas(2, 11)
    reference = as_llama(folder, model, attn_implementation="eager")
    nothing_hidden = torch.zeros(2, 1, 11, 11)
    maps = reference(tokens, attention_mask=nothing_hidden, use_cache=False, output_attentions=True).attentions
    expected = torch.stack([maps[layer].mean(1) for layer in layers]).mean(0)
    prediction = model.predict(tokens, attention_layers=layers)
    torch.testing.assert_close(prediction.attention, expected, **CLOSE)
    assert torch.equal(prediction.logits, model.predict(tokens).logits)


def test_attention_rows_sum_to_one_and_padding_has_none(model: Transformer) -> None:
    tokens = canvas(2, 10)
    attention = model.predict(tokens, plan=whole(10, 6), attention_layers=range(2)).attention
    assert attention is not None
    assert attention.dtype == torch.float32
    torch.testing.assert_close(attention.sum(-1), torch.tensor([[1.0] * 10, [1.0] * 6 + [0.0] * 4]))
    assert not attention[1, :, 6:].any()
    alone = model.predict(tokens[1:, :6], attention_layers=range(2)).attention
    torch.testing.assert_close(attention[1:, :6, :6], alone, **CLOSE)


def shadow_reference(folder: Path, model: Transformer, tokens: Tensor, shadow: list[int]) -> tuple[Tensor, Tensor]:
    """Main and shadow logits of one row from Llama layers with the mask and the positions written out."""
    length, total = tokens.shape[1], tokens.shape[1] + len(shadow)
    hidden = torch.zeros(total, total, dtype=torch.bool)
    hidden[:length, length:] = True
    for column, position in enumerate(shadow):
        hidden[length + column, position] = True
    mask = torch.zeros(1, 1, total, total).masked_fill(hidden, torch.finfo(torch.float32).min)
    longer = torch.cat([tokens, torch.full((1, len(shadow)), model.spec.mask_id)], dim=1)
    positions = torch.tensor([[*range(length), *shadow]])
    reference = as_llama(folder, model)
    logits = reference(longer, attention_mask=mask, position_ids=positions, use_cache=False).logits
    return logits[:, :length], logits[:, length:]


def test_shadows_see_everything_but_their_own_token(llada_folder: Path, llada: Transformer) -> None:
    tokens, shadow = canvas(1, 12), [5, 6, 7, 8]
    main, shadows = shadow_reference(llada_folder, llada, tokens, shadow)
    prediction = llada.predict(tokens, shadow=torch.tensor([shadow]))
    torch.testing.assert_close(prediction.logits, main, **CLOSE)
    torch.testing.assert_close(prediction.shadow_logits, shadows, **CLOSE)
    torch.testing.assert_close(prediction.logits, llada.predict(tokens).logits, **CLOSE)


def test_shadows_of_ragged_rows_equal_those_of_the_rows_alone(llada_folder: Path, llada: Transformer) -> None:
    tokens = canvas(2, 12)
    shadow = torch.tensor([[6, 7, 8, 9], [4, 5, 5, 5]])  # the second row is padded with its last position
    prediction = llada.predict(tokens, plan=whole(12, 8), at=shadow, shadow=shadow)
    assert prediction.shadow_logits is not None
    assert prediction.shadow_logits.isfinite().all()
    for row, (length, positions) in enumerate([(12, [6, 7, 8, 9]), (8, [4, 5])]):
        main, shadows = shadow_reference(llada_folder, llada, tokens[row : row + 1, :length], positions)
        torch.testing.assert_close(prediction.logits[row, : len(positions)], main[0, positions], **CLOSE)
        torch.testing.assert_close(prediction.shadow_logits[row, : len(positions)], shadows[0], **CLOSE)


def test_a_shadow_does_not_depend_on_the_token_it_stands_for(llada: Transformer) -> None:
    tokens = canvas(1, 9)
    # Other positions see token 4 in the first layer and pass it on in the second: only one layer hides it for good.
    shallow = Transformer(replace(llada.shape, n_layers=1), llada.spec).eval()
    before = shallow.predict(tokens, shadow=torch.tensor([[4]])).shadow_logits
    tokens[:, 4] = 1
    assert torch.equal(shallow.predict(tokens, shadow=torch.tensor([[4]])).shadow_logits, before)


def test_bfloat16_stays_close_to_float32(llada_folder: Path) -> None:
    tokens, plan = canvas(2, 12), whole(12, 7)
    exact = loaded(llada_folder).predict(tokens, plan=plan, attention_layers=range(2))
    rounded = loaded(llada_folder, dtype="bfloat16").predict(tokens, plan=plan, attention_layers=range(2))
    assert rounded.logits.dtype == torch.bfloat16
    assert (rounded.logits[0] - exact.logits[0]).abs().max() < 0.1 * exact.logits.abs().max()
    torch.testing.assert_close(rounded.attention, exact.attention, atol=0.05, rtol=0.0)


def test_rotary_angles_keep_float32_when_the_model_is_cast(llada_folder: Path) -> None:
    model = loaded(llada_folder)
    model.predict(canvas(1, 4))
    assert model.to(torch.bfloat16).rotary.table.dtype == torch.float32


def test_canvases_may_grow_beyond_the_positions_seen_so_far(llada: Transformer) -> None:
    short = llada.predict(canvas(1, 3)).logits
    llada.predict(canvas(1, 40))
    assert torch.equal(llada.predict(canvas(1, 3)).logits, short)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"cache": KVCache.new(1, 4), "attention_layers": range(1)},
            "attention maps need the whole canvas: they cannot be had with a cache",
        ),
        (
            {"cache": KVCache.new(1, 4), "shadow": torch.tensor([[1]])},
            "shadow predictions need the whole canvas: they cannot be had with a cache",
        ),
        ({"plan": part((1, 2, 4))}, "a pass over part of a canvas needs a cache that a whole pass has filled"),
    ],
)
def test_combinations_without_meaning_are_refused(llada: Transformer, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnmaskError) as caught:
        llada.predict(canvas(1, 4), **options)
    assert str(caught.value) == message


def test_a_shifted_family_has_no_shadows(dream: Transformer) -> None:
    with pytest.raises(UnmaskError, match=r"^dream predicts a position from the one before it"):
        dream.predict(canvas(1, 4), shadow=torch.tensor([[1]]))


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
