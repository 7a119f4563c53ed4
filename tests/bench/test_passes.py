"""What is said about a pass is what the engine really did."""

from contextlib import nullcontext

import pytest
from doubles import Watched, tiny_config

import unmask
from unmask import policies
from unmask.bench.decoding import run_passes
from unmask.bench.subject import Load, loads_of
from unmask.bench.workload import Workload
from unmask.cache.storage import StoragePool
from unmask.errors import OutOfMemory, UnmaskError
from unmask.models.random_weights import random_model
from unmask.policies import MeanField, needs_of


def load(model, *, prompt_tokens=10, batch=1, cache="none", refresh="block", **changes) -> Load:
    several = {"prompt_tokens": (prompt_tokens,), "batches": (batch,), "caches": (cache,), "refreshes": (refresh,)}
    (asked,) = loads_of(Workload(**several, **{"max_tokens": 24, "block_size": 8, **changes}), model)
    return asked


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("refresh", ["block", "blocks:2"])
@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
@pytest.mark.parametrize("policy", [None, MeanField(threshold=0.5)])
def test_the_size_of_every_call_is_the_one_the_model_saw(family, refresh, cache, policy):
    model = Watched(random_model(tiny_config(family), std=0.4))
    asked = load(model, batch=3, cache=cache, refresh=refresh, policy=policy)
    passes = list(run_passes(model, asked, StoragePool(), timed=False))
    calls = [call for found in passes for call in found.calls]
    assert [(len(call.positions), max(call.positions)) for call in calls] == model.computed
    assert {keys for call in calls for keys in call.keys} == {34}
    assert [min(found.blocks) for found in passes][-1] == 2


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
def test_the_default_policy_asks_the_same_number_of_passes_of_everybody(family, cache):
    model = random_model(tiny_config(family), std=0.4)
    asked = load(model, max_tokens=64, block_size=32, cache=cache)
    assert len(list(run_passes(model, asked, StoragePool(), timed=False))) == 16


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_the_default_policy_spends_a_quarter_of_the_block_size_on_every_block(family):
    model = random_model(tiny_config(family))
    for max_tokens, block_size, expected in ((128, 32, 32), (42, 32, 16), (24, 10, 6)):
        sizes = {"prompt_tokens": (8,), "max_tokens": max_tokens, "block_size": block_size}
        (asked,) = loads_of(Workload(**sizes, caches=("dual",)), model)
        assert len(list(run_passes(model, asked, StoragePool(), timed=False))) == expected


def test_kinds_of_passes_are_told_apart():
    model = random_model(tiny_config("llada"))
    kinds = {}
    for cache in ("none", "prefix", "dual"):
        asked = load(model, cache=cache, max_tokens=16)
        kinds[cache] = [found.kind for found in run_passes(model, asked, StoragePool(), timed=False)]
    assert kinds == {
        "none": ["whole canvas"] * 4,
        "prefix": ["refresh", "block and suffix"] * 2,
        "dual": ["refresh", "block only"] * 2,
    }


def test_the_time_of_a_pass_is_split_when_asked():
    model = random_model(tiny_config("llada"))
    for found in run_passes(model, load(model), StoragePool(), timed=True):
        parts = found.timing.model_s, found.timing.policy_s, found.timing.rest_s
        assert min(parts) > 0
    assert all(found.timing is None for found in run_passes(model, load(model), StoragePool(), timed=False))


def test_prompts_are_random_ids_without_masks_and_the_same_each_time():
    model = random_model(tiny_config("llada", mask_token_id=30))
    asked = load(model, prompt_tokens=200, max_tokens=8, batch=2, seed=3)
    first, second = (request.canvas for request in asked.requests())
    assert [len(canvas.holes) for canvas in (first, second)] == [8, 8]
    assert first.tokens != second.tokens
    assert first.tokens == asked.requests()[0].canvas.tokens
    assert 31 in first.tokens + second.tokens
    assert max(first.tokens + second.tokens) < model.spec.vocab_size


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"caches": ("dual", "duel")}, "unknown cache 'duel'; did you mean 'dual'"),
        ({"refreshes": ("block", "often")}, "refresh must be 'block' or 'blocks:N'"),
        ({"prompt_tokens": (5, 0)}, "prompt_tokens must be a whole number of at least 1, got 0"),
        ({"batches": (0,)}, "batches must be a whole number of at least 1, got 0"),
        ({"repeats": 0}, "repeats must be a whole number of at least 1, got 0"),
        ({"max_tokens": 0}, "max_tokens must be a whole number of at least 1"),
    ],
)
def test_a_workload_that_makes_no_sense_is_refused_before_a_model_is_opened(changes, complaint):
    with pytest.raises(UnmaskError, match=complaint):
        Workload(**changes)


def test_a_request_that_does_not_fit_the_model_is_refused():
    model = random_model(tiny_config("llada"))
    with pytest.raises(UnmaskError, match="200 prompt tokens and 64 to generate are more than the 256 positions"):
        loads_of(Workload(prompt_tokens=(10, 200), max_tokens=64), model)


@pytest.mark.parametrize("name", policies.names())
def test_without_a_choice_every_cache_that_the_policy_can_use_is_measured(name):
    toy = unmask.load("toy").model
    beyond = needs_of(policy := policies.get(name)) - {"uniform"}
    found = [asked.cache for asked in loads_of(Workload(policy=policy), toy)]
    assert found == (["none"] if beyond else ["none", "prefix", "dual"])
    if beyond:
        with pytest.raises(UnmaskError, match="cannot run with cache='prefix'"):
            loads_of(Workload(policy=policy, caches=("prefix",)), toy)


def test_without_a_cache_there_is_nothing_to_refresh():
    workload = Workload(caches=("none", "dual"), refreshes=("blocks:2", "drift:0.1"))
    model = random_model(tiny_config("llada", max_sequence_length=512))
    found = [(asked.cache, asked.plan.settings.refresh) for asked in loads_of(workload, model)]
    assert found == [("none", "block"), ("dual", "blocks:2"), ("dual", "drift:0.1")]
    with pytest.raises(UnmaskError, match="refresh must be"):
        Workload(caches=("none",), refreshes=("often",))


def test_a_batch_that_does_not_fit_is_refused_before_it_is_decoded(monkeypatch):
    model, toy = random_model(tiny_config("llada")), unmask.load("toy", device="cpu").model
    sizes = {"prompt_tokens": (64,), "batches": (1000,), "max_tokens": 64}
    # numbers of a position: two states, and what the feed-forward layer makes of them; with a cache keys and values
    shape, numbers = model.shape, 1000 * 128
    needed = 4 * numbers * (2 * shape.width + 4 * shape.hidden)
    stored = 4 * numbers * 2 * shape.n_layers * shape.n_kv_heads * shape.head_width
    for free, refused in ((needed, ["dual"]), (needed - 1, ["none", "dual"]), (needed + stored, [])):
        monkeypatch.setattr("unmask.models.device.free_memory", lambda device, free=free: free)
        for cache in ("none", "dual"):
            with pytest.raises(OutOfMemory, match="batch 1000") if cache in refused else nullcontext():
                loads_of(Workload(**sizes, caches=(cache,)), model)
    monkeypatch.setattr("unmask.models.device.free_memory", lambda device: 4 * numbers * toy.spec.vocab_size - 1)
    with pytest.raises(OutOfMemory, match="use a smaller batch or fewer tokens"):
        loads_of(Workload(**sizes, caches=("none",)), toy)
