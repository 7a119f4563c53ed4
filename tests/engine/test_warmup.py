"""What is decoded before the first request; that it saves time is for no test to say."""

import types
from dataclasses import replace
from functools import partial

import pytest
import torch

import unmask
from unmask import policies
from unmask.engine.request import plan
from unmask.engine.warmup import rehearsals


@pytest.mark.parametrize("cache", ["none", "dual"])
def test_every_batch_that_is_captured_is_decoded_and_some_of_different_lengths(cache, monkeypatch):
    llm, decoded, chosen = unmask.load("toy", device="cpu"), [], []
    monkeypatch.setattr(llm.model, "device", types.SimpleNamespace(type="cuda"))

    def note(canvases, job, *, ended, arrivals, rows):
        lengths = [len(row.tokens) - 8 for row in canvases]
        joining = [len(row.tokens) - 8 for row in arrivals(1, None)]
        assert rows == len(lengths + joining)
        assert not arrivals(1, None)
        decoded.append((lengths, joining) if joining else lengths)
        chosen.append(policies.describe(job.policy))
        return iter(())

    monkeypatch.setattr(llm, "_decode", note)
    expected = set()
    monkeypatch.setattr(llm.model, "expect", lambda *shape: expected.add(shape), raising=False)
    llm.warmup(prompt_tokens=6, batch_size=5, max_tokens=8, policy="eb", cache=cache)
    if cache == "dual":
        assert (decoded.pop(), chosen.pop()["passes"]) == (([6, 1, 1, 1], [6]), 3)
    assert decoded[::3] == [[6] * 5, [6] * 4, [6] * 2, [6], [6, 1, 1, 1, 1], [5], [1]]
    assert decoded[::3] == decoded[1::3] == decoded[2::3]
    assert [found["passes"] for found in chosen[::3] + chosen[2::3]] == [3] * 14
    assert [found["name"] for found in chosen[1::3]] == ["eb"] * 7
    decoded.clear()
    llm.warmup(prompt_tokens=6, max_tokens=8)
    assert decoded[::3] == [[6], [5], [1]]
    assert sorted(expected) == [(1, 14), (2, 14), (4, 14), (5, 14)]


def test_no_text_ends_before_its_last_block_has_been_rehearsed(monkeypatch):
    toy = unmask.load("toy")
    monkeypatch.setattr(toy.model, "device", types.SimpleNamespace(type="cuda"))
    decode, blocks = toy._decode, []

    def followed(canvases, job, **options):
        with monkeypatch.context() as inside:
            inside.setattr(toy.model, "device", torch.device("cpu"))
            blocks.append({event.block for event in decode(canvases, job, **options)})
        return iter(())

    monkeypatch.setattr(toy, "_decode", followed)
    monkeypatch.setattr("unmask.engine.generator.is_complete", lambda canvas, ending: True)
    toy.warmup(prompt_tokens=1, max_tokens=12, block_size=4, early_stop=True)
    assert all(len(found) == 3 for found in blocks)


def test_shorter_prompts_are_rehearsed_in_the_steps_in_which_they_are_captured():
    def shorter(prompt_tokens, max_tokens):
        found = rehearsals(prompt_tokens, max_tokens, 1, policies.get("eb"), cached=True)
        return [rehearsal.lengths[0] for rehearsal in found if not rehearsal.expected][::3]

    assert shorter(300, 64) == [299, 171, 43, 1]
    assert shorter(4000, 1800) == [3999, 159, 31, 1]
    assert shorter(2, 64) == [1]
    assert shorter(1, 64) == []


@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize("max_tokens", [32, 64])
@pytest.mark.parametrize("prompt_tokens", [8, 100])
def test_a_row_that_joins_is_rehearsed_beside_rows_that_do_not_refresh(prompt_tokens, max_tokens, cache, monkeypatch):
    llm, mixed = unmask.load("tiny", device="cpu"), []
    kind = type(llm.model)
    passed = kind._span_pass
    monkeypatch.setattr(kind, "_span_pass", lambda *given: mixed.append(len(given[1])) or passed(*given))
    job = plan(llm.spec, None, None, {"max_tokens": max_tokens, "block_size": 32, "cache": cache})
    for found in rehearsals(prompt_tokens, max_tokens, 3, job.policy, cached=True):
        if found.joining is not None:
            canvases = [llm._open_canvas([5] * length, job) for length in found.prompts]
            found.play(canvases, partial(llm._decode, job=replace(job, policy=found.policy)))
    assert 3 in mixed
