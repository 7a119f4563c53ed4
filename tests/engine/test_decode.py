from dataclasses import dataclass, replace

import pytest
import torch
from doubles import Scripted, Watched, tiny_config

from unmask import policies
from unmask.engine.canvas import Canvas
from unmask.engine.decode import decode
from unmask.errors import UnmaskError, WorkFailed
from unmask.models.base import Prediction
from unmask.models.random_weights import random_model
from unmask.models.transformer import Transformer
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
    canvases = [
        Canvas.continuing(list(p), max_tokens, mask_id=model.spec.mask_id, block_size=block_size, seed=settings.seed)
        for p in prompts
    ]
    policy = policies.get(policy) if isinstance(policy, str) else policy
    return canvases, list(decode(model, canvases, policy, settings, **options))


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

    list(decode(Scripted(table_), [canvas], Spy(draft_threshold=0.95), Settings()))
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
    ended = lambda canvas: 6 in canvas.prefix(whole_blocks=True)  # noqa: E731
    [canvas], events = run(model, "fixed", max_tokens=8, block_size=2, settings=settings, ended=ended)
    assert canvas.filled == [2, 6, 6, 6, 6, 6, 6, 6]
    assert len(events) == 2
    assert events[-1].finished
    [canvas], events = run(model, "fixed", max_tokens=8, block_size=2, settings=Settings(), ended=ended)
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
    events = list(decode(model, [canvas], Meddler(), Settings()))
    assert canvas.tokens[0::2] == [0, 3, 1]
    assert all(event.remasked == () for event in events)


def test_wino_is_refused_on_a_shifted_head_and_with_a_cache():
    shifted = Scripted(table(*[0.5] * 6), shifted=True)
    with pytest.raises(UnmaskError, match="shifted"):
        run(shifted, "wino")
    for name in ("wino", "dawn", "dapd", "klass"):
        with pytest.raises(UnmaskError, match="cache='dual'"):
            run(Scripted(table(*[0.5] * 6)), name, settings=Settings(cache="dual"))


NAMES = ["dapd", "dawn", "eb", "entropy", "factor", "fixed", "klass", "local_leap", "margin", "mean_field", "random"]
PROMPTS = ((3, 1, 4, 1, 5), (9, 2), (6, 5, 3, 5, 8, 9, 7, 9, 3), (2,))


def test_the_list_of_policies_above_is_complete():
    assert sorted([*NAMES, "threshold", "wino"]) == policies.names()


# wino is not defined for Dream's shifted head.
EVERYWHERE = [("llada", name) for name in (*NAMES, "threshold", "wino")]
EVERYWHERE += [("dream", name) for name in (*NAMES, "threshold")]


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize(("family", "name"), EVERYWHERE)
def test_a_batch_of_ragged_prompts_gives_what_each_gives_alone(family, name, temperature):
    model = random_model(tiny_config(family), std=0.4)
    policy = policies.preset(name, family)
    settings = Settings(temperature=temperature, top_p=0.95, seed=5)
    together, _ = run(model, policy, PROMPTS, max_tokens=13, block_size=5, settings=settings)
    for prompt, canvas in zip(PROMPTS, together, strict=True):
        [alone], _ = run(model, policy, [prompt], max_tokens=13, block_size=5, settings=settings)
        assert canvas.tokens == alone.tokens
        assert canvas.step_map == alone.step_map


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
    options = {"max_tokens": 13, "block_size": 5, "settings": settings, "ended": lambda canvas: 7 in canvas.tokens}
    model = Watched(random_model(tiny_config(family), std=0.4))
    expected, events = run(model, name, PROMPTS, **options)
    computed = list(model.computed)
    model.computed.clear()
    monkeypatch.setattr("unmask.engine.decode._works_on_its_own", lambda device: True)
    assert run(model, name, PROMPTS, **options) == (expected, events)
    assert model.computed == computed


@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1]])
@pytest.mark.parametrize(("family", "name"), [("llada", "threshold"), ("dream", "mean_field"), ("llada", "wino")])
def test_whole_canvases_with_a_block_to_come_are_predicted_again_before_the_read(family, name, prompts, monkeypatch):
    model = Watched(random_model(tiny_config(family), std=0.4))
    expected, events = run(model, name, prompts, max_tokens=17, block_size=5)
    computed, ahead = list(model.computed), []
    model.computed.clear()

    def reading(told):
        passes = len(ahead) + 1
        return lambda: ahead.append(len(model.computed) > passes) or told.tolist()

    monkeypatch.setattr("unmask.engine.decode._works_on_its_own", lambda device: True)
    monkeypatch.setattr("unmask.engine.decode._reading", reading)
    assert run(model, name, prompts, max_tokens=17, block_size=5) == (expected, events)
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
    expected = run(model, "fixed", PROMPTS[:1], max_tokens=10, block_size=5, settings=settings)
    computed, ahead = list(model.computed), []
    model.computed.clear()

    def reading(told):
        passes = len(ahead) + 1
        return lambda: ahead.append(len(model.computed) > passes) or told.tolist()

    monkeypatch.setattr("unmask.engine.decode._works_on_its_own", lambda device: True)
    monkeypatch.setattr("unmask.engine.decode._reading", reading)
    assert run(model, "fixed", PROMPTS[:1], max_tokens=10, block_size=5, settings=settings) == expected
    assert model.computed == computed
    assert ahead == [True, True, True, True, False] * 2
    with pytest.raises(WorkFailed, match="commits more than it said"):
        run(model, Announced(), PROMPTS[:1], max_tokens=10, block_size=5, settings=settings)


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
    _, events = run(model, "fixed", max_tokens=8, settings=Settings(cache="dual"))
    assert model.predictions == len(events) == 8


def test_no_rows_give_no_events():
    model = random_model(tiny_config("llada"))
    assert not list(decode(model, [], policies.get("fixed"), Settings(cache="dual")))


def test_policies_that_can_be_captured_are_known():
    assert PURE == ["eb", "entropy", "factor", "fixed", "local_leap", "margin", "mean_field", "threshold"]
    assert not policies.is_pure(policies.get("fixed", schedule="dream"))
    assert policies.is_pure(policies.get("fixed", schedule="dream", passes=3))


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("name", PURE)
@pytest.mark.parametrize(("family", "cache", "refresh"), [("llada", "none", "block"), ("dream", "dual", "drift:0.05")])
def test_decisions_as_a_function_of_tensors_are_the_same(family, cache, refresh, name, own, monkeypatch):
    """As they are captured on a CUDA device; `own`: they may write to their logits, which nobody reads afterwards."""
    model, kinds = random_model(tiny_config(family), std=0.4), []
    options = {"max_tokens": 13, "block_size": 5, "settings": Settings(cache=cache, refresh=refresh)}
    expected = run(model, name, PROMPTS, **options)

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
    assert run(model, name, PROMPTS, **options) == expected
    assert kinds


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


@pytest.mark.parametrize("settings", [Settings(), Settings(logits_eos_inf=True, confidence_eos_eot_inf=True)])
@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("name", ["fixed", "mean_field", "klass"])
def test_a_model_in_half_precision_is_decoded_as_if_its_logits_were_widened(family, name, settings, monkeypatch):
    model = random_model(tiny_config(family), std=0.4, dtype=torch.bfloat16)
    options = {"max_tokens": 13, "block_size": 5, "settings": settings}
    found = run(model, name, PROMPTS, **options)
    monkeypatch.setattr("unmask.engine.observe._HALF", ())
    assert found == run(model, name, PROMPTS, **options)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_logits_that_a_model_keeps_are_left_alone(dtype, monkeypatch):
    monkeypatch.setattr("unmask.engine.observe.kernels_run", lambda device: True)  # then nothing is widened
    kept = table(*[0.5] * 4).to(dtype)

    class Keeping(Scripted):
        def predict(self, tokens, **options):
            return Prediction(logits=kept[None])

    run(Keeping(kept), "fixed", [(0, 1)])
    assert torch.equal(kept, table(*[0.5] * 4).to(dtype))


@pytest.mark.parametrize("kernels", [False, True])
def test_scores_follow_the_public_codes_dtype_on_request(kernels, monkeypatch):
    """Logits stay in half precision where kernels read them, and are widened once where none do."""
    monkeypatch.setattr("unmask.engine.observe.kernels_run", lambda device: kernels)
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
    as_it_comes = bf16 if kernels else f32
    assert seen == [(as_it_comes, f32), (f64, f64), (as_it_comes, f32), (bf16, bf16)]
