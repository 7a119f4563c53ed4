"""Results of lines beside the server's answers to the same bodies; and how lines are read and rows are filled."""

from __future__ import annotations

import json
import pickle
import re

import pytest
from batch.lines import CHAT, COMPLETIONS, completed, line_of, plain
from doubles import Watched
from serve.servers import running
from serve.test_refusals import HI, MESSAGES, TALK, UNSUPPORTED, WRONG

import unmask
from unmask.engine.generator import Generator
from unmask.errors import UnmaskError
from unmask.models.base import LoadedModel
from unmask.models.toy import SENTENCE
from unmask.serve.strict_json import dumps

HOT = {"max_tokens": 48, "temperature": 1.0, "seed": 0}
RIGHT = [
    (COMPLETIONS, {"prompt": "Hi", "max_tokens": 20}),
    (COMPLETIONS, {"model": "toy", "prompt": "Hello there", **HOT, "seed": 7}),
    (COMPLETIONS, {"prompt": ["Hi", "Hello"], **HOT, "n": 2}),
    (COMPLETIONS, {"prompt": [[72, 105], [72]], "max_tokens": 9, "stream": False}),
    (COMPLETIONS, {"prompt": [72], "suffix": "after", "max_tokens": 6}),
    (COMPLETIONS, {"prompt": "Hi", "max_tokens": 40, "stop": "letter", "user": "me", "colour": "red"}),
    (COMPLETIONS, {"prompt": "Hi", "max_tokens": 24, "decoding": {"policy": "klass", "step_map": True}}),
    (
        COMPLETIONS,
        {"prompt": "Hi", "max_tokens": 30, "decoding": {"policy": "fixed", "cache": "dual", "block_size": 8}},
    ),
    (COMPLETIONS, {"prompt": [{"text": "Every "}, {"mask": 4}, {"text": "ed"}], "logprobs": 2}),
    (COMPLETIONS, {"prompt": ["a[MASK]b", "Hi"]}),
    (CHAT, {**TALK, "logprobs": True, "top_logprobs": 1}),
    (CHAT, TALK),
    (CHAT, {**TALK, **HOT, "n": 3}),
    (CHAT, {"messages": [{"role": "developer", "content": [{"type": "text", "text": "a"}]}], "max_tokens": 5}),
]
REFUSED = [
    # A server limits the texts of a request by its queue, a batch does not.
    *((COMPLETIONS, body) for case, (body, _, says) in WRONG.items() if " texts" not in says),
    *((COMPLETIONS, {**HI, name: value}) for name, value in UNSUPPORTED.items()),
    *((CHAT, {**TALK, name: value}) for name, value in UNSUPPORTED.items()),
    *((CHAT, {"messages": messages}) for messages, _, _ in MESSAGES.values()),
    (COMPLETIONS, {**HI, "model": "gpt-4"}),
    (COMPLETIONS, []),
    (COMPLETIONS, None),
    (CHAT, HI),
]


@pytest.fixture(scope="module")
def toy():
    return unmask.load("toy", device="cpu")


@pytest.fixture(scope="module")
def toy_served(toy):
    with running(toy) as found:
        yield found


def test_a_line_gets_what_the_server_would_answer_whatever_lines_are_beside_it(toy, toy_served):
    asked = {f"r-{number}": given for number, given in enumerate([*RIGHT, *REFUSED])}
    found = {}
    for result in completed(toy, (line_of(key, body, url) for key, (url, body) in asked.items())):
        assert set(result) == {"id", "custom_id", "response", "error"}
        assert (result["id"][:10], result["error"]) == ("batch_req_", None)
        assert result["custom_id"] not in found
        found[result["custom_id"]] = result["response"]
    assert set(found) == set(asked)
    for key, (url, body) in asked.items():
        status, answer = toy_served.post(body, url)
        assert found[key]["status_code"] == status, body
        assert (status == 200) == (int(key[2:]) < len(RIGHT)), body
        assert plain(found[key]["body"]) == plain(answer), body
        assert found[key]["request_id"]


def test_lines_and_results_are_plain_data(toy):
    for result in completed(toy, [line_of("a", RIGHT[6][1]), line_of("b", {})]):
        assert pickle.loads(pickle.dumps(result)) == json.loads(dumps(result)) == result


def test_a_line_that_asks_for_a_stream_is_refused(toy):
    (result,) = completed(toy, [line_of("a", {**HI, "stream": True})])
    assert result["response"]["status_code"] == 400
    assert result["response"]["body"]["error"]["param"] == "stream"


def test_a_line_may_ask_for_many_texts_but_not_for_any_number(toy):
    many, more = completed(toy, [line_of("a", {**HI, "n": 100}), line_of("b", {**HI, "prompt": ["a"] * 2049})], rows=64)
    assert (many["custom_id"], more["custom_id"]) == ("b", "a")
    assert "2049 texts are asked for; one request may ask for 2048" in many["response"]["body"]["error"]["message"]
    assert len(more["response"]["body"]["choices"]) == 100


@pytest.mark.slow
def test_texts_are_those_of_generate_in_any_company():
    llm = unmask.load("tiny", device="cpu")
    prompts = ["Countdown: 86,28,13,31,96", "Countdown: 3,4,5,12", "Countdown: 2,3,6", "Countdown: 7,8,9,24"]
    settings = unmask.Settings(max_tokens=24, block_size=12)
    alone = [llm.generate(prompt, settings=settings) for prompt in prompts]
    lines = [line_of(str(n), {"prompt": p, "decoding": {"step_map": True}}) for n, p in enumerate(prompts)]
    lines[2]["body"]["decoding"]["policy"] = "eb"
    alone[2] = llm.generate(prompts[2], policy="eb", settings=settings)
    found = {
        int(result["custom_id"]): result["response"]["body"] for result in completed(llm, lines, settings=settings)
    }
    assert [found[n]["choices"][0]["text"] for n in range(4)] == [out.text for out in alone]
    assert [found[n]["decoding"]["step_map"] for n in range(4)] == [out.step_map for out in alone]
    assert [found[n]["usage"]["completion_tokens"] for n in range(4)] == [len(out.token_ids) for out in alone]


def test_no_more_lines_are_read_than_can_be_decoded_soon(toy):
    rows, read, done = 4, 0, 0

    def lines():
        nonlocal read
        for number in range(200):
            read += 1
            assert read - done <= 2 * rows
            yield line_of(str(number), {"prompt": "Hi", "max_tokens": 1 + 5 * (number % 3 == 0)} if number % 7 else {})

    for _ in completed(toy, lines(), rows=rows):
        done += 1
    assert done == 200


def test_a_row_that_is_free_is_filled_at_once(toy):
    model, lengths = Watched(toy.model), [7, 1, 3, 9, 2, 8, 1, 1, 6, 5, 4, 7]
    llm = Generator(LoadedModel(model=model, codec=toy.codec))
    lines = [line_of(str(n), {"prompt": "Hi", "max_tokens": length}) for n, length in enumerate(lengths)]
    order = [r["custom_id"] for r in completed(llm, lines, policy=unmask.policies.get("fixed"), rows=3)]
    rows = [rows for rows, _ in model.computed]
    assert sum(rows) == sum(lengths)
    assert rows == sorted(rows, reverse=True)  # three until the last line has begun
    assert rows.count(3) > 14
    assert order != sorted(order, key=int)


class Spoiling:
    """A model that gives no numbers for a prompt that begins with a z, and fails for good when it is told to."""

    def __init__(self, llm) -> None:
        self.model = model = llm.model
        self.spec, self.device, self.dtype = model.spec, model.device, model.dtype
        (self.bad,) = llm.codec.encode("z", special=False)
        self.lost = False

    def predict(self, tokens, **options):
        if self.lost:
            raise RuntimeError("no device")
        found = self.model.predict(tokens, **options)
        found.logits[tokens[:, 0] == self.bad] = float("nan")
        return found


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_a_line_that_cannot_be_decoded_is_500_and_the_others_go_on(toy, rows):
    llm = Generator(LoadedModel(model=Spoiling(toy), codec=toy.codec))
    bodies = {"a": "Hi", "b": "zHi", "c": ["Hi", "zHi", "Hi", "zHi"], "d": "Hi", "e": "z", "f": "Hi"}
    lines = [line_of(key, {"prompt": prompt, "max_tokens": 6, "n": 2}) for key, prompt in bodies.items()]
    found = {result["custom_id"]: result["response"] for result in completed(llm, lines, rows=rows)}
    assert set(found) == set(bodies)
    for key, response in found.items():
        if key in "bce":
            error = response["body"]["error"]
            assert (response["status_code"], error["type"], error["code"]) == (500, "server_error", "engine_failed")
            assert "no usable logits" in error["message"]
        else:
            assert [choice["text"] for choice in response["body"]["choices"]] == [SENTENCE[:6]] * 2


def test_an_error_of_the_model_is_raised_after_the_results_before_it(toy):
    model = Spoiling(toy)
    results = completed(
        Generator(LoadedModel(model=model, codec=toy.codec)),
        (line_of(str(n), {"prompt": "Hi", "max_tokens": 1 + 9 * n}) for n in range(9)),
    )
    assert next(results)["response"]["status_code"] == 200
    model.lost = True
    with pytest.raises(RuntimeError, match="no device"):
        list(results)


def test_defaults_that_leave_no_room_are_refused_before_a_line_is_read(toy):
    unread = iter([line_of("a", HI)])
    said = "max_tokens=4096 leaves no room for a prompt"
    with pytest.raises(UnmaskError, match=re.escape(said)):
        list(completed(toy, unread, settings=unmask.Settings(max_tokens=4096)))
    assert next(unread)["custom_id"] == "a"


class Faulty(Generator):
    """Has a bug that one prompt finds."""

    def request(self, prompt, **options):
        if prompt == "fail":
            raise KeyError("a fault")
        return super().request(prompt, **options)


def test_a_bug_is_one_lines_500(toy, caplog):
    llm = Faulty(LoadedModel(model=toy.model, codec=toy.codec))
    first, second = completed(llm, [line_of("a", {"prompt": "fail"}), line_of("b", HI)])
    assert first["response"]["status_code"] == 500
    assert first["response"]["body"]["error"]["message"] == "internal error: KeyError; the log has more"
    assert second["response"]["body"]["choices"][0]["text"] == SENTENCE[:4]
    assert "a fault" in caplog.text
