import pytest
import torch
from doubles import Scripted, continuing, fill, requests_of, tiny_config

from unmask import policies
from unmask.cache.storage import StoragePool
from unmask.engine.canvas import Canvas
from unmask.engine.decode import decode
from unmask.engine.runner import Runner
from unmask.engine.scheduler import Scheduler
from unmask.errors import UnmaskError
from unmask.models.base import Prediction
from unmask.models.random_weights import random_model
from unmask.settings import Settings
from unmask.types import Decision


def table(*probabilities: float, vocab: int = 8) -> torch.Tensor:
    """Position i gives `probabilities[i]` to token i % 5, the rest evenly to the others."""
    rows = []
    for index, p in enumerate(probabilities):
        row = torch.full((vocab,), (1 - p) / (vocab - 1))
        row[index % 5] = p
        rows.append(row.log())
    return torch.stack(rows)


def run(model, policy, prompts=((0, 1),), *, max_tokens=4, block_size=4, settings=None, **options):
    settings = settings or Settings()
    canvases = [continuing(list(p), max_tokens, mask_id=model.spec.mask_id, block_size=block_size) for p in prompts]
    return canvases, fill(model, canvases, policy, settings, **options)


def test_one_event_per_pass_tells_what_was_committed():
    model = Scripted(table(0.5, 0.5, 0.6, 0.9, 0.7, 0.8))
    [canvas], events = run(model, "fixed")
    assert [event.step for event in events] == [0, 1, 2, 3]
    assert [[(c.position, c.token_id) for c in event.committed] for event in events] == [
        [(3, 3)],
        [(5, 0)],
        [(4, 4)],
        [(2, 2)],
    ]
    assert [event.finished for event in events] == [False, False, False, True]
    assert canvas.tokens == [0, 1, 2, 3, 4, 0]
    assert canvas.passes == 4


def test_blocks_are_filled_from_left_to_right():
    model = Scripted(table(0.5, 0.5, 0.6, 0.9, 0.7, 0.8))
    _, events = run(model, "fixed", block_size=2)
    assert [event.block for event in events] == [(2, 4), (2, 4), (4, 6), (4, 6)]


def test_rows_of_a_batch_finish_on_their_own():
    model = Scripted(table(*[0.99] * 4, *[0.5] * 8))
    canvases, events = run(model, "threshold", prompts=[(0,), (0, 1, 2, 3)], max_tokens=3)
    assert [canvas.passes for canvas in canvases] == [1, 3]
    assert [(event.row, event.step) for event in events] == [(0, 0), (1, 0), (1, 1), (1, 2)]


def test_the_mask_token_is_never_committed():
    likely_mask = torch.zeros(6, 8)
    likely_mask[:, 7] = 20.0
    [canvas], _ = run(Scripted(likely_mask), "threshold")
    assert 7 not in canvas.tokens


def test_a_model_that_only_proposes_masks_is_reported_when_nothing_suppresses_them():
    likely_mask = torch.zeros(6, 8)
    likely_mask[:, 7] = 20.0
    with pytest.raises(UnmaskError, match="only the mask token"):
        run(Scripted(likely_mask), "threshold", settings=Settings(suppress_mask_token=False))


@pytest.mark.parametrize("bad", [torch.nan, -torch.inf])
def test_unusable_logits_are_reported_in_one_line(bad):
    broken = table(0.5, 0.5, 0.5, 0.5, 0.5, 0.5)
    broken[4] = bad
    with pytest.raises(UnmaskError, match="no usable logits"):
        run(Scripted(broken), "mean_field")


def test_unusable_logits_of_a_decoded_position_do_no_harm():
    broken = table(0.5, 0.5, 0.5, 0.5, 0.5, 0.5)
    broken[0] = torch.nan
    [canvas], _ = run(Scripted(broken), "mean_field")
    assert canvas.finished


def test_idle_passes_do_not_hide_a_model_that_only_proposes_masks():
    likely_mask = torch.zeros(6, 8)
    likely_mask[:, 7] = 20.0
    policy = policies.get("entropy", schedule="dream")
    with pytest.raises(UnmaskError, match="only the mask token"):
        run(Scripted(likely_mask), policy, settings=Settings(suppress_mask_token=False))


def test_wino_spends_its_remasks_on_decoded_positions_only():
    """Given text inside a block is never doubted, so it must not use up the allowance either."""
    table_ = table(0.9, 0.9, 0.9, 0.9, 0.9, 0.9)
    canvas = Canvas(tokens=[7, 3, 7, 4, 7, 7], mask_id=7, block_size=6)
    seen = []

    class Spy(policies.Wino):
        def select(self, view, state=None):
            decision, state = super().select(view, state)
            seen.append((view.decoded.tolist(), decision.remask.tolist()))
            return decision, state

    fill(Scripted(table_), [canvas], Spy(draft_threshold=0.95))
    for decoded, remask in seen:
        assert not decoded[0][1]
        assert not remask[0][1]
        assert not remask[0][3]


def test_an_idle_pass_of_dreams_schedule_counts_as_a_forward_pass():
    model = Scripted(table(*[0.5] * 40))
    [canvas], events = run(model, policies.get("entropy", schedule="dream"), max_tokens=32, block_size=32)
    assert [len(event.committed) for event in events] == [0, *[1] * 30, 2]
    assert canvas.passes == 32


def test_early_stop_fills_the_rest_after_the_block_that_ends_the_text():
    ends = table(*[0.9] * 10)
    ends[3] = 0.0
    ends[3, 6] = 9.0
    model = Scripted(ends)
    settings = Settings(early_stop=True)
    [canvas], events = run(model, "fixed", max_tokens=8, block_size=2, settings=settings, ends=[6])
    assert canvas.filled == [2, 6, 6, 6, 6, 6, 6, 6]
    assert len(events) == 2
    assert events[-1].finished
    [canvas], events = run(model, "fixed", max_tokens=8, block_size=2, settings=Settings(), ends=[6])
    assert len(events) == 8


def test_end_of_text_can_be_ruled_out():
    ends = table(*[0.9] * 6)
    ends[3] = 0.0
    ends[3, 6] = 9.0
    [canvas], _ = run(Scripted(ends), "fixed", settings=Settings(logits_eos_inf=True))
    assert 6 not in canvas.tokens


@pytest.mark.parametrize("policy", ["fixed", "mean_field", "threshold"])
def test_end_of_text_can_be_put_last(policy):
    ends = table(*[0.5] * 6)
    for position, token in ((3, 6), (4, 5)):
        ends[position] = 0.0
        ends[position, token] = 9.0
    [canvas], events = run(Scripted(ends), policy, settings=Settings(confidence_eos_eot_inf=True))
    order = [commit.position for event in events for commit in event.committed]
    assert sorted(order[:2]) == [2, 5]
    assert canvas.tokens[3:5] == [6, 5]


class Meddler(policies.Policy):
    """Asks for everything it must not have."""

    def select(self, view, state=None):
        everything = torch.ones_like(view.masked)
        return Decision(commit=everything, score=torch.zeros_like(view.logits[..., 0]), remask=everything), None


def test_a_policy_cannot_touch_what_is_not_open():
    model = Scripted(table(*[0.5] * 6))
    canvas = Canvas(tokens=[0, 7, 3, 7, 1], mask_id=7, block_size=5)
    events = fill(model, [canvas], Meddler())
    assert canvas.tokens[0::2] == [0, 3, 1]
    assert all(event.remasked == () for event in events)


def test_wino_is_refused_on_a_shifted_head_and_with_a_cache():
    shifted = Scripted(table(*[0.5] * 6), shifted=True)
    with pytest.raises(UnmaskError, match="shifted"):
        run(shifted, "wino")
    for name in ("wino", "dawn", "dapd", "klass"):
        with pytest.raises(UnmaskError, match="cache='dual'"):
            run(Scripted(table(*[0.5] * 6)), name, settings=Settings(cache="dual"))


NAMES = [
    "bound",
    "certainty_prior",
    "context_threshold",
    "credit",
    "cumulative",
    "dapd",
    "dawn",
    "eb",
    "entropy",
    "factor",
    "fixed",
    "hierarchical",
    "joint",
    "klass",
    "local_leap",
    "margin",
    "mean_field",
    "p2",
    "position_entropy",
    "random",
    "remask",
    "saber",
]
PROMPTS = ((3, 1, 4, 1, 5), (9, 2), (6, 5, 3, 5, 8, 9, 7, 9, 3), (2,))


def test_the_list_of_policies_above_is_complete():
    ours = {name for name in policies.names() if type(policies.get(name)).__module__.startswith("unmask.")}
    assert {*NAMES, "threshold", "wino"} == ours


# wino is not defined for Dream's shifted head.
EVERYWHERE = [("llada", name) for name in (*NAMES, "threshold", "wino")]
EVERYWHERE += [("dream", name) for name in (*NAMES, "threshold")]


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 0.7])
@pytest.mark.parametrize(("family", "name"), EVERYWHERE)
def test_a_batch_of_ragged_prompts_gives_what_each_gives_alone(family, name, temperature):
    model = random_model(tiny_config(family), std=0.4)
    policy = policies.preset(name, family)
    settings = Settings(temperature=temperature, top_p=0.95, seed=5)
    together, _ = run(model, policy, PROMPTS, max_tokens=8, block_size=3, settings=settings)
    for prompt, canvas in zip(PROMPTS, together, strict=True):
        [alone], _ = run(model, policy, [prompt], max_tokens=8, block_size=3, settings=settings)
        assert canvas.tokens == alone.tokens
        assert canvas.step_map == alone.step_map


def test_no_rows_give_no_events():
    model = random_model(tiny_config("llada"))
    assert not fill(model, [], "fixed", Settings(cache="dual"))


@pytest.mark.parametrize("name", ["mean_field", "random"])
def test_a_seed_gives_the_same_tokens_again_and_another_seed_others(name):
    model = random_model(tiny_config("llada"), std=0.4)
    tokens = [
        run(model, name, max_tokens=20, settings=Settings(temperature=1.0, seed=seed))[0][0].tokens
        for seed in (1, 1, 2)
    ]
    assert tokens[0] == tokens[1] != tokens[2]


def test_guidance_moves_the_logits_away_from_those_without_the_prompt():
    model = random_model(tiny_config("llada"), std=0.4)
    prompt, new, seen = [3, 1, 4], 5, []

    class Spy(policies.Policy):
        def select(self, view, state=None):
            seen.append(view.logits)
            return Decision(commit=view.masked, score=torch.zeros_like(view.logits[..., 0])), None

    run(model, Spy(), [prompt], max_tokens=new, block_size=new, settings=Settings(cfg_scale=1.5))
    tokens = torch.tensor([prompt + [model.spec.mask_id] * new])
    blind = torch.full_like(tokens, model.spec.mask_id)
    conditional, unconditional = model.predict(tokens).logits, model.predict(blind).logits
    expected = (unconditional + 2.5 * (conditional - unconditional))[:, 3:]
    expected = expected.index_fill(-1, torch.tensor([model.spec.mask_id]), -torch.inf)
    torch.testing.assert_close(seen[0], expected)


def test_guidance_hides_the_prompt_from_the_unguided_half():
    halves = []

    class Echo(Scripted):
        def predict(self, tokens, **options):
            halves.append(tokens[0, :2].tolist())
            return super().predict(tokens, **options)

    run(Echo(table(*[0.5] * 6)), "threshold", [(0, 1)], settings=Settings(cfg_scale=1.0))
    assert halves[:2] == [[0, 1], [7, 7]]


def test_a_view_tells_where_its_block_stands_in_the_generation():
    model, seen = Scripted(table(*[0.5] * 12)), []

    class Spy(policies.Fixed):
        def select(self, view, state=None):
            seen.append((view.start[0], view.step[0], view.remaining[0], view.total[0], view.tokens[0].tolist()))
            return super().select(view, state)

    run(model, Spy(tokens_per_pass=2), [(0, 1)], max_tokens=5, block_size=4)
    assert [tuple(map(int, each[:4])) for each in seen] == [(2, 0, 5, 5), (2, 1, 3, 5), (6, 0, 1, 5)]
    assert seen[-1][4] == [7]


def test_a_policy_that_takes_back_all_it_commits_is_stopped():
    class Penelope(policies.Policy):
        remasks = True

        def select(self, view, state=None):
            score = torch.zeros_like(view.logits[..., 0])
            one = torch.arange(view.masked.shape[1]) == view.masked.long().argmax(-1, keepdim=True)
            return Decision(commit=one & view.masked, score=score, remask=view.decoded), None

    with pytest.raises(UnmaskError, match="takes back what it commits"):
        run(Scripted(table(*[0.5] * 6)), Penelope())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_logits_that_a_model_keeps_are_left_alone(dtype):
    kept = table(*[0.5] * 4).to(dtype)

    class Keeping(Scripted):
        capabilities = Scripted.capabilities

        def predict(self, tokens, **options):
            return Prediction(logits=kept[None])

    run(Keeping(kept), "fixed", [(0, 1)])
    assert torch.equal(kept, table(*[0.5] * 4).to(dtype))


def test_scores_follow_the_public_codes_dtype_on_request():
    """Without kernels, half precision is widened once."""
    seen = []

    class Spy(policies.Policy):
        def select(self, view, state=None):
            seen.append((view.logits.dtype, view.working(view.logits).dtype))
            return Decision(commit=view.masked, score=torch.zeros_like(view.logits[..., 0]).float()), None

    for family in ("llada", "dream"):
        model = random_model(tiny_config(family), dtype=torch.bfloat16)
        for reference in (False, True):
            run(model, Spy(), settings=Settings(reference_dtype=reference))
    f32, f64, bf16 = torch.float32, torch.float64, torch.bfloat16
    assert seen == [(f32, f32), (f64, f64), (f32, f32), (bf16, bf16)]


def test_a_row_with_unusable_logits_fails_alone_also_in_the_first_pass():
    table_ = table(*[0.6] * 12)
    table_[7] = torch.nan
    model = Scripted(table_)
    canvases = [continuing([0] * n, 4, mask_id=7, block_size=2) for n in (1, 6, 2)]
    events = list(decode(Scheduler(requests_of(model, canvases, "fixed")), Runner(model, StoragePool())))
    errors = [event for event in events if event.error is not None]
    assert [(event.row, event.step, event.finished) for event in errors] == [(1, 0, True)]
    assert "no usable logits" in str(errors[0].error)
    assert [canvas.finished for canvas in canvases] == [True, False, True]
    assert max(event.step for event in events if event.row == 2) == 3


class Failing(policies.Policy):
    """Fails as a plug-in may."""

    def select(self, view, state=None):
        return view.logits[None, 7]


def test_a_policy_that_fails_takes_only_its_own_rows_with_it():
    model = Scripted(table(*[0.6] * 8))
    canvases = [continuing([0] * n, 4, mask_id=7, block_size=2) for n in (1, 2, 3)]
    (one,), two, (three,) = (
        requests_of(model, [canvas], policy)
        for canvas, policy in zip(canvases, ("fixed", Failing(), "eb"), strict=True)
    )
    events = list(decode(Scheduler([one, *two, three]), Runner(model, StoragePool())))
    assert {event.row for event in events if event.error is not None} == {1}
    assert [canvas.finished for canvas in canvases] == [True, False, True]
    message = next(str(event.error) for event in events if event.error is not None)
    assert message.startswith("the policy Failing failed: ")
