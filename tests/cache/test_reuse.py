"""Caches: which positions are computed when, and where cached and uncached decoding must agree."""

import contextlib
import copy
import pickle

import pytest
import torch
from doubles import Scripted, Watched, continuing, events_of, fill, requests_of, tiny_config

from unmask import policies
from unmask.cache.base import PassPlan, RowPlan
from unmask.cache.storage import KVCache, Lease, Storage, StoragePool
from unmask.engine.runner import Runner
from unmask.errors import OutOfMemory, WorkFailed
from unmask.models.random_weights import random_model
from unmask.models.toy import load_toy
from unmask.settings import Settings
from unmask.types import Decision


def part(rows, start, end, length):
    """A plan that computes the same span of every row."""
    return PassPlan((RowPlan(span=(start, end), visible=length),) * rows, torch.device("cpu"))


def run(model, settings, *, prompts=((3, 1, 4),), max_tokens=12, block_size=4, policy="fixed"):
    canvases = [
        continuing(list(prompt), max_tokens, mask_id=model.spec.mask_id, block_size=block_size) for prompt in prompts
    ]
    return canvases, fill(model, canvases, policy, settings)


@pytest.fixture(params=["llada", "dream"])
def model(request):
    return Watched(random_model(tiny_config(request.param), std=0.4))


def test_prefix_recomputes_from_the_block_on_and_dual_the_block_alone(model):
    run(model, Settings(cache="prefix"))
    assert [n for _, n in model.computed] == [15, 12, 12, 12, 15, 8, 8, 8, 15, 4, 4, 4]
    model.computed.clear()
    run(model, Settings(cache="dual"))
    assert [n for _, n in model.computed] == [15, 4, 4, 4] * 3


def test_a_block_that_its_refresh_completes_costs_one_pass():
    model = Watched(random_model(tiny_config("llada"), std=0.4))
    settings = Settings(cache="dual")
    canvas = continuing([3], 8, mask_id=model.spec.mask_id, block_size=4)
    fill(model, [canvas], policies.get("fixed", tokens_per_pass=4), settings)
    assert [n for _, n in model.computed] == [9, 9]


def test_fewer_refreshes_compute_fewer_whole_canvases(model):
    run(model, Settings(cache="dual", refresh="blocks:2"))
    # The first pass of the second block also computes the first one again, whose last commit the cache has not seen.
    slices = [8, 5, 5, 5] if model.spec.shifted else [8, 4, 4, 4]
    assert [n for _, n in model.computed] == [15, 4, 4, 4, *slices, 15, 4, 4, 4]


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_a_model_that_looks_at_nothing_cached_gives_the_same_tokens_with_any_cache(cache):
    toy = load_toy(device=torch.device("cpu"), dtype=torch.float32).model
    plain, _ = run(toy, Settings(), max_tokens=40, policy="mean_field")
    cached, _ = run(toy, Settings(cache=cache), max_tokens=40, policy="mean_field")
    assert plain[0].tokens == cached[0].tokens


@pytest.mark.parametrize("policy", ["fixed", "mean_field", "threshold"])
def test_with_one_block_the_prefix_cache_changes_nothing(policy):
    model = random_model(tiny_config("llada"), std=0.4)
    plain, _ = run(model, Settings(), block_size=12, policy=policy)
    cached, _ = run(model, Settings(cache="prefix"), block_size=12, policy=policy)
    # Keys and values of the prompt are those of the first pass, in which the answer was all masks.
    assert plain[0].tokens[:3] == cached[0].tokens[:3]
    fresh = model.predict(torch.tensor([plain[0].tokens])).logits
    cache = KVCache.new(1, 15)
    model.predict(torch.tensor([plain[0].tokens]), cache=cache)
    again = model.predict(torch.tensor([plain[0].tokens]), cache=cache, plan=part(1, 3, 15, 15)).logits
    assert torch.allclose(fresh[:, 3:], again, atol=1e-5)


def test_without_a_prompt_and_with_one_block_prefix_decoding_equals_plain_decoding():
    model = random_model(tiny_config("llada"), std=0.4)
    plain, _ = run(model, Settings(), prompts=[()], block_size=12, policy="mean_field")
    cached, _ = run(model, Settings(cache="prefix"), prompts=[()], block_size=12, policy="mean_field")
    assert plain[0].tokens == cached[0].tokens
    assert plain[0].step_map == cached[0].step_map


def test_a_shifted_head_commits_a_blocks_first_position_alone_in_the_refresh():
    model = random_model(tiny_config("dream"), std=0.4)
    _, events = run(model, Settings(cache="dual"), policy="threshold")
    first_of_block = {event.block: event for event in reversed(events)}
    assert len(first_of_block) == 3
    for (start, _), event in first_of_block.items():
        assert [commit.position for commit in event.committed] == [start]


def test_the_first_position_of_a_block_may_be_end_of_text_even_when_that_comes_last():
    table = torch.zeros(8, 8)
    table[:, 6] = 5.0
    model = Scripted(table, shifted=True, convention="dream")
    [canvas], _ = run(model, Settings(cache="dual", confidence_eos_eot_inf=True), max_tokens=4, prompts=[(0,)])
    assert canvas.filled[0] == 6


def test_a_shifted_head_without_refresh_still_predicts_the_first_position_of_a_block():
    model = random_model(tiny_config("dream"), std=0.4)
    settings = Settings(cache="prefix", refresh="blocks:3")
    [canvas], events = run(model, settings, policy="fixed")
    second = next(event for event in events if event.block == (7, 11))
    assert canvas.finished
    assert len(second.committed) == 1


@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_rows_in_different_blocks_share_a_batch(family, cache):
    model = random_model(tiny_config(family), std=1.0)
    prompts = [(3, 1, 4), (1,), (5, 9, 2, 6, 5, 3)]
    settings = Settings(cache=cache, temperature=0.5)
    together, _ = run(model, settings, prompts=prompts, policy="threshold", max_tokens=14)
    for prompt, canvas in zip(prompts, together, strict=True):
        [alone], _ = run(model, settings, prompts=[prompt], policy="threshold", max_tokens=14)
        assert canvas.tokens == alone.tokens
        assert canvas.passes == alone.passes


def test_guidance_keeps_a_cache_of_its_own():
    model = random_model(tiny_config("llada"), std=0.4)
    plain, _ = run(model, Settings(cfg_scale=1.0), prompts=[()], block_size=12)
    cached, _ = run(model, Settings(cfg_scale=1.0, cache="prefix"), prompts=[()], block_size=12)
    assert plain[0].tokens == cached[0].tokens


def test_rows_keep_their_slots_when_others_leave():
    model = random_model(tiny_config("llada"), std=0.4)
    tokens = torch.randint(0, 59, (3, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        cache = KVCache.new(3, 16)
        model.predict(tokens, cache=cache)
        whole = model.predict(tokens, cache=cache, plan=part(3, 4, 8, 12)).logits
        rows = torch.tensor([2, 0])
        some = model.predict(tokens[rows], cache=KVCache(cache.storage, [2, 0]), plan=part(2, 4, 8, 12)).logits
        last = model.predict(tokens[:1], cache=KVCache(cache.storage, [0]), plan=part(1, 4, 8, 12)).logits
    torch.testing.assert_close(some, whole[rows], atol=1e-5, rtol=0.0)
    torch.testing.assert_close(last, whole[:1], atol=1e-5, rtol=0.0)


def test_recomputing_some_rows_leaves_the_others_alone():
    model = random_model(tiny_config("llada"), std=0.4)
    tokens = torch.randint(0, 59, (3, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        cache = KVCache.new(3, 12)
        model.predict(tokens, cache=cache)
        before = [keys.clone() for keys, _ in cache.storage.layers]
        model.predict(tokens[1:2] + 1, cache=KVCache(cache.storage, [1]), plan=part(1, 3, 6, 12))
    for (keys, _), old in zip(cache.storage.layers, before, strict=True):
        changed = (keys != old).any(-1).any(1)
        assert changed.tolist() == [[False] * 12, [3 <= position < 6 for position in range(12)], [False] * 12]


class Reopening(policies.Policy):
    """Commits one position a pass, and once tries to open the first position of the block again."""

    remasks = True

    def select(self, view, state=None):
        score = torch.arange(view.masked.shape[1], 0.0, -1).expand(view.masked.shape)
        first = torch.arange(view.masked.shape[1]) == 0
        remask = view.decoded & first & (view.step == 2)[:, None]
        commit = view.masked & (score == score.where(view.masked, 0.0).amax(-1, keepdim=True))
        return Decision(commit=commit, score=score, remask=remask), None


@pytest.mark.parametrize(("refresh", "reopened"), [("block", 0), ("drift:10", 1)])
def test_a_shifted_heads_first_position_is_not_opened_again_where_no_pass_could_predict_it(refresh, reopened):
    model = random_model(tiny_config("dream"), std=0.4)
    canvas = continuing([3, 1], 5, mask_id=model.spec.mask_id, block_size=5)
    events = fill(model, [canvas], Reopening(), Settings(cache="dual", refresh=refresh))
    assert sum(len(event.remasked) for event in events) == reopened
    assert canvas.finished


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_where_a_mask_may_be_proposed_the_first_position_is_still_predicted_by_the_one_before(cache):
    """A shifted head: a refresh then may leave the block's first position open, for a later pass to fill."""
    found = 0
    for seed in range(20):
        model = random_model(tiny_config("dream"), std=0.4, seed=seed)
        with torch.no_grad():
            (model.embedding if model.head is None else model.head).weight[model.spec.mask_id] *= 1.8
        prompt = torch.randint(0, 50, (12,), generator=torch.Generator().manual_seed(seed)).tolist()
        canvas = continuing(prompt, 8, mask_id=model.spec.mask_id, block_size=8)
        settings, before = Settings(cache=cache, suppress_mask_token=False), list(canvas.tokens)
        (request,) = requests_of(model, [canvas], policies.get("threshold", threshold=0.01), settings)
        events = events_of([request], Runner(model, StoragePool()))
        with contextlib.suppress(WorkFailed):  # only the mask token is proposed
            for event in events:
                first = [commit.token_id for commit in event.committed if commit.position == 12]
                if first and not event.refreshed:
                    found += 1
                    # Nothing before the block has changed since the refresh, and a few positions in it hardly matter.
                    near = model.predict(torch.tensor([before])).logits[0, 12].topk(3).indices.tolist()
                    assert first[0] in near
                before = list(canvas.tokens)
    assert found


def test_storage_is_used_again_by_one_generation_at_a_time():
    pool = StoragePool()
    first = pool.borrow(2, 100)
    assert (first.rows, first.length) == (2, 256)
    second = pool.borrow(1, 100)
    assert second is not first
    pool.give_back(first)
    assert pool.borrow(1, 256) is first
    pool.give_back(first)
    pool.give_back(second)
    assert pool.borrow(1, 10) is second  # the smallest that is large enough


def test_small_storage_is_kept_beside_a_larger_one_but_not_without_end():
    pool = StoragePool()
    small, large = pool.borrow(2, 512), pool.borrow(2, 768)
    pool.give_back(large)
    pool.give_back(small)
    assert pool.borrow(2, 400) is small
    pool.give_back(small)
    larger = pool.borrow(2, 1000)  # both others beside it would be too much
    assert (larger.rows, larger.length) == (2, 1024)
    pool.give_back(larger)
    assert pool.borrow(2, 400) is small  # used last, so kept
    assert pool.borrow(2, 768) is larger


def test_shapes_of_all_kinds_keep_a_bounded_amount_of_storage():
    pool = StoragePool()
    for rows in range(1, 17):
        pool.give_back(pool.borrow(rows, 4096 - 256 * (rows - 1)))
    pool.borrow(1, 1)
    assert sum(found.positions for found in pool._free) <= 2 * 9 * 2048


class Full(torch.Tensor):
    """A tensor like which nothing can be allocated while other storage is kept."""

    pool: StoragePool
    tries: list[int]

    def new_zeros(self, *sizes):
        kept = self.pool.borrow(1, 1024)
        self.tries.append(len(kept.layers))
        if kept.layers:
            self.pool.give_back(kept)
            raise torch.OutOfMemoryError("no room")
        return torch.zeros(*sizes)


def test_without_room_for_new_storage_the_others_are_let_go_of():
    pool = StoragePool()
    kept = Storage(rows=1, length=1024)
    kept.allocate(n_layers=1, heads=1, width=2, like=torch.zeros(1))
    pool.give_back(kept)
    like = torch.zeros(1).as_subclass(Full)
    like.pool, like.tries = pool, []
    new = pool.borrow(2, 2048)
    new.allocate(n_layers=1, heads=1, width=2, like=like)
    assert like.tries == [1, 0, 0]
    assert new.layers[0][0].shape == (2, 1, 2048, 2)


def test_a_model_may_change_its_dtype_between_generations():
    model, pool = random_model(tiny_config("llada"), std=0.4), StoragePool()
    for dtype in (torch.float32, torch.bfloat16):
        canvas = continuing([3, 1], 8, mask_id=model.spec.mask_id, block_size=4)
        fill(model.to(dtype), [canvas], "fixed", Settings(cache="dual"), pool=pool)
        storage = pool.borrow(1, 10)
        assert storage.layers[0][0].dtype == dtype
        pool.give_back(storage)


def test_a_generation_gives_its_storage_back_also_when_it_is_not_heard_out():
    model = random_model(tiny_config("llada"), std=0.4)
    pool = StoragePool()
    canvas = continuing([3, 1], 8, mask_id=model.spec.mask_id, block_size=4)
    events = events_of(requests_of(model, [canvas], "fixed", Settings(cache="dual")), Runner(model, pool))
    next(events)
    used = pool.borrow(1, 10)
    assert not used.layers
    events.close()
    assert pool.borrow(1, 10).layers


def test_storage_can_be_given_back_while_the_pool_is_locked():
    """A generation may be ended by the garbage collector, in the very thread that borrows."""
    pool, storage = StoragePool(), Storage(rows=1, length=256)
    with pool._lock:
        pool.give_back(storage)
    assert pool.borrow(1, 10) is storage


class Small(Watched):
    """A model that runs out of memory with more than one row."""

    capabilities = Watched.capabilities

    def predict(self, tokens, **options):
        if len(tokens) > 1:
            raise torch.OutOfMemoryError("no room")
        return super().predict(tokens, **options)


def test_after_a_device_ran_out_of_memory_less_can_be_tried():
    model, pool = Small(random_model(tiny_config("llada"), std=0.4)), StoragePool()

    def canvases(rows):
        return [continuing([3], 4, mask_id=model.spec.mask_id, block_size=4) for _ in range(rows)]

    with pytest.raises(OutOfMemory, match="use a smaller batch"):
        fill(model, canvases(2), "fixed", Settings(cache="dual"), pool=pool)
    assert len(fill(model, canvases(1), "fixed", Settings(cache="dual"), pool=pool)) == 4


def test_a_slot_that_may_hold_nan_is_cleared_before_another_row_gets_it():
    lease = Lease(StoragePool(), rows=2, length=8, guided=True)
    for storage in lease.storages:
        storage.allocate(n_layers=1, heads=1, width=2, like=torch.zeros(1))
        for part_ in storage.layers[0]:
            part_.fill_(torch.nan)
    assert [lease.take(), lease.take()] == [0, 1]
    lease.give_back(1, clean=False)
    assert all(bool((part_[1] == 0).all()) for storage in lease.storages for part_ in storage.layers[0])
    assert all(bool(part_[0].isnan().all()) for storage in lease.storages for part_ in storage.layers[0])
    assert lease.take() == 1


def test_a_pool_and_a_model_can_be_copied():
    model, pool = random_model(tiny_config("llada")), StoragePool()
    pool.give_back(Storage(rows=1, length=256))
    again, empty = pickle.loads(pickle.dumps((model, pool)))
    assert torch.equal(again.predict(torch.tensor([[1, 2]])).logits, model.predict(torch.tensor([[1, 2]])).logits)
    assert not empty.borrow(1, 10).layers
    copy.deepcopy(again).predict(torch.tensor([[1, 2]]))
