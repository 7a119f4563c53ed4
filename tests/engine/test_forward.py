"""What a pass asks of the model, and what is left behind when one fails."""

import pytest
import torch
from doubles import Watched, continuing, fill, tiny_config

from unmask.cache.storage import StoragePool
from unmask.errors import WorkFailed
from unmask.models.random_weights import random_model
from unmask.settings import Settings


def canvases(*prompts):
    return [continuing([5] * length, 16, mask_id=60, block_size=8) for length in prompts]


@pytest.mark.parametrize("guidance", [0.0, pytest.param(0.5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("refresh", ["block", "blocks:2", "drift:0.1"])
@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_rows_that_refresh_and_rows_that_do_not_are_one_call(family, cache, refresh, guidance):
    settings = Settings(cache=cache, refresh=refresh, cfg_scale=guidance, temperature=0.5)
    model, prompts = Watched(random_model(tiny_config(family), std=1.0)), [[3, 1, 4], [1], [5, 9, 2, 6, 5, 3] * 5]
    rows = [continuing(prompt, 24, mask_id=60, block_size=4) for prompt in prompts]
    events = fill(model, rows, "threshold", settings)
    passes = max(event.step for event in events) + 1
    steps = [{event.refreshed for event in events if event.step == step} for step in range(passes)]
    assert {True, False} in steps  # or this tests nothing
    assert len(model.computed) == passes * (2 if guidance else 1)


@pytest.mark.parametrize("cache", ["prefix", "dual"])
def test_what_a_failed_row_left_in_its_slot_does_not_get_into_the_next(cache):
    model, pool, settings = random_model(tiny_config("llada"), std=0.4), StoragePool(), Settings(cache=cache)
    expected = canvases(40, 4, 6)
    fill(model, expected, "fixed", settings)
    weight = model.embedding.weight.data
    model.embedding.weight.data = torch.full_like(weight, torch.nan)
    with pytest.raises(WorkFailed, match="no usable logits"):
        fill(model, canvases(40, 40, 40), "fixed", settings, pool=pool)
    model.embedding.weight.data = weight
    again = canvases(40, 4, 6)
    fill(model, again, "fixed", settings, pool=pool)
    assert [row.tokens for row in again] == [row.tokens for row in expected]
