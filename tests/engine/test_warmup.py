"""What is decoded before the first request; that it saves time is for no test to say."""

import types

import pytest
from doubles import tiny_config

import unmask
from unmask import policies
from unmask.engine.canvas import Canvas
from unmask.engine.decode import decode
from unmask.engine.warmup import rehearsals
from unmask.models.random_weights import random_model
from unmask.policies.uneven import Uneven
from unmask.settings import Settings


@pytest.mark.parametrize("cache", ["none", "dual"])
def test_every_batch_that_is_captured_is_decoded_and_some_of_different_lengths(cache, monkeypatch):
    llm, decoded, chosen = unmask.load("toy", device="cpu"), [], []
    monkeypatch.setattr(llm.model, "device", types.SimpleNamespace(type="cuda"))

    def note(canvases, job):
        decoded.append([len(row.tokens) - 8 for row in canvases])
        chosen.append(policies.describe(job.policy))
        return iter(())

    monkeypatch.setattr(llm, "_decode", note)
    expected = set()
    monkeypatch.setattr(llm.model, "expect", lambda *shape: expected.add(shape), raising=False)
    llm.warmup(prompt_tokens=6, batch_size=5, max_tokens=8, policy="eb", cache=cache)
    assert (decoded.pop(), chosen.pop()["passes"]) == ([5], 3)
    if cache == "dual":
        assert (decoded.pop(), chosen.pop()["name"]) == ([6, 1, 1, 1, 1], "Uneven")
    assert decoded[::2] == decoded[1::2] == [[6] * 5, [6] * 4, [6] * 2, [6], [6, 1, 1, 1, 1]]
    assert [found["passes"] for found in chosen[::2]] == [3] * 5
    assert [found["name"] for found in chosen[1::2]] == ["eb"] * 5
    decoded.clear()
    llm.warmup(prompt_tokens=6, max_tokens=8)
    assert decoded == [[6], [6], [5]]
    assert sorted(expected) == [(1, 14), (2, 14), (4, 14), (5, 14)]


def test_shorter_prompts_are_rehearsed_in_the_steps_in_which_they_are_captured():
    def shorter(prompt_tokens, max_tokens):
        found = rehearsals(prompt_tokens, max_tokens, 1, policies.get("eb"), cached=True)
        return [lengths for lengths, _ in found if lengths != [prompt_tokens]]

    assert shorter(300, 64) == [[299], [171], [43]]
    assert shorter(4000, 1800) == [[3999], [159], [31]]
    assert shorter(1, 64) == []


@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize("prompt_tokens", [8, 100, 512])
def test_rows_that_refresh_are_rehearsed_beside_rows_that_do_not(prompt_tokens, cache, monkeypatch):
    model, mixed = random_model(tiny_config("llada")), []
    passed = type(model)._span_pass
    monkeypatch.setattr(type(model), "_span_pass", lambda *given: mixed.append(given) or passed(*given))
    for lengths, policy in rehearsals(prompt_tokens, 64, 3, policies.get("eb"), cached=True):
        if isinstance(policy, Uneven):
            canvases = [Canvas.continuing([5] * n, 64, mask_id=model.spec.mask_id, block_size=32) for n in lengths]
            list(decode(model, canvases, policy, Settings(cache=cache)))
    assert mixed
