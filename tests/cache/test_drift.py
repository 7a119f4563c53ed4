"""Refreshing a cache when states have moved: what counts as drift, what is recomputed, and that rows stay apart."""

import math

import pytest
import torch
import torch.nn.functional as F
from doubles import Watched, continuing, fill, tiny_config

from unmask import policies
from unmask.bench.decoding import MIXED, bench_step, run_passes
from unmask.bench.subject import loads_of
from unmask.bench.workload import Workload
from unmask.cache.base import PassPlan, RowPlan
from unmask.cache.kinds import DriftStates
from unmask.cache.storage import KVCache, StoragePool
from unmask.errors import UnmaskError
from unmask.evals.recipe import parse
from unmask.evals.run import run as evaluate
from unmask.evals.store import cells_of
from unmask.models.random_weights import random_model
from unmask.models.toy import load_toy
from unmask.settings import Settings

PROMPTS = [(3, 1, 4), (1,), (5, 9, 2, 6, 5, 3)]


def run(model, settings, *, prompts=((3, 1, 4),), max_tokens=12, policy="fixed", early=False, **parameters):
    canvases = [continuing(list(prompt), max_tokens, mask_id=model.spec.mask_id, block_size=4) for prompt in prompts]
    return canvases, fill(model, canvases, policies.get(policy, **parameters), settings, early=early)


class Noted(Watched):
    """Keeps what every call was asked, and what states it gave if these were wanted."""

    def __init__(self, model):
        super().__init__(model)
        self.calls = []

    capabilities = Watched.capabilities

    def predict(self, tokens, *, plan, **options):
        prediction = super().predict(tokens, plan=plan, **options)
        states = prediction.states.clone() if options.get("states") else None
        self.calls.append((tokens.clone(), plan, states))
        return prediction


@pytest.mark.parametrize("value", ["drift", "drift:", "drift:-1", "drift:0", "drift:nan", "drift:inf", "drift:much"])
def test_a_tolerance_that_is_no_number_above_zero_is_refused_in_one_line(value):
    with pytest.raises(UnmaskError) as caught:
        Settings(refresh=value)
    expected = "refresh must be 'block' or 'blocks:N' with N of at least 1, or 'drift:X' with X above 0"
    assert str(caught.value) == f"{expected}, got {value!r}"


def test_a_tolerance_takes_the_place_of_counting_blocks():
    settings = Settings(refresh="drift:5e-2")
    assert settings.refresh_rule() == (None, 0.05)
    settings = Settings(refresh="blocks:3")
    assert settings.refresh_rule() == (3, None)


@pytest.mark.parametrize(
    ("family", "cache", "expected"),
    [
        ("llada", "dual", [15, 4, 4, 4, 8, 4, 4, 4, 8, 4, 4, 4]),
        ("llada", "prefix", [15, 12, 12, 12, 12, 8, 8, 8, 8, 4, 4, 4]),
        ("dream", "dual", [15, 5, 5, 5, 8, 5, 5, 5, 8, 5, 5, 5]),
        ("dream", "prefix", [15, 13, 13, 13, 12, 9, 9, 9, 8, 5, 5, 5]),
    ],
)
def test_a_cache_that_never_drifts_too_far_is_computed_once_and_takes_in_every_block(family, cache, expected):
    model = Watched(random_model(tiny_config(family), std=0.4))
    _, events = run(model, Settings(cache=cache, refresh="drift:10"))
    assert [n for _, n in model.computed] == expected
    assert [event.refreshed for event in events] == [True] + [False] * 11


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_cache_that_tolerates_next_to_nothing_is_renewed_every_other_pass(family):
    model = Watched(random_model(tiny_config(family), std=0.4))
    _, events = run(model, Settings(cache="dual", refresh="drift:1e-9"))
    assert [event.refreshed for event in events] == [True, False] * 6
    assert [n == 15 for _, n in model.computed] == [True, False] * 6


def test_states_are_compared_only_where_a_row_is_not_refreshed(monkeypatch):
    compared = []

    def similarity(now, before, dim):
        compared.append(len(now))
        return torch.ones(now.shape[:dim])

    monkeypatch.setattr(F, "cosine_similarity", similarity)
    states, at, masked = torch.ones(2, 4, 3), torch.zeros(2, 1, dtype=torch.long), torch.ones(2, 1, dtype=torch.bool)
    drift = DriftStates(0.1, slots=2, length=4)
    for refresh in ((True, True), (True, False), (False, False)):
        rows = tuple(RowPlan(span=(0, 4), visible=4, refresh=each) for each in refresh)
        plan = PassPlan(rows, torch.device("cpu"))
        assert drift.drifted(plan, torch.arange(2), states, at, masked).tolist() == [False, False]
    assert compared == [2, 2]


def drifts_by_hand(calls, mask_id):
    """Of every pass over one row with the prompt (3, 1, 4), one commit a pass; a refresh has none."""
    drifts, reference = [], None
    for number, (tokens, plan, states) in enumerate(calls):
        if plan.self_contained:
            reference = states[0]
            drifts.append(0.0)
            continue
        start, moved = 3 + number // 4 * 4, []
        for column, position in enumerate(range(*plan.spans[0])):
            if start <= position < start + 4 and tokens[0, position] == mask_id:
                now, then = states[0, column].double(), reference[position].double()
                moved.append(1.0 - float(now @ then / math.sqrt(now @ now * (then @ then))))
        assert len(moved) == 4 - number % 4
        drifts.append(sum(moved) / len(moved))
    return drifts


@pytest.mark.parametrize("guidance", [0.0, 1.0])
@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_row_is_refreshed_after_a_pass_whose_open_positions_have_moved_too_far(family, cache, guidance):
    model = Noted(random_model(tiny_config(family), std=0.4))
    _, events = run(model, Settings(cache=cache, refresh="drift:0.1", cfg_scale=guidance))
    # The guided half decides for both.
    guided, unguided = (model.calls[::2], model.calls[1::2]) if guidance else (model.calls, model.calls)
    refreshed = [event.refreshed for event in events]
    assert (
        refreshed == [plan.self_contained for _, plan, _ in guided] == [plan.self_contained for _, plan, _ in unguided]
    )
    drifts = drifts_by_hand(guided, model.spec.mask_id)
    assert refreshed == [True] + [drift > 0.1 for drift in drifts[:-1]]
    assert 1 < sum(refreshed) < 6  # so that both answers were given


@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("policy", ["fixed", "threshold"])
def test_where_keys_depend_on_their_own_tokens_alone_one_refresh_serves_the_whole_request(family, cache, policy):
    """One layer: what is out of date in a cache is then only what was committed after it was computed."""
    layers = {"n_layers": 1} if family == "llada" else {"num_hidden_layers": 1}
    model = random_model(tiny_config(family, **layers), std=1.0)
    [plain], _ = run(model, Settings(), policy=policy)
    [cached], events = run(model, Settings(cache=cache, refresh="drift:10"), policy=policy)
    assert cached.tokens == plain.tokens
    assert cached.step_map == plain.step_map
    assert sum(event.refreshed for event in events) == 1


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_rows_drift_each_for_itself(family, cache, early):
    model = random_model(tiny_config(family), std=1.0)
    settings = Settings(cache=cache, refresh="drift:0.15", temperature=0.5)
    together, events = run(model, settings, prompts=PROMPTS, policy="threshold", max_tokens=14, early=early)
    refreshed = [{e.refreshed for e in events if e.step == step} for step in {event.step for event in events}]
    assert {True, False} in refreshed  # or rows were not apart
    for row, (prompt, canvas) in enumerate(zip(PROMPTS, together, strict=True)):
        [alone], own = run(model, settings, prompts=[prompt], policy="threshold", max_tokens=14)
        assert canvas.tokens == alone.tokens
        assert [e.refreshed for e in events if e.row == row] == [e.refreshed for e in own]
        assert 1 < sum(event.refreshed for event in own) < len(own)


def test_the_same_request_gives_the_same_tokens_again():
    model = random_model(tiny_config("llada"), std=1.0)
    pool = StoragePool()
    found = []
    for _ in range(3):
        canvases = [continuing(list(p), 14, mask_id=model.spec.mask_id, block_size=4) for p in PROMPTS]
        settings = Settings(cache="dual", refresh="drift:0.15")
        events = fill(model, canvases, "threshold", settings, pool=pool)
        found.append(([canvas.tokens for canvas in canvases], [event.refreshed for event in events]))
    assert found[0] == found[1] == found[2]


def test_a_shifted_head_need_not_commit_a_blocks_first_position_alone():
    model = random_model(tiny_config("dream"), std=0.4)
    _, plain = run(model, Settings(), tokens_per_pass=2)
    _, cached = run(model, Settings(cache="dual", refresh="drift:1e-9"), tokens_per_pass=2)
    assert cached[0].committed == plain[0].committed
    assert [len(event.committed) for event in cached] == [2] * 6


def test_a_model_that_tells_no_states_is_refused_in_one_line():
    toy = load_toy(device=torch.device("cpu"), dtype=torch.float32).model
    with pytest.raises(UnmaskError) as caught:
        run(toy, Settings(cache="dual", refresh="drift:0.1"))
    assert str(caught.value) == "refresh='drift:0.1' needs a model that gives its states; toy does not"
    run(toy, Settings(refresh="drift:0.1"))  # without a cache there is nothing to refresh


@pytest.mark.parametrize("refresh", ["block", "blocks:2", "drift:0.05"])
def test_events_tell_which_passes_were_refreshes(refresh):
    model = Watched(random_model(tiny_config("llada"), std=0.4))
    _, events = run(model, Settings(cache="dual", refresh=refresh))
    assert [event.refreshed for event in events] == [n == 15 for _, n in model.computed]
    _, events = run(model, Settings(refresh=refresh))
    assert not any(event.refreshed for event in events)


def test_an_evaluation_counts_the_refreshes_of_every_item(tmp_path):
    settings = [
        {"max_tokens": 16, "block_size": 4, **cache} for cache in ({}, {"cache": "dual", "refresh": "blocks:2"})
    ]
    values = {"model": "toy", "policy": "fixed", "settings": settings, "task": "countdown-3", "limit": 3}
    evaluate(parse(values | {"batch_size": 2, "device": "cpu"}), out=tmp_path / "run")
    found = {
        folder.cell.settings["cache"]: [row.refreshes for row in folder.generations.values()]
        for folder in cells_of(tmp_path / "run")
    }
    assert found == {"none": [0, 0, 0], "dual": [2, 2, 2]}


@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_benchmark_knows_the_size_of_every_call(family, cache):
    model = Watched(random_model(tiny_config(family), std=1.0))
    sizes = {"prompt_tokens": (10,), "max_tokens": 24, "block_size": 8, "batches": (3,)}
    workload = Workload(policy=policies.get("threshold"), caches=(cache,), refreshes=("drift:0.15",), **sizes)
    (load,) = loads_of(workload, model)
    passes = list(run_passes(model, load, StoragePool(), timed=False))
    calls = [call for found in passes for call in found.calls]
    assert [(len(call.positions), max(call.positions)) for call in calls] == model.computed
    assert MIXED in {found.kind for found in passes}


def test_single_steps_are_not_measured_where_drift_decides_which_of_them_refresh():
    model = random_model(tiny_config("llada"))
    workload = Workload(prompt_tokens=(10,), max_tokens=16, block_size=8, caches=("dual",), refreshes=("drift:0.1",))
    with pytest.raises(UnmaskError, match=r"steps are measured with refresh='block', got 'drift:0.1'"):
        bench_step(model, workload)


def test_states_are_those_before_the_head_of_all_that_was_computed():
    model = random_model(tiny_config("llada"), std=0.4)
    tokens = torch.randint(0, 59, (2, 12), generator=torch.Generator().manual_seed(0))
    at = torch.arange(4, 6).expand(2, -1)
    with torch.inference_mode():
        everything = model.predict(tokens, states=True)
        torch.testing.assert_close(F.linear(everything.states, model.head.weight), everything.logits)
        cache = KVCache.new(2, 12)
        torch.testing.assert_close(model.predict(tokens, at=at, cache=cache, states=True).states, everything.states)
        assert model.predict(tokens, at=at, cache=cache).states is None
        plan = PassPlan((RowPlan(span=(3, 8), visible=12),) * 2, model.device)
        some = model.predict(tokens, at=at, cache=cache, plan=plan, states=True).states
        torch.testing.assert_close(some, everything.states[:, 3:8], atol=1e-5, rtol=1e-4)
