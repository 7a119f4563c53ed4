"""What a forward pass tells the model of its rows, and what is left behind when one fails."""

import pytest
import torch
from doubles import Watched, WatchedPacking, tiny_config

from unmask import policies
from unmask.cache.kv import StoragePool
from unmask.engine.canvas import Canvas
from unmask.engine.decode import decode
from unmask.engine.forward import Forward
from unmask.engine.window import Window
from unmask.errors import WorkFailed
from unmask.models.random_weights import random_model
from unmask.settings import Settings


class Inheriting(WatchedPacking):
    """Whoever has a `predict` of his own must say himself that it packs."""

    def predict(self, tokens, **options):
        return super().predict(tokens, **options)


def canvases(*prompts):
    return [Canvas.continuing([5] * length, 16, mask_id=60, block_size=8) for length in prompts]


@pytest.mark.parametrize(
    ("kind", "needs", "on_the_host"),
    [
        (lambda model: model, (), True),
        (WatchedPacking, (), True),
        (WatchedPacking, ("shadow",), False),  # computed with a mask, which needs them where the model is
        (Watched, (), False),
        (Inheriting, (), False),
    ],
    ids=["ours", "packs", "packs, with shadows", "says nothing", "inherits"],
)
def test_lengths_are_on_the_host_for_passes_that_compute_no_padding(kind, needs, on_the_host):
    model, rows = kind(random_model(tiny_config("llada"))), canvases(40, 4, 9)
    forward = Forward(model, rows, Settings(), StoragePool(), needs=frozenset(needs), attention_layers=None)
    window, tokens = Window.over(rows, model.device), torch.zeros(3, 56, dtype=torch.long)
    found = forward._lengths(window, tokens)
    assert found.tolist() == [56, 20, 25]
    assert (found is not window.length) == on_the_host
    assert forward._lengths(window, tokens, [2, 1]).tolist() == [25, 20]
    assert forward._lengths(window, tokens, [0]) is None
    assert forward._lengths(window, torch.zeros(3, 57, dtype=torch.long)).tolist() == [56, 20, 25]


@pytest.mark.parametrize("guidance", [0.0, pytest.param(0.5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("refresh", ["block", "blocks:2", "drift:0.1"])
@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_rows_that_refresh_and_rows_that_do_not_are_one_call_of_a_model_that_packs(family, cache, refresh, guidance):
    settings = Settings(cache=cache, refresh=refresh, cfg_scale=guidance, temperature=0.5)
    found = []
    for kind in (WatchedPacking, Watched):
        model, prompts = kind(random_model(tiny_config(family), std=1.0)), [[3, 1, 4], [1], [5, 9, 2, 6, 5, 3] * 5]
        rows = [Canvas.continuing(prompt, 24, mask_id=60, block_size=4) for prompt in prompts]
        events = list(decode(model, rows, policies.get("threshold"), settings))
        passes = max(event.step for event in events) + 1
        found.append([(row.tokens, row.step_map) for row in rows])
        steps = [{event.refreshed for event in events if event.step == step} for step in range(passes)]
        assert {True, False} in steps  # or this tests nothing
        calls = passes if kind is WatchedPacking else passes + steps.count({True, False})
        assert len(model.computed) == calls * (2 if guidance else 1)
    assert found[0] == found[1]


def test_what_a_failed_generation_left_in_its_storage_does_not_get_into_the_next():
    model, pool = random_model(tiny_config("llada"), std=0.4), StoragePool()

    def decoded(rows, pool):
        for _ in decode(model, rows, policies.get("fixed"), Settings(cache="dual"), pool=pool):
            pass
        return [row.tokens for row in rows]

    expected = decoded(canvases(40, 4, 6), None)
    weight = model.embedding.weight.data
    model.embedding.weight.data = torch.full_like(weight, torch.nan)
    with pytest.raises(WorkFailed, match="no usable logits"):
        decoded(canvases(40, 40, 40), pool)
    model.embedding.weight.data = weight
    assert decoded(canvases(40, 4, 6), pool) == expected
