"""Passes begun before the last one was looked at, and decisions as they are captured on a CUDA device: on the CPU, with
stand-ins for what only a device does.
"""

from dataclasses import dataclass, replace

import pytest
import torch
from doubles import Watched, tiny_config

from unmask import policies
from unmask.engine.canvas import Canvas
from unmask.engine.decode import decode
from unmask.errors import WorkFailed
from unmask.models.random_weights import random_model
from unmask.models.transformer import Transformer
from unmask.settings import Settings

PROMPTS = ((3, 1, 4, 1, 5), (9, 2), (6, 5, 3, 5, 8, 9, 7, 9, 3), (2,))


def run(model, policy, prompts=PROMPTS, *, max_tokens=13, block_size=5, settings=None, **options):
    settings = settings or Settings()
    policy = policies.get(policy) if isinstance(policy, str) else policy
    sizes = {"mask_id": model.spec.mask_id, "block_size": block_size}
    canvases = [Canvas.continuing(list(prompt), max_tokens, **sizes) for prompt in prompts]
    return canvases, list(decode(model, canvases, policy, settings, **options))


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
def test_a_pass_begun_before_the_last_one_was_looked_at_changes_nothing(family, name, cache, refresh, monkeypatch):
    """As on a device that works on its own."""
    settings = Settings(cache=cache, refresh=refresh, early_stop=True)
    options = {"settings": settings, "ended": lambda canvas: 7 in canvas.tokens}
    model = Watched(random_model(tiny_config(family), std=0.4))
    expected, events = run(model, name, **options)
    computed = list(model.computed)
    model.computed.clear()
    monkeypatch.setattr("unmask.engine.decode._works_on_its_own", lambda device: True)
    assert run(model, name, **options) == (expected, events)
    assert model.computed == computed


def reads_of(model, monkeypatch):
    """Of every read from now on, whether the pass after the one it tells of had begun; as if on a CUDA device."""
    ahead = []
    model.computed.clear()

    def reading(told):
        passes = len(ahead) + 1
        return lambda: ahead.append(len(model.computed) > passes) or told.tolist()

    monkeypatch.setattr("unmask.engine.decode._works_on_its_own", lambda device: True)
    monkeypatch.setattr("unmask.engine.decode._reading", reading)
    return ahead


@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1]])
@pytest.mark.parametrize(("family", "name"), [("llada", "threshold"), ("dream", "mean_field"), ("llada", "wino")])
def test_whole_canvases_with_a_block_to_come_are_predicted_again_before_the_read(family, name, prompts, monkeypatch):
    model = Watched(random_model(tiny_config(family), std=0.4))
    expected, events = run(model, name, prompts, max_tokens=17)
    computed, ahead = list(model.computed), reads_of(model, monkeypatch)
    assert run(model, name, prompts, max_tokens=17) == (expected, events)
    assert model.computed == computed  # nothing in vain
    if len(prompts) == 1:
        # Of the blocks of 5, 5, 5 and 2, the third is followed by one of another width. Shadows are not prepared.
        first = expected[0].blocks[0][0]
        assert ahead == [name != "wino" and event.block[0] < first + 10 for event in events]


class Announced(policies.Fixed):
    """Says that it commits one position a pass, and does not keep its word."""

    def select(self, view, state=None):
        decision, state = super().select(view, state)
        return replace(decision, commit=view.masked), state

    def most_commits(self, open_now, step):
        return 1


def test_a_block_that_a_pass_cannot_complete_is_gone_on_with_before_the_read(monkeypatch):
    model, settings = Watched(random_model(tiny_config("llada"), std=0.4)), Settings(cache="dual")
    expected = run(model, "fixed", PROMPTS[:1], max_tokens=10, settings=settings)
    computed, ahead = list(model.computed), reads_of(model, monkeypatch)
    assert run(model, "fixed", PROMPTS[:1], max_tokens=10, settings=settings) == expected
    assert model.computed == computed
    assert ahead == [True, True, True, True, False] * 2
    with pytest.raises(WorkFailed, match="commits more than it said"):
        run(model, Announced(), PROMPTS[:1], max_tokens=10, settings=settings)


@pytest.mark.parametrize("cache", ["none", "dual"])
def test_a_policy_that_commits_more_than_it_said_is_found_out_on_every_device(cache):
    model = random_model(tiny_config("llada"), std=0.4)
    with pytest.raises(WorkFailed, match="Announced commits more than it said"):
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
    assert policies.is_pure(type("Renamed", (policies.Threshold,), {})())


class Looking(Transformer):
    """Sees every prediction, though its base can prepare them."""

    predictions = 0

    def predict(self, tokens, **options):
        self.predictions += 1
        return super().predict(tokens, **options)


def test_who_overrides_predict_sees_every_prediction(monkeypatch):
    monkeypatch.setattr("unmask.engine.decode._works_on_its_own", lambda device: True)
    model = random_model(tiny_config("llada"), std=0.4)
    model.__class__ = Looking
    _, events = run(model, "fixed", PROMPTS[:1], max_tokens=8, settings=Settings(cache="dual"))
    assert model.predictions == len(events) == 8


def test_policies_that_can_be_captured_are_known():
    assert PURE == ["eb", "entropy", "factor", "fixed", "local_leap", "margin", "mean_field", "threshold"]
    assert not policies.is_pure(policies.get("fixed", schedule="dream"))
    assert policies.is_pure(policies.get("fixed", schedule="dream", passes=3))


@pytest.mark.parametrize("own", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("name", PURE)
@pytest.mark.parametrize(("family", "cache", "refresh"), [("llada", "none", "block"), ("dream", "dual", "drift:0.05")])
def test_decisions_as_a_function_of_tensors_are_the_same(family, cache, refresh, name, own, monkeypatch):
    """As they are captured on a CUDA device; `own`: they may write to their logits, which nobody reads afterwards."""
    model, kinds = random_model(tiny_config(family), std=0.4), []
    options = {"settings": Settings(cache=cache, refresh=refresh)}
    expected = run(model, name, **options)

    def decide(self, kind, run, *inputs, fleeting):
        kinds.append(kind)
        logits = inputs[0].clone()
        found = run(logits, *inputs[1:])
        assert torch.equal(logits, inputs[0]) != own
        logits.fill_(torch.nan)
        return found

    monkeypatch.setattr("unmask.engine.decode._is_captured", lambda logits: own)
    monkeypatch.setattr("unmask.engine.decode._works_on_its_own", lambda device: True)
    monkeypatch.setattr("unmask.engine.decisions.Decisions.serve", lambda self, logits: True)
    monkeypatch.setattr("unmask.engine.decisions.Decisions.__call__", decide)
    assert run(model, name, **options) == expected
    assert kinds


@pytest.mark.parametrize("cache", ["none", "dual"])
def test_decisions_about_canvases_of_like_length_are_of_one_shape(cache, monkeypatch):
    """So that a prompt of another length finds them captured; the model still computes no more than it must."""
    model, shapes = Watched(random_model(tiny_config("llada"), std=0.4)), set()

    def decide(self, kind, run, *inputs, fleeting):
        shapes.add(tuple(value.shape for value in inputs))
        return run(*inputs)

    expected = [run(model, "fixed", [[5] * n], settings=Settings(cache=cache)) for n in (3, 12, 40)]
    computed = list(model.computed)
    model.computed.clear()
    monkeypatch.setattr("unmask.engine.decode._works_on_its_own", lambda device: True)
    monkeypatch.setattr("unmask.engine.decisions.Decisions.serve", lambda self, logits: True)
    monkeypatch.setattr("unmask.engine.decisions.Decisions.__call__", decide)
    assert [run(model, "fixed", [[5] * n], settings=Settings(cache=cache)) for n in (3, 12, 40)] == expected
    assert model.computed == computed
    assert len(shapes) == 2  # the last block is narrower
