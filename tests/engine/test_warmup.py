"""What is decoded before the first request; that it saves time is for no test to say."""

import pytest
from early import Early

import unmask
from unmask import policies
from unmask.engine.cuda.warmup import Rehearsal, rehearsals, rehearse
from unmask.engine.plan import plan


@pytest.fixture(scope="module")
def toy():
    return unmask.load("toy")


@pytest.mark.parametrize("cache", ["none", "dual"])
def test_every_batch_that_is_captured_is_decoded_and_some_of_different_lengths(toy, cache):
    made = plan(toy.model, "eb", None, {"max_tokens": 8, "cache": cache})
    found = list(rehearsals(6, made, 5))
    if cache == "dual":
        last = found.pop()
        assert (last.lengths, last.joining, last.policy.passes) == ([6, 1, 1, 1], 6, 3)
    lengths = [rehearsal.lengths for rehearsal in found]
    assert lengths[::3] == [[6] * 5, [6] * 4, [6] * 2, [6], [6, 1, 1, 1, 1], [5], [1]]
    assert lengths[::3] == lengths[1::3] == lengths[2::3]
    assert [rehearsal.policy.passes for rehearsal in found[::3] + found[2::3]] == [3] * 14
    assert [rehearsal.policy for rehearsal in found[1::3]] == [policies.get("eb")] * 7
    assert {len(each.lengths) for each in found if each.announced} == {1, 2, 4, 5}
    assert [rehearsal.lengths for rehearsal in rehearsals(6, made, 1)][:9:3] == [[6], [5], [1]]


def test_no_text_ends_before_its_last_block_has_been_rehearsed(toy):
    made = plan(toy.model, "fixed", None, {"max_tokens": 12, "block_size": 4, "early_stop": True})
    blocks = set()

    class Noting(Early):
        def decide_group(self, group, done):
            blocks.update(done.window.blocks)
            return super().decide_group(group, done)

    rehearse(Noting(toy.model), Rehearsal(lengths=[1], policy=policies.get("fixed", passes=3)), made)
    assert blocks == {(1, 5), (5, 9), (9, 13)}


def test_shorter_prompts_are_rehearsed_in_the_steps_in_which_they_are_captured(toy):
    def shorter(prompt_tokens, max_tokens):
        made = plan(toy.model, "eb", None, {"max_tokens": max_tokens, "cache": "dual"})
        found = rehearsals(prompt_tokens, made, 1)
        return [rehearsal.lengths[0] for rehearsal in found if not rehearsal.announced][::3]

    assert shorter(300, 64) == [299, 171, 43, 1]
    assert shorter(4000, 1800) == [3999, 159, 31, 1]
    assert shorter(2, 64) == [1]
    assert shorter(1, 64) == []


@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize("max_tokens", [32, 64])
@pytest.mark.parametrize("prompt_tokens", [8, 100])
def test_a_row_that_joins_is_rehearsed_beside_rows_that_do_not_refresh(prompt_tokens, max_tokens, cache):
    llm, mixed = unmask.load("tiny", device="cpu"), []

    class Noting(Early):
        def forward(self, call):
            done = super().forward(call)
            mixed.append(set(done.refreshed) if len(done.refreshed) == 3 else set())
            return done

    made = plan(llm.model, None, None, {"max_tokens": max_tokens, "block_size": 32, "cache": cache})
    for found in rehearsals(prompt_tokens, made, 3):
        if found.joining is not None:
            rehearse(Noting(llm.model), found, made)
    assert {True, False} in mixed
