import asyncio
import inspect
import json
import random
from importlib.metadata import EntryPoint

import pytest
import torch

import unmask
from unmask import policies
from unmask.cache.storage import StoragePool
from unmask.engine.decode import decode
from unmask.engine.runner import TimedRunner
from unmask.engine.scheduler import Scheduler
from unmask.engine.text import Ending, TextStream
from unmask.errors import UnmaskError
from unmask.models.toy import SENTENCE
from unmask.settings import Settings


@pytest.fixture(scope="module")
def toy():
    return unmask.load("toy")


def test_the_output_ends_before_the_end_of_text(toy):
    out = toy.generate("Hello", max_tokens=200)
    assert out.text == SENTENCE
    assert out.finish_reason == "stop"
    assert out.usage.completion_tokens == len(out.token_ids) == len(SENTENCE)
    assert out.usage.prompt_tokens == len("Hello") + 1  # the separator
    assert len(out.canvas_ids) == len(out.step_map) == 200
    assert set(out.canvas_ids[len(SENTENCE) :]) == {toy.spec.eos_id}
    assert max(out.step_map) == out.usage.forward_passes - 1


def test_a_text_that_fills_the_canvas_ends_by_length(toy):
    out = toy.generate("Hello", max_tokens=10)
    assert out.text == SENTENCE[:10]
    assert out.finish_reason == "length"


def test_one_token_at_a_time_costs_one_pass_each_and_mean_field_far_fewer(toy):
    slow = toy.generate("Hello", policy="fixed", max_tokens=160)
    fast = toy.generate("Hello", max_tokens=160)
    assert slow.usage.forward_passes == 160
    assert fast.usage.forward_passes * 3 < 160
    assert fast.text == slow.text == SENTENCE


def test_a_list_in_gives_a_list_out_in_the_same_order(toy):
    outs = toy.generate(["a much longer prompt than the other", "b"], max_tokens=20, batch_size=1)
    assert [out.usage.prompt_tokens for out in outs] == [36, 2]
    assert toy.generate([], max_tokens=4) == []


def test_token_ids_are_taken_as_they_are(toy):
    ids = toy.codec.encode("Hello")
    assert toy.generate(ids, max_tokens=30) == toy.generate("Hello", max_tokens=30)
    assert len(toy.generate([ids, ids], max_tokens=5)) == 2
    with pytest.raises(UnmaskError, match="token ids in"):
        toy.generate([10**6], max_tokens=5)


def test_a_stop_string_cuts_text_and_tokens(toy):
    out = toy.generate("Hello", max_tokens=200, stop=("guess", "once"))
    assert out.text == "Every masked letter is "
    assert out.finish_reason == "stop"
    assert toy.codec.decode(out.token_ids) == out.text
    assert len(out.canvas_ids) == 200


def test_a_stop_token_cuts_too(toy):
    comma = toy.codec.token_id(",")
    assert toy.generate("Hello", max_tokens=200, stop_token_ids=(comma,)).text == SENTENCE.split(",")[0]


@pytest.mark.parametrize("stop", [(), ("alone",)])
def test_early_stop_spares_passes_and_keeps_the_text(toy, stop):
    whole = toy.generate("Hello", max_tokens=200, policy="fixed", stop=stop)
    early = toy.generate("Hello", max_tokens=200, policy="fixed", stop=stop, early_stop=True)
    assert early.text == whole.text
    assert early.usage.forward_passes < whole.usage.forward_passes
    assert len(early.canvas_ids) == 200


def test_a_name_takes_the_familys_preset_and_an_object_is_used_as_it_is(toy):
    named = toy.generate("Hello", policy="mean_field", max_tokens=60, trace=True)
    assert named.trace.header["policy"] == {"name": "mean_field"} | named.trace.header["policy"]
    assert named.trace.header["settings"]["block_size"] == 20
    given = toy.generate("Hello", policy=policies.MeanField(threshold=0.99), max_tokens=60, trace=True)
    assert given.trace.header["policy"]["threshold"] == 0.99
    assert toy.generate("Hello", policy="klass", max_tokens=5, trace=True).trace.header["settings"]["block_size"] == 64
    assert toy.generate("Hello", policy="fixed", max_tokens=5, trace=True).trace.header["settings"]["block_size"] == 32


def test_a_policy_that_nobody_registered_works(toy):
    class Everything(policies.Policy):
        def select(self, view, state=None):
            score = torch.zeros_like(view.logits[..., 0])
            return unmask.Decision(commit=view.masked, score=score), None

    assert toy.generate("Hello", policy=Everything(), max_tokens=64).usage.forward_passes == 2


def test_a_field_given_twice_or_misspelt_is_an_error(toy):
    with pytest.raises(UnmaskError, match="max_tokens is given twice"):
        toy.generate("Hello", settings=Settings(max_tokens=5), max_tokens=6)
    with pytest.raises(UnmaskError, match="did you mean 'max_tokens'"):
        toy.generate("Hello", max_token=5)
    assert len(toy.generate("Hello", settings=Settings(max_tokens=5), seed=3).canvas_ids) == 5


def test_a_prompt_that_does_not_fit_is_refused(toy):
    with pytest.raises(UnmaskError, match="more than the 4096 positions"):
        toy.generate("x" * 4000, max_tokens=200)


def test_a_mask_in_a_prompt_points_to_infill(toy):
    with pytest.raises(UnmaskError, match="use infill"):
        toy.generate("a [MASK] b", max_tokens=5)


def test_infill_fills_every_mask_and_keeps_the_rest(toy):
    holes = SENTENCE.replace("masked", "[MASK]" * 6).replace("alone", "[MASK]" * 5)
    text = f"<|answer|>{holes}"
    out = toy.infill(text)
    assert out.text == SENTENCE
    assert out.usage.completion_tokens == 11
    assert toy.codec.decode(out.canvas_ids) == "maskedalone"
    assert len(out.step_map) == 11
    with pytest.raises(UnmaskError, match=r"write \[MASK\]"):
        toy.infill("nothing to fill")


def test_chat_applies_the_template(toy):
    out = toy.chat([{"role": "user", "content": "Hi"}], max_tokens=160)
    assert out.usage.prompt_tokens == len("user: Hi\n") + 1
    assert out.text == SENTENCE
    outs = toy.chat([[{"role": "user", "content": "Hi"}], [{"role": "user", "content": "Ho"}]], max_tokens=5)
    assert len(outs) == 2


@pytest.mark.parametrize("policy", ["mean_field", "wino", "threshold", "random"])
@pytest.mark.parametrize("stop", [(), ("one", "agree t"), ("z",)])
def test_streamed_pieces_add_up_to_the_text(toy, policy, stop):
    settings = Settings(max_tokens=170, stop=stop, temperature=0.3)
    events = list(toy.stream("Hello", policy=policy, settings=settings))
    whole = toy.generate("Hello", policy=policy, settings=settings)
    assert "".join(event.text_delta for event in events) == whole.text
    assert events[-1].output == whole
    assert all(event.output is None for event in events[:-1])


def test_a_stream_never_shows_half_a_character(toy):
    ids = toy.codec.encode("é€", special=False)
    ending = unmask.engine.text.Ending(token_ids=(), strings=(), codec=toy.codec)
    stream = unmask.engine.text.TextStream(ending=ending)
    deltas = [stream.feed(ids[:n], final=n == len(ids)) for n in range(1, len(ids) + 1)]
    assert deltas == ["", "é", "", "", "€"]


def test_a_stream_holds_back_what_may_become_a_stop_string(toy):
    ending = unmask.engine.text.Ending(token_ids=(), strings=("STOP", "TOKEN"), codec=toy.codec)
    stream = unmask.engine.text.TextStream(ending=ending)
    ids = toy.codec.encode("a STOKE", special=False)
    deltas = [stream.feed(ids[:n], final=n == len(ids)) for n in range(1, len(ids) + 1)]
    assert deltas == ["a", " ", "", "", "", "S", "TOKE"]


class Noting(Ending):
    """Notes how long the lists of ids were that it looked through."""

    def cut(self, ids):
        LOOKED.append(len(ids))
        return super().cut(ids)


LOOKED = []


def test_a_text_that_has_ended_is_not_looked_through_again(toy):
    LOOKED.clear()
    stream = TextStream(ending=Noting(token_ids=(), strings=("b",), codec=toy.codec))
    ids = toy.codec.encode("abacab", special=False)
    assert [stream.feed(ids[:n], final=n == 6) for n in range(1, 7)] == ["a", "", "", "", "", ""]
    assert LOOKED == [1, 2, 6]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"temperature": float("inf")}, "temperature must be a number of at least 0, got inf"),
        ({"temperature": 1e-40}, "temperature must be 0 or at least 1e-30, got 1e-40"),
        ({"cfg_scale": 1e308}, "cfg_scale must be a number in [0, 1000], got 1e+308"),
        ({"cfg_scale": -0.5}, "cfg_scale must be a number in [0, 1000], got -0.5"),
        ({"refresh": "blocks:" + "9" * 5000}, "refresh must be 'block' or 'blocks:N'"),
    ],
)
def test_numbers_that_no_device_can_work_with_are_refused_in_a_short_line(wrong, message):
    with pytest.raises(UnmaskError) as caught:
        Settings(**wrong)
    assert str(caught.value).startswith(message)
    assert len(str(caught.value)) < 200


def test_a_stream_refuses_a_bad_request_at_once(toy):
    with pytest.raises(UnmaskError, match="unknown policy"):
        toy.stream("Hello", policy="meanfield")
    with pytest.raises(UnmaskError, match="cache"):
        toy.stream("Hello", policy="dawn", cache="dual")


def test_async_streaming_gives_the_same_pieces(toy):
    async def collect():
        return [event.text_delta async for event in toy.astream("Hello", max_tokens=60)]

    assert asyncio.run(collect()) == [event.text_delta for event in toy.stream("Hello", max_tokens=60)]


def test_an_async_stream_can_be_left_and_cancelled(toy):
    async def leave():
        async for _ in toy.astream("Hello", policy="fixed", max_tokens=60):
            break

    async def cancel():
        async def consume():
            async for _ in toy.astream("Hello", policy="fixed", max_tokens=2000):
                pass

        task = asyncio.create_task(consume())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(leave())
    asyncio.run(cancel())


def test_forward_gives_aligned_float32_logits_with_the_mask_logit_untouched(toy):
    ids = toy.codec.encode("abc")
    logits = toy.forward(ids)
    assert logits.shape == (1, 4, toy.spec.vocab_size)
    assert logits.dtype == torch.float32
    assert logits.isfinite().all()
    assert toy.forward(torch.tensor([ids, ids])).shape[0] == 2
    assert torch.equal(toy.forward([ids, ids])[1], logits[0])
    for dtype in (torch.uint16, torch.uint32, torch.uint64, torch.int32):
        assert torch.equal(toy.forward(torch.tensor(ids, dtype=dtype)), logits)
    for bad in ([], [[[1]]], [[1, 2], [3]], [-1], [10**7]):
        with pytest.raises(UnmaskError):
            toy.forward(bad)


def test_outputs_are_plain_data_on_request(toy):
    out = toy.generate("Hello", max_tokens=5)
    again = json.loads(json.dumps(out.to_dict()))
    assert again["usage"]["completion_tokens"] == 5
    assert set(again) == {"text", "token_ids", "finish_reason", "usage", "canvas_ids", "step_map"}


def test_steps_can_be_watched(toy):
    seen = []
    toy.generate(["Hello", "H"], max_tokens=20, policy="fixed", on_step=seen.append)
    assert sorted({event.row for event in seen}) == [0, 1]
    assert len(seen) == 40


@pytest.mark.parametrize("given", [{"max_tokens": 5}, {"stop": "mask"}, {"stop_token_ids": (3,)}])
def test_what_ends_a_continuation_is_refused_where_masks_are_filled(toy, given):
    for options in (given, {"settings": Settings(**given)}):
        with pytest.raises(UnmaskError, match=f"{next(iter(given))} does not apply"):
            toy.infill("a[MASK]b", **options)


@pytest.mark.parametrize("early_stop", [True, False])
def test_of_two_stop_strings_the_one_that_is_complete_first_ends_the_text(toy, early_stop):
    options = {"max_tokens": 40, "block_size": 1, "stop": ("masked letter is", "letter"), "early_stop": early_stop}
    *_, last = events = list(toy.stream("Hi", **options))
    streamed = "".join(event.text_delta for event in events)
    assert streamed == last.output.text == toy.generate("Hi", **options).text == "Every masked "


def test_pieces_of_random_texts_add_up_whatever_ends_them(toy):
    rng = random.Random(0)
    letters = {letter: toy.codec.encode(letter, special=False) for letter in "abcé€"}
    for _ in range(200):
        drawn = [letters[rng.choice("abcabcé€")] for _ in range(rng.randrange(1, 14))]
        ids = [token for letter in drawn for token in letter[: rng.randrange(1, len(letter) + 1)]]
        stops = ["".join(rng.choice("abcé") for _ in range(rng.randrange(1, 5))) for _ in range(rng.randrange(4))]
        ending = Ending(token_ids=(), strings=stops, codec=toy.codec)
        kept, text, _ = ending.cut(ids)
        assert kept == next(ids[:n] for n in range(len(ids), -1, -1) if len(toy.codec.decode(ids[:n])) <= len(text))
        stream, pieces, n = TextStream(ending=ending), "", 0
        while n < len(ids):
            n = min(len(ids), n + rng.choice([1, 1, 2, 5]))
            pieces += stream.feed(ids[:n], final=n == len(ids))
        assert pieces == text


def test_arguments_of_the_wrong_kind_get_one_clear_line(toy):
    unchecked = inspect.unwrap(type(toy).generate)  # without the type checks that only tests have
    wrong = {
        "policy must be": {"policy": policies.MeanField},
        "is a parameter of policies such as": {"threshold": 0.9},
        "did you mean 'max_tokens'": {"max_token": 9},
    }
    for message, options in wrong.items():
        with pytest.raises(UnmaskError, match=message):
            unchecked(toy, "x", **options)


def test_a_conversation_can_be_streamed(toy):
    messages = [{"role": "user", "content": "Hi"}]
    events = list(toy.stream(messages, max_tokens=30))
    assert events[-1].output == toy.chat(messages, max_tokens=30)


def test_infilled_texts_do_not_run_together_where_special_tokens_stood(toy):
    written = "one<|eot_id|>two<|answer|>Every m{}sked letter"
    assert toy.infill(written.format("[MASK]")).text == written.format("a")


def test_special_tokens_at_the_ends_and_in_holes_are_no_text(toy):
    out = toy.infill(f"<|answer|>{SENTENCE}[MASK]<|eot_id|>")
    assert out.text == SENTENCE
    assert out.token_ids[-2] == toy.spec.eos_id


def test_a_generator_says_what_it_is(toy):
    assert repr(toy) == "<unmask.Generator: toy on cpu, torch.float32>"


def test_quantised_weights_are_told_by_generator_and_trace_and_only_they(toy):
    tiny = unmask.load("tiny", device="cpu", quantize="int8")
    assert repr(tiny) == "<unmask.Generator: tiny on cpu, torch.float32, int8 weights>"
    assert tiny.generate("Countdown: 3,4,5,12", max_tokens=2, trace=True).trace.header["quantize"] == "int8"
    assert "quantize" not in toy.generate("x", max_tokens=2, trace=True).trace.header


def test_logits_of_forward_may_be_written_to(toy):
    logits = toy.forward([1, 2])
    logits[..., toy.spec.mask_id] = -torch.inf
    assert logits.isneginf().sum() == 2


def test_a_setting_that_is_misspelt_is_found_even_beside_a_broken_plug_in(toy, monkeypatch):
    broken = EntryPoint(name="broken", value="no_such_module:Thing", group="unmask.policies")
    monkeypatch.setitem(policies.base.registry.__dict__, "_plugins", {"broken": broken})
    with pytest.raises(UnmaskError, match="did you mean 'max_tokens'"):
        toy.generate("x", max_token=3)


def test_a_timed_generation_says_where_the_time_went(toy):
    assert toy.generate("a", max_tokens=4).timing is None
    outs = toy.generate(["a", "b b", "c"], max_tokens=30, batch_size=2, timed=True)
    assert all(min(out.timing.model_s, out.timing.policy_s, out.timing.rest_s) > 0 for out in outs)
    plain = toy.generate(["a", "b b", "c"], max_tokens=30)
    assert [out.canvas_ids for out in outs] == [out.canvas_ids for out in plain]


def test_the_time_of_a_pass_is_shared_by_the_rows_that_were_in_it(toy):
    """One row is there for twice as many passes as the other, and shares half of them."""
    requests = [toy.request("x", policy="fixed", max_tokens=n) for n in (4, 8)]
    runner, rows, passes = TimedRunner(toy.model, StoragePool()), [], []
    for event in decode(Scheduler(requests), runner):
        if event.row == 1:
            rows.append(2 if event.step < 4 else 1)
            passes.append(runner.last)
    for part in ("model_s", "policy_s", "rest_s"):
        shares = [getattr(found, part) / count for found, count in zip(passes, rows, strict=True)]
        assert getattr(runner.spent[1], part) == pytest.approx(sum(shares))
        assert getattr(runner.spent[0], part) == pytest.approx(sum(shares[:4]))


def test_warming_up_refuses_what_no_request_could_be_and_decodes_nothing_without_a_cuda_device():
    llm = unmask.load("toy", device="cpu")

    def predict(*given, **options):
        pytest.fail("nothing is to be gained here")

    llm.model.predict = predict
    llm.warmup(prompt_tokens=8, batch_size=2, max_tokens=8)
    for wrong in (
        {"batch_size": 0},
        {"prompt_tokens": 0},
        {"prompt_tokens": 10**6},
        {"policy": "wino", "cache": "dual"},
    ):
        with pytest.raises(unmask.UnmaskError):
            llm.warmup(**wrong)
