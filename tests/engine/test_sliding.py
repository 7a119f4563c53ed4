"""Blocks that slide: at least two are open, any policy decides within them, and the first of them always progresses."""

import pytest
import torch
from doubles import Scripted, continuing, fill, tiny_config

import unmask
from unmask import policies
from unmask.cache.base import PassPlan
from unmask.engine.canvas import Canvas
from unmask.errors import UnmaskError
from unmask.models.random_weights import random_model
from unmask.settings import Settings

MASK = 7
PROMPTS = ((3, 1, 4, 1, 5), (9, 2), (6, 5, 3, 5, 8, 9, 7, 9, 3), (2,))


def canvases_of(model, *, sliding, size=17):
    sizes = {"mask_id": model.spec.mask_id, "block_size": 4, "sliding": sliding}
    return [continuing(list(p), size, **sizes) for p in PROMPTS]


def test_two_blocks_are_open_and_the_next_opens_by_the_share_of_the_newest():
    canvas = continuing([1], 16, mask_id=MASK, block_size=4, sliding=0.5)
    assert (canvas.block, canvas.blocks[canvas.block_index]) == ((1, 9), (1, 5))
    assert not canvas.write({1: 0, 5: 0})
    assert (canvas.block, canvas.block_step) == ((1, 9), 1)
    assert not canvas.write({6: 0})  # half of the second block
    assert (canvas.block, canvas.block_step, canvas.spans_before, canvas.block_before) == ((1, 13), 0, 1, (1, 9))
    assert canvas.write({2: 0, 3: 0, 4: 0})
    assert (canvas.block, canvas.blocks[canvas.block_index]) == ((5, 13), (5, 9))
    assert canvas.write({7: 0, 8: 0, 9: 0, 10: 0, 11: 0, 12: 0})  # both open blocks at once: one is left to open
    assert canvas.block == (13, 17)
    assert canvas.write(dict.fromkeys(range(13, 17), 0))
    assert canvas.finished


def test_a_block_that_is_open_may_be_opened_again_and_a_full_one_in_front_may_not():
    canvas = continuing([], 8, mask_id=MASK, block_size=4, sliding=0.9)
    canvas.write({4: 0, 5: 0, 6: 0, 7: 0})
    assert canvas.block == (0, 8)
    canvas.write({0: 0}, remasked=(7,))
    assert canvas.open_in_block() == 4


def test_holes_between_given_tokens_slide_as_well():
    tokens = [MASK, 1, MASK, 2, 2, 2, MASK, 1, 1, MASK]
    canvas = Canvas(tokens=tokens, mask_id=MASK, block_size=2, sliding=0.5)
    assert canvas.blocks == [(0, 2), (2, 4), (6, 8), (8, 10)]
    assert canvas.block == (0, 4)
    canvas.write({0: 0})
    assert canvas.block == (2, 8)


@pytest.mark.parametrize("sliding", [0.25, 0.5, 1.0])
def test_the_loop_does_what_the_definition_says(sliding):
    """The threshold rule, written down for one row at a time: whole canvases, no batch, no cache."""
    model = random_model(tiny_config("llada"), std=0.6)
    mask, length = model.spec.mask_id, 4
    canvases = canvases_of(model, sliding=sliding)
    fill(model, canvases, policies.get("threshold", threshold=0.5))
    for prompt, canvas in zip(PROMPTS, canvases, strict=True):
        tokens, first, opened, passes = [*prompt, *[mask] * 17], 0, 0, 0
        starts = [*range(len(prompt), len(tokens), length)]
        blocks = [list(range(start, min(start + length, len(tokens)))) for start in starts]
        while mask in tokens:
            while all(tokens[at] != mask for at in blocks[first]):
                first += 1
            while opened < len(blocks) and (
                opened < first + (1 if sliding == 1.0 else 2)
                or sum(tokens[at] != mask for at in blocks[opened - 1]) >= sliding * len(blocks[opened - 1])
            ):
                opened += 1
            plan = PassPlan.whole([len(tokens)], torch.device("cpu"))
            logits = model.predict(torch.tensor([tokens]), plan=plan).logits[0].float()
            logits[:, mask] = -torch.inf
            best, token = logits.softmax(-1).max(-1)
            masked = [at for block in blocks[first:opened] for at in block if tokens[at] == mask]
            commit = {at for at in masked if best[at] > 0.5}
            here = [at for at in blocks[first] if tokens[at] == mask]
            if not commit & set(here):
                commit.add(max(here, key=lambda at: (best[at].item(), -at)))
            for at in commit:
                tokens[at] = int(token[at])
            passes += 1
        assert (canvas.tokens, canvas.passes) == (tokens, passes)


CASES = [("llada", "none"), ("llada", "prefix"), ("llada", "dual"), ("dream", "none"), ("dream", "dual")]


@pytest.mark.parametrize("name", ["threshold", "mean_field", "joint", "fixed", "saber", "credit", "p2"])
@pytest.mark.parametrize(("family", "cache"), CASES)
def test_a_batch_gives_what_each_row_gives_alone(family, cache, name):
    model, settings = random_model(tiny_config(family), std=0.8), Settings(cache=cache, sliding=0.5)
    together, alone = (canvases_of(model, sliding=0.5, size=11) for _ in range(2))
    fill(model, together, name, settings)
    for canvas in alone:
        fill(model, [canvas], name, settings)
    assert [(row.tokens, row.step_map) for row in together] == [(row.tokens, row.step_map) for row in alone]
    assert all(row.finished and model.spec.mask_id not in row.tokens for row in together)


@pytest.mark.parametrize(("family", "cache"), CASES)
def test_a_device_that_begins_passes_early_gives_the_same(family, cache):
    model, settings = random_model(tiny_config(family), std=0.6), Settings(cache=cache, sliding=0.5)
    plain, early = canvases_of(model, sliding=0.5), canvases_of(model, sliding=0.5)
    assert fill(model, plain, "joint", settings) == fill(model, early, "joint", settings, early=True)
    assert [row.tokens for row in plain] == [row.tokens for row in early]


def test_the_first_open_block_progresses_in_every_pass():
    table = torch.full((9, 8), -3.0)
    table[5:, 1] = 4.0  # the second block is sure, the first is not
    canvas = continuing([0], 8, mask_id=MASK, block_size=4, sliding=0.75)
    events = fill(Scripted(table), [canvas], policies.get("threshold", threshold=0.9))
    assert [len(event.committed) for event in events] == [5, 1, 1, 1]
    assert events[0].block == (1, 9)


def test_fewer_passes_than_blocks_are_possible():
    canvas = continuing([0], 12, mask_id=MASK, block_size=2, sliding=0.5)
    fill(Scripted(torch.eye(13, 8) * 0 + torch.tensor([9.0] + [0.0] * 7)), [canvas], "threshold")
    assert canvas.passes == 3  # six blocks, two at a time


def test_rows_that_slide_share_calls_with_rows_that_do_not():
    toy = unmask.load("toy")
    sliding = toy.request("a b c", max_tokens=12, block_size=4, sliding=0.5)
    plain = toy.request("a b c", max_tokens=12, block_size=4)
    alone = [toy.generate("a b c", max_tokens=12, block_size=4, sliding=share) for share in (0.5, 1.0)]
    together = list(toy.run([sliding, plain]))
    assert [(out.canvas_ids, out.step_map) for out in together] == [(out.canvas_ids, out.step_map) for out in alone]
    assert together[0].usage.forward_passes < together[1].usage.forward_passes


@pytest.mark.parametrize("wrong", [0.0, -0.5, 1.5, float("nan"), float("inf")])
def test_a_share_that_is_none_is_refused(wrong):
    with pytest.raises(UnmaskError, match="sliding must be"):
        Settings(sliding=wrong)
