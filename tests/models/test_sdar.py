"""SDAR and TraDo: logits of transformers' Qwen3 under a block mask, and tokens that no cache changes."""

from __future__ import annotations

import json

import pytest
import torch
from doubles import Watched, continuing, fill, requests_of
from safetensors.torch import load_file

import unmask
from unmask import policies
from unmask.cache.base import PassPlan, RowPlan
from unmask.cache.storage import KVCache, StoragePool
from unmask.engine.decode import decode
from unmask.engine.runner import Runner
from unmask.engine.scheduler import Scheduler
from unmask.errors import UnmaskError
from unmask.settings import Settings

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(make_sdar):
    return make_sdar(seed=3)


@pytest.fixture(scope="module")
def llm(folder):
    return unmask.load(str(folder), device="cpu")


@pytest.fixture(scope="module")
def qwen3(folder):
    """transformers' own Qwen3 with the folder's weights."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    values = json.loads((folder / "config.json").read_text())
    config = Qwen3Config(**{key: value for key, value in values.items() if key not in ("model_type", "architectures")})
    config._attn_implementation = "eager"
    model = Qwen3ForCausalLM(config).eval()
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model


def block_mask(lengths, length, size):
    """(b, 1, n, n), additive: a query sees its own block and those before, and no padding."""
    position = torch.arange(length)
    seen = position // size <= position[:, None] // size
    seen = seen & (position < torch.tensor(lengths)[:, None, None])
    return torch.zeros(len(lengths), 1, length, length).masked_fill(~seen[:, None], torch.finfo(torch.float32).min)


@torch.no_grad()
def oracle(qwen3, tokens, lengths, size):
    return qwen3(tokens, attention_mask=block_mask(lengths, tokens.shape[1], size)).logits


def drawn(rows, length, seed=0):
    return torch.randint(0, 270, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", [4, 6])
@pytest.mark.parametrize("lengths", [(21,), (24, 24), (23, 9, 16), (24, 5, 4)])
def test_logits_are_those_of_qwen3_under_a_block_mask_padding_included(llm, qwen3, lengths, size):
    tokens = drawn(len(lengths), max(lengths))
    expected = oracle(qwen3, tokens, lengths, size)
    with torch.inference_mode():
        found = llm.model.predict(tokens, plan=PassPlan.whole(list(lengths), CPU), block_size=size).logits
    for row, length in enumerate(lengths):
        torch.testing.assert_close(found[row, :length], expected[row, :length], atol=1e-4, rtol=0.0)


def test_forward_uses_the_checkpoints_own_blocks(llm, qwen3):
    tokens = drawn(2, 14)
    torch.testing.assert_close(llm.forward(tokens), oracle(qwen3, tokens, (14, 14), 4), atol=1e-4, rtol=0.0)


@pytest.mark.parametrize("lengths", [(21, 21), (23, 9)])
def test_passes_over_blocks_with_a_cache_give_the_logits_of_the_whole_canvas(llm, qwen3, lengths):
    """The prompt first, then block after block, each fused with the one before."""
    tokens = drawn(2, max(lengths), seed=1)
    expected = oracle(qwen3, tokens, lengths, 4)
    cache = KVCache.new(2, 32)
    with torch.inference_mode():
        for start in (0, 4, 8, 12, 16, 20):
            rows = []
            for length in lengths:
                end = min(start + 4, length) if start < length else length
                rows.append(RowPlan(span=(max(0, min(start, length - 1) // 4 * 4 - 4), end), visible=end))
            found = llm.model.predict(tokens, plan=PassPlan(tuple(rows), CPU), cache=cache).logits
            for number, row in enumerate(rows):
                first, end = row.span
                part = expected[number, first:end]
                torch.testing.assert_close(found[number, : end - first], part, atol=1e-4, rtol=0.0)


PROMPTS = [[30, 41, 59, 26, 53, 58, 97], [93, 23, 84, 62], [64, 33, 83, 27, 95, 2, 88, 41, 97, 16], [7]]


@pytest.mark.parametrize("block_size", [None, 3])
@pytest.mark.parametrize("name", policies.names())
def test_every_policy_decodes_and_no_cache_changes_its_tokens(llm, name, block_size):
    options = {"max_tokens": 9, "block_size": block_size, "temperature": 0.6 if name == "random" else 0.0}
    plain = llm.generate(PROMPTS, policy=name, cache="none", **options)
    exact = llm.generate(PROMPTS, policy=name, **options)
    cached = not policies.needs_of(policies.get(name)) & policies.WHOLE_CANVAS
    assert llm.request(PROMPTS[0], policy=name, **options).plan.settings.cache == ("exact" if cached else "none")
    assert [(out.canvas_ids, out.step_map) for out in exact] == [(out.canvas_ids, out.step_map) for out in plain]
    alone = [llm.generate(prompt, policy=name, **options) for prompt in PROMPTS[2:]]  # the longest and the shortest
    assert [out.canvas_ids for out in alone] == [out.canvas_ids for out in exact[2:]]


@pytest.mark.parametrize("name", ["threshold", "mean_field", "fixed"])
def test_blocks_that_slide_give_the_same_with_a_cache(llm, name):
    options = {"policy": name, "max_tokens": 14, "sliding": 0.5}
    plain, exact = (llm.generate(PROMPTS, cache=cache, **options) for cache in ("none", "exact"))
    assert [(out.canvas_ids, out.step_map) for out in exact] == [(out.canvas_ids, out.step_map) for out in plain]


@pytest.mark.parametrize("name", ["threshold", "mean_field", "fixed"])
def test_guesses_that_are_verified_change_no_token(llm, name):
    options = {"policy": name, "max_tokens": 14, "cache": "none"}
    plain, guessed = (llm.generate(PROMPTS, verify=verify, **options) for verify in (0, 3))
    assert [out.canvas_ids for out in guessed] == [out.canvas_ids for out in plain]
    with pytest.raises(UnmaskError, match="verify=3 does not go with cache='exact'"):
        llm.generate(PROMPTS, policy=name, max_tokens=14, verify=3)


def test_blocks_are_counted_from_the_first_position_and_the_prompts_tail_is_closed(llm):
    request = llm.request(PROMPTS[0], max_tokens=14)
    assert request.canvas.blocks == [(4, 8), (8, 12), (12, 16), (16, 20), (20, 21)]
    assert request.canvas.open_in_block() == 1
    assert request.plan.settings.cache == "exact"
    assert request.plan.block_size == 4


def test_a_block_is_stored_by_the_first_pass_over_the_next_one(llm):
    canvas = continuing(PROMPTS[0], 10, mask_id=llm.spec.mask_id, block_size=4, aligned=True)
    spans = []

    class Noting(Watched):
        capabilities = Watched.capabilities

        def predict(self, tokens, *, plan, **options):
            spans.append((plan.spans[0], plan.seen[0]))
            return super().predict(tokens, plan=plan, **options)

    fill(Noting(llm.model), [canvas], policies.get("fixed", tokens_per_pass=2), Settings(cache="exact"))
    # The prompt with its tail's block; a block with the one before it, then alone; the last block is ragged.
    assert spans == [((0, 8), 8), ((4, 12), 12), ((8, 12), 12), ((8, 16), 16), ((12, 16), 16), ((12, 17), 17)]


@pytest.mark.parametrize("early", [False, True])
def test_rows_join_and_leave_as_they_come(llm, early):
    canvases, alone = (
        [
            continuing(prompt, 9 + n, mask_id=llm.spec.mask_id, block_size=4, aligned=True)
            for n, prompt in enumerate(PROMPTS)
        ]
        for _ in range(2)
    )
    settings = Settings(cache="exact")
    requests = requests_of(llm.model, canvases, "threshold", settings)
    runner = Runner(llm.model, StoragePool())
    if early:
        from early import Early

        runner = Early(llm.model)
    list(decode(Scheduler(requests, rows=2), runner))
    for canvas, other in zip(canvases, alone, strict=True):
        fill(llm.model, [other], "threshold", settings)
        assert (canvas.tokens, canvas.step_map) == (other.tokens, other.step_map)


def test_the_published_loop_is_the_preset_of_threshold(llm):
    """More than 0.9 sure, and at least one position a pass: four passes for a block of four at most."""
    assert policies.preset("threshold", "JetLM/SDAR-8B-Chat") == policies.Threshold(threshold=0.9)
    assert policies.preset("threshold", "Gen-Verse/TraDo-4B-Instruct") == policies.Threshold(threshold=0.9)
    out = llm.generate(PROMPTS[1], policy="threshold", max_tokens=8)
    assert out.usage.forward_passes <= 8


def test_a_conversation_is_put_into_the_checkpoints_template_and_ends_with_its_stop_ids(llm):
    ids = llm.codec.chat([{"role": "user", "content": "the mask"}])
    text = llm.codec.decode(ids, special=True)
    assert text == "<|im_start|>user\nthe mask<|im_end|>\n<|im_start|>assistant\n"
    ends = {llm.codec.token_id(token) for token in ("<|im_end|>", "<|endoftext|>")}
    assert (llm.spec.end_ids, llm.spec.eos_id) == (ends, llm.codec.token_id("<|endoftext|>"))
    assert llm.chat([{"role": "user", "content": "the mask"}], max_tokens=6).usage.forward_passes


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"cache": "dual"}, "cache='dual' is for models that see both ways"),
        ({"cache": "prefix"}, "cache='prefix' is for models that see both ways"),
        ({"policy": "wino", "cache": "exact"}, "the policy wino needs shadow and cannot run with cache='exact'"),
    ],
)
def test_what_has_no_meaning_for_a_block_causal_model_is_refused_in_one_line(llm, options, complaint):
    with pytest.raises(UnmaskError, match=complaint):
        llm.generate([1, 2], max_tokens=4, **options)


def test_a_hole_that_text_follows_is_refused(llm):
    mask = llm.spec.mask_id
    with pytest.raises(UnmaskError, match="sees only what lies before: it cannot fill a hole that text follows"):
        llm.infill([1, mask, mask, 2])
    with pytest.raises(UnmaskError, match="sees only what lies before"):
        llm.request([1], suffix=[2], max_tokens=3)
    assert mask not in llm.infill([1, 2, mask, mask]).token_ids


def test_the_exact_cache_is_refused_for_models_that_see_both_ways():
    with pytest.raises(UnmaskError, match="cache='exact' is for block-causal models; toy sees both ways"):
        unmask.load("toy").generate("x", cache="exact")


def test_guidance_has_a_cache_of_its_own(llm):
    options = {"max_tokens": 10, "policy": "fixed", "cfg_scale": 1.0}
    plain, exact = (llm.generate(PROMPTS, cache=cache, **options) for cache in ("none", "exact"))
    assert [out.canvas_ids for out in plain] == [out.canvas_ids for out in exact]


def test_a_mixture_of_experts_is_still_refused_by_name(make_sdar):
    with pytest.raises(UnmaskError, match="SDAR-MoE, a mixture of experts: SGLang runs it"):
        unmask.load(str(make_sdar(model_type="sdar_moe")))
