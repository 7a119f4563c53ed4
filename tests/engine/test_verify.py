"""Guesses of coming states: the tokens are those of the plain rule, with as many forward passes or fewer."""

import pytest
import torch
from doubles import Scripted, Watched, continuing, events_of, fill, requests_of, tiny_config

import unmask
from unmask import policies, tasks
from unmask.cache.storage import StoragePool
from unmask.engine.canvas import Canvas
from unmask.engine.runner import Runner
from unmask.errors import UnmaskError, WorkFailed
from unmask.models.random_weights import random_model
from unmask.policies import is_pure, needs_of
from unmask.settings import Settings

MASK = 7
PROMPTS = ((3, 1, 4, 1, 5), (9, 2), (6, 5, 3, 5, 8, 9, 7, 9, 3), (2,))
LENGTHS = (17, 9, 1, 12)
PURE = [name for name in policies.names() if is_pure(policies.get(name)) and not needs_of(policies.get(name))]
SCHEDULES = [
    policies.get("fixed", tokens_per_pass=3),
    policies.get("fixed", passes=3),
    policies.get("fixed", passes=9, schedule="dream"),  # with idle passes
]


@pytest.fixture(scope="module")
def models():
    return {family: random_model(tiny_config(family), std=0.8) for family in ("llada", "dream")}


def ragged(model, block_size=4):
    rows = zip(PROMPTS, LENGTHS, strict=True)
    return [continuing(list(p), n, mask_id=model.spec.mask_id, block_size=block_size) for p, n in rows]


def verifies(model, policy, make, verify, settings=None, **options):
    """Fill canvases with and without guesses, and compare; returns both."""
    settings = settings or Settings()
    plain, guessed = make(), make()
    fill(model, plain, policy, settings)
    events = fill(model, guessed, policy, settings.with_(verify=verify), **options)
    assert [canvas.tokens for canvas in guessed] == [canvas.tokens for canvas in plain]
    assert all(now.passes <= before.passes for now, before in zip(guessed, plain, strict=True))
    assert sum(len(event.committed) for event in events) == sum(len(canvas.step_map) for canvas in guessed)
    return plain, guessed


def test_enough_policies_are_pure():
    assert {"fixed", "threshold", "mean_field", "joint", "eb", "entropy", "margin"} <= set(PURE)


@pytest.mark.parametrize("policy", [*PURE, *SCHEDULES], ids=str)
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_ragged_batch_has_the_tokens_of_the_plain_rule(models, family, policy):
    model = models[family]
    verifies(model, policy, lambda: ragged(model), 3)


@pytest.mark.parametrize("block_size", [1, 4, 32])
@pytest.mark.parametrize("verify", [1, 2, 16])
def test_any_number_of_guesses_and_any_block_will_do(models, block_size, verify):
    model = models["llada"]
    for policy in ("threshold", "fixed"):
        plain, guessed = verifies(model, policy, lambda: ragged(model, block_size), verify)
    assert sum(c.passes for c in guessed) < sum(c.passes for c in plain) or block_size == 1


@pytest.mark.parametrize("policy", SCHEDULES, ids=str)
def test_a_schedule_counts_decisions_and_not_forward_passes(models, policy):
    model = models["llada"]
    for verify in (1, 2, 5):
        verifies(model, policy, lambda: ragged(model, 16), verify)
    sure = Scripted(torch.arange(25.0)[:, None] * torch.nn.functional.one_hot(torch.tensor(1), 8))
    plain, guessed = verifies(sure, policy, lambda: [continuing([0], 24, mask_id=MASK, block_size=12)], 2)
    assert guessed[0].passes < plain[0].passes


def test_a_row_in_a_batch_has_the_passes_that_it_has_alone(models):
    model = models["dream"]
    together, alone = ragged(model), ragged(model)
    fill(model, together, "mean_field", Settings(verify=4))
    for canvas in alone:
        fill(model, [canvas], "mean_field", Settings(verify=4))
    assert [canvas.step_map for canvas in together] == [canvas.step_map for canvas in alone]


def test_holes_between_given_tokens_are_filled_as_by_the_plain_rule(models):
    model = models["llada"]
    mask = model.spec.mask_id
    text = [mask, 3, mask, mask, 5, 5, 5, 5, 5, mask, 1, 1, mask, mask, mask, 8]

    def make():
        return [Canvas(tokens=list(text), mask_id=mask, block_size=size) for size in (2, 3)]

    for policy in ("fixed", "threshold", "mean_field"):
        verifies(model, policy, make, 3)


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_rows_that_join_and_groups_that_share_a_call_keep_their_tokens(models, family):
    model, found = models[family], []
    for settings in (Settings(), Settings(verify=3)):
        canvases = ragged(model)
        first = requests_of(model, canvases[:2], "fixed", settings)
        late = [requests_of(model, canvases[2:3], "fixed", settings), requests_of(model, canvases[3:], "eb", settings)]
        runner = Runner(model, StoragePool())
        list(events_of(first, runner, rows=3, late=lambda number, late=late: late.pop() if late else []))
        found.append([canvas.tokens for canvas in canvases])
    assert found[0] == found[1]


@pytest.mark.parametrize("policy", ["fixed", "threshold", "mean_field"])
def test_the_early_runner_gives_the_same(models, policy):
    model = models["llada"]
    plain, early = ragged(model), ragged(model)
    assert fill(model, plain, policy, Settings(verify=3)) == fill(model, early, policy, Settings(verify=3), early=True)
    assert [canvas.tokens for canvas in plain] == [canvas.tokens for canvas in early]


def test_a_text_that_ends_stops_after_the_same_block():
    table = torch.zeros(13, 8)
    table[:, 1] = 4.0
    table[4, 5] = 9.0  # an end in the first block
    made = []
    for verify in (0, 4):
        canvas = continuing([0], 12, mask_id=MASK, block_size=4)
        settings = Settings(early_stop=True, verify=verify)
        events = fill(Scripted(table), [canvas], policies.get("fixed", tokens_per_pass=2), settings, ends=[5])
        made.append(canvas)
        assert {commit.position for event in events for commit in event.committed} == {1, 2, 3, 4}
    plain, guessed = made
    assert guessed.tokens == plain.tokens == [0, 1, 1, 1, 5, *[6] * 8]
    assert guessed.passes <= plain.passes == 2


def test_where_predictions_do_not_change_every_guess_comes_true():
    table = torch.arange(13.0)[:, None] * torch.nn.functional.one_hot(torch.tensor(1), 8)  # surer to the right
    model = Watched(Scripted(table))
    canvas = continuing([0], 12, mask_id=MASK, block_size=6)
    fill(model, [canvas], "fixed", Settings(verify=3))
    assert [rows for rows, _ in model.computed] == [4] * canvas.passes
    # 1 commit; 3 more by 2 guesses, and the full block is not next; 2 to the end of the block and 1 in the next; ...
    assert [list(canvas.step_map.values()).count(number) for number in range(canvas.passes)] == [1, 3, 3, 3, 2]


def test_sure_blocks_are_filled_several_at_a_time():
    table = torch.zeros(25, 8)
    table[:, 1] = 9.0
    counts = []
    for verify in (0, 1, 2, 4):
        canvas = continuing([0], 24, mask_id=MASK, block_size=2)
        fill(Scripted(table), [canvas], "threshold", Settings(verify=verify))
        counts.append(canvas.passes)
    assert counts == [12, 7, 6, 6]


def test_events_name_the_commits_of_both_blocks_and_traces_have_their_figures():
    table = torch.zeros(9, 8)
    table[:, 1] = torch.tensor([0.0, 9, 8, 7, 6, 5, 4, 3, 2])
    model, plain, guessed = Scripted(table), {}, {}
    llm = unmask.load("toy")
    for figures, verify in ((plain, 0), (guessed, 3)):
        out = llm.generate("a b c", policy="fixed", max_tokens=10, block_size=4, verify=verify, trace=True)
        for step in out.trace.steps:
            figures.update({commit["position"]: commit for commit in step["committed"]})
    assert guessed == plain
    canvas = continuing([0], 8, mask_id=MASK, block_size=4)
    events = fill(model, [canvas], "fixed", Settings(verify=3))
    across = [event for event in events if any(commit.position >= event.block[1] for commit in event.committed)]
    assert len(across) == 1
    assert across[0].block == (1, 5)


@pytest.mark.parametrize("verify", [0, 2])
def test_logits_that_break_in_a_later_state_fail_the_row(verify):
    class Breaking(Scripted):
        def predict(self, tokens, **options):
            found = super().predict(tokens, **options)
            found.logits[(tokens != MASK).sum(-1) >= 3] = torch.nan
            return found

    model = Breaking(torch.arange(8.0)[:, None] * torch.nn.functional.one_hot(torch.tensor(1), 8))
    canvas = continuing([0], 7, mask_id=MASK, block_size=7)
    with pytest.raises(WorkFailed, match="no usable logits"):
        fill(model, [canvas], "fixed", Settings(verify=verify))


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"cache": "dual"}, "verify=2 does not go with cache='dual': set cache='none' or verify=0"),
        ({"temperature": 0.5}, "verify=2 does not go with temperature=0.5: set temperature=0.0 or verify=0"),
        ({"sliding": 0.5}, "verify=2 does not go with sliding=0.5: set sliding=1.0 or verify=0"),
        ({"cfg_scale": 1.0}, r"verify=2 does not go with cfg_scale=1.0: set cfg_scale=0.0 or verify=0"),
        ({"policy": "klass"}, "verify=2 does not go with the policy klass, which"),
        ({"policy": "random"}, "verify=2 does not go with the policy random, which"),
        ({"policy": "dawn"}, "verify=2 does not go with the policy dawn, which"),
        ({"policy": "wino"}, "verify=2 does not go with the policy wino, which"),
    ],
)
def test_what_guesses_do_not_go_with_is_refused_in_one_line(options, line):
    with pytest.raises(UnmaskError, match=line) as caught:
        unmask.load("toy").generate("a", verify=2, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrong", [-1, 17, True])
def test_a_number_of_guesses_that_is_none_is_refused(wrong):
    with pytest.raises(UnmaskError, match="verify must be"):
        Settings(verify=wrong)


@pytest.mark.slow
@pytest.mark.parametrize("task", tasks.names())
def test_tiny_writes_the_same_texts_in_fewer_passes(task):
    llm, found = unmask.load("tiny"), tasks.get(task)
    prompts = [item.prompt for item in found.generate(5, 2)]
    for policy, room in (("fixed", 24), ("mean_field", found.max_tokens)):
        options = {"policy": policy, "max_tokens": room, "block_size": found.block_size}
        plain, guessed = (llm.generate(prompts, verify=verify, **options) for verify in (0, 3))
        assert [out.canvas_ids for out in guessed] == [out.canvas_ids for out in plain]
        passes = [sum(out.usage.forward_passes for out in outs) for outs in (guessed, plain)]
        assert passes[0] < passes[1] if policy == "fixed" else passes[0] <= passes[1]
