"""Passes begun before the last one was read, and decisions as they are captured: on the CPU, without a device's graphs.

The runner of CUDA devices gives what the plain one gives, by the same model calls.
"""

from dataclasses import dataclass, replace

import pytest
import torch
from doubles import Watched, continuing, events_of, fill, requests_of, tiny_config
from early import Early
from recalled import Recalled

from unmask import policies
from unmask.cache.storage import StoragePool
from unmask.engine.commit import Decided
from unmask.engine.cuda.runner import CudaRunner, Decisions, can_capture, decision_of
from unmask.engine.decode import decode
from unmask.engine.runner import Runner
from unmask.engine.scheduler import Scheduler
from unmask.errors import WorkFailed
from unmask.models.kernels.graphs import Graphs
from unmask.models.random_weights import random_model
from unmask.models.transformer import Transformer
from unmask.settings import Settings

PROMPTS = ((3, 1, 4, 1, 5), (9, 2), (6, 5, 3, 5, 8, 9, 7, 9, 3), (2,))


def canvases_of(model, prompts=PROMPTS, *, max_tokens=13, block_size=5):
    sizes = {"mask_id": model.spec.mask_id, "block_size": block_size}
    return [continuing(list(prompt), max_tokens, **sizes) for prompt in prompts]


def run(model, policy, prompts=PROMPTS, *, max_tokens=13, block_size=5, settings=None, **options):
    canvases = canvases_of(model, prompts, max_tokens=max_tokens, block_size=block_size)
    return canvases, fill(model, canvases, policy, settings, **options)


CACHED = [
    (family, name, cache, refresh)
    for family, name in (("llada", "mean_field"), ("dream", "fixed"))
    for cache in ("prefix", "dual")
    for refresh in ("block", "blocks:2", "drift:0.05")
]


@pytest.mark.parametrize(
    ("family", "name", "cache", "refresh"),
    [*CACHED, *((family, name, "none", "block") for family, name in (("llada", "wino"), ("dream", "mean_field")))],
)
def test_a_pass_begun_before_the_last_one_was_read_changes_nothing(family, name, cache, refresh):
    options = {"settings": Settings(cache=cache, refresh=refresh, early_stop=True), "ends": [7]}
    model = Watched(random_model(tiny_config(family), std=0.4))
    expected, events = run(model, name, **options)
    computed = list(model.computed)
    model.computed.clear()
    assert run(model, name, early=True, **options) == (expected, events)
    assert model.computed == computed


class Reading(Early):
    """Notes of every read whether the pass after the one it tells of had begun."""

    def __init__(self, model):
        super().__init__(model)
        model.computed.clear()
        self.ahead = []
        self.reading = self._noted

    def _noted(self, numbers):
        passes = len(self.ahead) + 1
        return lambda: self.ahead.append(len(self.model.computed) > passes) or numbers.tolist()


@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1]])
@pytest.mark.parametrize(("family", "name"), [("llada", "threshold"), ("dream", "mean_field"), ("llada", "wino")])
def test_whole_canvases_with_a_block_to_come_are_predicted_again_before_the_read(family, name, prompts):
    model = Watched(random_model(tiny_config(family), std=0.4))
    expected, events = run(model, name, prompts, max_tokens=17)
    computed, runner = list(model.computed), Reading(model)
    canvases = canvases_of(model, prompts, max_tokens=17)
    assert list(events_of(requests_of(model, canvases, name), runner)) == events
    assert canvases == expected
    assert model.computed == computed  # nothing in vain
    if len(prompts) == 1:
        # Of the blocks of 5, 5, 5 and 2, the third is followed by one of another width. Shadows are not prepared.
        first = expected[0].blocks[0][0]
        assert runner.ahead == [name != "wino" and event.block[0] < first + 10 for event in events]


class Announced(policies.Fixed):
    """Says that it commits one position a pass, and does not keep its word."""

    def select(self, view, state=None):
        decision, state = super().select(view, state)
        return replace(decision, commit=view.masked), state

    def most_commits(self, open_now, step):
        return 1


def test_a_block_that_a_pass_cannot_complete_is_gone_on_with_before_the_read():
    model, settings = Watched(random_model(tiny_config("llada"), std=0.4)), Settings(cache="dual")
    expected = run(model, "fixed", PROMPTS[:1], max_tokens=10, settings=settings)
    computed, runner = list(model.computed), Reading(model)
    canvases = canvases_of(model, PROMPTS[:1], max_tokens=10)
    assert (canvases, list(events_of(requests_of(model, canvases, "fixed", settings), runner))) == expected
    assert model.computed == computed
    assert runner.ahead == [True, True, True, True, False] * 2
    with pytest.raises(WorkFailed, match="commits more than its most_commits allows"):
        run(model, Announced(), PROMPTS[:1], max_tokens=10, settings=settings, early=True)


@pytest.mark.parametrize("cache", ["none", "dual"])
def test_a_row_that_fails_leaves_a_pass_that_has_begun_to_the_others(cache):
    """The logits of the second row turn into NaN in its third pass, which begins before the second is read."""
    model, settings = random_model(tiny_config("llada"), std=0.4), Settings(cache=cache)

    class Breaking(Watched):
        capabilities = Watched.capabilities

        def predict(self, tokens, **options):
            found = super().predict(tokens, **options)
            if len(self.computed) == 3:
                found.logits[1] = torch.nan
            return found

    expected, _ = run(model, "fixed", settings=settings)
    canvases = canvases_of(model)
    requests, found = requests_of(model, canvases, "fixed", settings), []
    for event in decode(Scheduler(requests, rows=4), Early(Breaking(model))):
        found.append((event.row, event.error is not None))
    assert [row for row, failed in found if failed] == [1]
    assert sum(row == 1 for row, _ in found) == 3
    for row in (0, 2, 3):
        assert canvases[row].tokens == expected[row].tokens


@pytest.mark.parametrize("cache", ["none", "dual"])
def test_a_policy_that_commits_more_than_it_said_is_found_out_on_every_device(cache):
    model = random_model(tiny_config("llada"), std=0.4)
    with pytest.raises(WorkFailed, match="Announced commits more than its most_commits allows"):
        run(model, Announced(), PROMPTS[:1], max_tokens=10, settings=Settings(cache=cache))


PURE = [name for name in policies.names() if policies.is_pure(policies.get(name)) and not policies.get(name).needs]


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting(policies.Threshold):
    """Has a select of its own, about which its base can say nothing."""

    def select(self, view, state=None):
        decision, _ = super(Counting, self).select(view)
        return decision, state


def test_what_a_class_says_of_its_decisions_does_not_hold_for_those_of_others():
    assert not policies.is_pure(Counting())
    hasty = type("Hasty", (policies.Fixed,), {"select": lambda self, view, state=None: None})
    assert (policies.most_commits(policies.Fixed(), 5, 0), policies.most_commits(hasty(), 5, 0)) == (1, 5)
    assert not policies.is_pure(type("Scored", (policies.Fixed,), {"score": lambda self, view: view.logits[..., 0]})())
    assert not policies.is_pure(type("Choosy", (policies.Joint,), {"cost": lambda self, view, uncertain: view.start})())
    assert policies.is_pure(type("Renamed", (policies.Threshold,), {})())


class Looking(Transformer):
    """Sees every prediction, though the passes of its base could be captured."""

    predictions = 0

    def predict(self, tokens, **options):
        self.predictions += 1
        return super().predict(tokens, **options)


def test_a_class_that_overrides_predict_sees_every_prediction():
    model = random_model(tiny_config("llada"), std=0.4)
    model.__class__ = Looking
    canvases = canvases_of(model, PROMPTS[:1], max_tokens=8)
    runner = CudaRunner(model, StoragePool())
    runner.reading = lambda numbers: numbers.tolist
    runner.decide_group = Runner(model, runner.pool).decide_group
    events = list(events_of(requests_of(model, canvases, "fixed", Settings(cache="dual")), runner))
    assert model.predictions == len(events) == 8


def test_policies_that_can_be_captured_are_known():
    ordered = ["certainty_prior", "entropy", "fixed", "margin"]
    known = ["bound", "context_threshold", "cumulative", "eb", "factor", "joint", "local_leap", "mean_field"]
    assert sorted([*known, *ordered, "position_entropy", "threshold"]) == PURE
    assert not policies.is_pure(policies.get("fixed", schedule="dream"))
    assert policies.is_pure(policies.get("fixed", schedule="dream", passes=3))


class Functional(Runner):
    """Decides as a captured decision does: by a function of tensors, on logits of its own."""

    def __init__(self, model, *, own):
        super().__init__(model, StoragePool())
        self.own, self.shapes = own, set()

    def decide_group(self, group, done):
        assert can_capture(group, done)
        decide, inputs, _ = decision_of(self, group, done, own=lambda: self.own)
        logits = inputs[0].clone()
        self.shapes.add(tuple(tuple(value.shape) for value in inputs))
        tokens, table = decide(logits, *inputs[1:])
        assert torch.equal(logits, inputs[0]) != self.own
        logits.fill_(torch.nan)
        return Decided(tokens=tokens, table=table, blocks=done.window.blocks, refreshed=done.refreshed)


@pytest.mark.parametrize("own", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("name", PURE)
@pytest.mark.parametrize(("family", "cache", "refresh"), [("llada", "none", "block"), ("dream", "dual", "drift:0.05")])
def test_decisions_as_a_function_of_tensors_are_the_same(family, cache, refresh, name, own):
    """`own`: they may write to their logits, which nothing reads afterwards."""
    model, settings = random_model(tiny_config(family), std=0.4), Settings(cache=cache, refresh=refresh)
    canvases = canvases_of(model)
    events = list(events_of(requests_of(model, canvases, name, settings), Functional(model, own=own)))
    assert (canvases, events) == run(model, name, settings=settings)


@pytest.mark.parametrize("cache", ["none", "dual"])
def test_decisions_about_canvases_of_like_length_are_of_one_shape(cache):
    """So that a prompt of another length finds them captured; the model still computes no more than it must."""
    model, settings = Watched(random_model(tiny_config("llada"), std=0.4)), Settings(cache=cache)
    expected = [run(model, "fixed", [[5] * n], settings=settings) for n in (3, 12, 40)]
    computed, runner = list(model.computed), Functional(model, own=True)
    model.computed.clear()
    for length, (rows, events) in zip((3, 12, 40), expected, strict=True):
        canvases = canvases_of(model, [[5] * length])
        assert list(events_of(requests_of(model, canvases, "fixed", settings), runner)) == events
        assert canvases == rows
    assert model.computed == computed
    assert len(runner.shapes) == 2  # the last block is narrower


class Recalling(Early):
    """Captures decisions as a CUDA device does, in recordings that any device can replay."""

    def decide_group(self, group, done):
        decisions = Decisions.of(self.pool, group.plan)
        if not decisions.graphs.captured:
            decisions.graphs = Graphs(after=0, pads=True, steady=(3, 4, 5, 6, 7), record=Recalled)
        return decisions(self, group, done)


@pytest.mark.parametrize("name", ["mean_field", "fixed", "eb"])
@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llada", {}),
        ("dream", {"cache": "dual"}),
        ("dream", {"cache": "prefix", "refresh": "blocks:2"}),
        ("llada", {"cache": "dual", "refresh": "drift:0.05"}),
    ],
)
def test_decisions_that_are_replayed_are_the_same(family, options, name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    model, settings, pool = random_model(tiny_config(family), std=0.4), Settings(**options), StoragePool()
    expected = run(model, name, settings=settings)
    for _ in range(2):
        canvases = canvases_of(model)
        events = list(events_of(requests_of(model, canvases, name, settings), Recalling(model, pool)))
        assert (canvases, events) == expected
    assert any(kept.graphs.captured for kept in pool.kept.values())
