"""What is refused: the status, OpenAI's body, the field that it is about, and a message of one line."""

import json

import pytest
from openai import BadRequestError, NotFoundError
from pydantic import ValidationError
from serve.servers import running

import unmask
from unmask import Settings, policies
from unmask.serve import schema
from unmask.serve.config import ServerConfig
from unmask.serve.errors import ApiError
from unmask.serve.guard import MOST_CONTAINERS
from unmask.serve.served import Served
from unmask.serve.translate import translate

CHAT = "/v1/chat/completions"
HI = {"prompt": "Hi", "max_tokens": 4}
TALK = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
DEEP = 8_000


def check(body: dict, *, param: str | None, says: str, kind: str = "invalid_request_error") -> None:
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == (kind, param)
    assert says in error["message"]
    assert "\n" not in error["message"]


WRONG = {
    "no prompt": ({}, "prompt", "prompt must be a text"),
    "a number as a prompt": ({"prompt": 5}, "prompt", "prompt must be a text"),
    "texts and ids": ({"prompt": ["a", 1]}, "prompt", "prompt must be a text"),
    "truth values as ids": ({"prompt": [True]}, "prompt", "prompt must be a text"),
    "no prompts": ({"prompt": []}, "prompt", "empty list"),
    "a prompt without ids": ({"prompt": [[1], []]}, "prompt", "empty list"),
    "half a character in a name": ({**HI, "\ud800": 1}, None, "surrogate"),
    "half a character in a name inside": (
        {**HI, "stream": True, "stream_options": {"\ud800": 1}},
        "stream_options",
        "surrogate",
    ),
    "ids beyond the vocabulary": ({"prompt": [10**30]}, "prompt", "token ids in [0,"),
    "half a character": ({"prompt": "\ud800"}, "prompt", "surrogate"),
    "a mask in a suffix": ({"prompt": "a", "suffix": "[MASK]"}, None, "/v1/completions without a suffix"),
    "very many prompts": (
        {"prompt": ["a"] * 800_000},
        None,
        "800000 texts are asked for; one request may ask for 64",
    ),
    "too long": ({"prompt": "x" * 5000}, "prompt", "4096 positions"),
    "too long with a suffix": ({"prompt": "x", "suffix": "x" * 5000}, None, "4096 positions"),
    "too much": ({**HI, "max_tokens": 10**30}, None, "4096 positions"),
    "nothing to write": ({**HI, "max_tokens": 0}, "max_tokens", "at least 1"),
    "nothing to write, by the newer name": (
        {"prompt": "Hi", "max_completion_tokens": 0},
        "max_completion_tokens",
        "max_completion_tokens must be",
    ),
    "a word for a number": ({**HI, "temperature": "hot"}, "temperature", "temperature must be a valid number"),
    "temperature below 0": ({**HI, "temperature": -1}, "temperature", "at least 0"),
    "top_p of 0": ({**HI, "top_p": 0}, "top_p", "(0, 1]"),
    "seed below 0": ({**HI, "seed": -1}, "seed", "in [0, "),
    "last seed too large": ({**HI, "seed": 2**63 - 1, "n": 2}, "seed", "in [0, 9223372036854775807]"),
    "masks and a length": (
        {"prompt": "a[MASK]", "max_tokens": 4},
        "max_tokens",
        "max_tokens does not apply: infill fills the masks",
    ),
    "masks and a length inside": ({"prompt": "[MASK]", "decoding": {"max_tokens": 4}}, "decoding.max_tokens", "masks"),
    "masks and a stop": ({"prompt": "[MASK]", "stop": "x"}, "stop", "stop does not apply"),
    "masks and a suffix": ({"prompt": ["x", "[MASK]"], "suffix": "x"}, "suffix", "suffix does not apply"),
    "parts without a hole": ({"prompt": [{"text": "a"}]}, "prompt", "no hole"),
    "a hole of no tokens": ({"prompt": [{"mask": 0}]}, "prompt", "parts"),
    "a part that is both": ({"prompt": [{"text": "a", "mask": 1}]}, "prompt", "parts"),
    "a part among texts": ({"prompt": ["a", {"mask": 1}]}, "prompt", "parts"),
    "a hole larger than the model": ({"prompt": [{"mask": 10**30}]}, "prompt", "4096 positions"),
    "passes over every hole": (
        {"prompt": "a[MASK]" * 64, "decoding": {"policy": "fixed", "passes": 65, "block_size": 1}},
        "decoding.passes",
        "passes must be at most 64, got 65",
    ),
    "no choice": ({**HI, "n": 0}, "n", "n must be greater than or equal to 1"),
    "too many choices": ({**HI, "n": 129}, "n", "less than or equal to 128"),
    "more texts than the queue has room for": ({**HI, "prompt": ["a"] * 33, "n": 2}, None, "66 texts"),
    "an empty stop": ({**HI, "stop": ""}, "stop", "not empty"),
    "a number as a stop": ({**HI, "stop": [1]}, "stop", "a string or a list of strings"),
    "too many stops": ({**HI, "stop": ["x"] * 65}, "stop", "at most 64"),
    "half a million stops": ({**HI, "stop": ["x"] * 500_000}, "stop", "at most 64 strings, got 500000"),
    "too many stops inside": ({**HI, "decoding": {"stop": ["x"] * 65}}, "decoding.stop", "at most 64"),
    "a word for a truth value": ({**HI, "stream": "yes"}, "stream", "stream must be true or false, got 'yes'"),
    "usage without a stream": ({**HI, "stream_options": {"include_usage": True}}, "stream_options", "stream: true"),
    "both lengths": ({**HI, "max_completion_tokens": 5}, "max_completion_tokens", "different values"),
    "two temperatures": (
        {**HI, "temperature": 0.5, "decoding": {"temperature": 1.0}},
        "temperature",
        "different values",
    ),
    "decoding as a list": ({**HI, "decoding": []}, "decoding", "must be an object"),
    "misspelt parameter": ({**HI, "decoding": {"treshold": 1}}, "decoding.treshold", "did you mean 'threshold'?"),
    "misspelt setting": ({**HI, "decoding": {"block_sise": 1}}, "decoding.block_sise", "did you mean 'block_size'?"),
    "parameter of another": ({**HI, "decoding": {"kl": 1}}, "decoding.kl", "a parameter of policies such as klass"),
    "parameter of another, with the policy's name": (
        {**HI, "decoding": {"policy": "fixed", "threshold": 0.5}},
        "decoding.threshold",
        "the policy fixed has no parameter threshold; it has: passes, schedule, tokens_per_pass",
    ),
    "parameter out of range": ({**HI, "decoding": {"threshold": 7}}, "decoding.threshold", "(0, 1]"),
    "setting out of range": ({**HI, "decoding": {"top_k": -1}}, "decoding.top_k", "at least 0"),
    "unknown cache": ({**HI, "decoding": {"cache": "dul"}}, "decoding.cache", "did you mean 'dual'?"),
    "unknown policy": ({**HI, "decoding": {"policy": "meanfield"}}, "decoding.policy", "did you mean 'mean_field'?"),
    "no name": ({**HI, "decoding": {"policy": 5}}, "decoding.policy", "must be a valid string, got 5"),
    "a word for a step map": (
        {**HI, "decoding": {"step_map": "yes"}},
        "decoding.step_map",
        "must be true or false, got 'yes'",
    ),
    "a parameter that would overflow": (
        {**HI, "decoding": {"policy": "fixed", "tokens_per_pass": 10**30}},
        "decoding.tokens_per_pass",
        "at most 4096",
    ),
    "more passes than positions": (
        {**HI, "decoding": {"policy": "fixed", "schedule": "dream", "passes": 4096, "block_size": 1}},
        "decoding.passes",
        "passes must be at most 1024, got 4096",
    ),
    "more passes than positions in one block": (
        {**HI, "decoding": {"policy": "fixed", "passes": 4097}},
        "decoding.passes",
        "passes must be at most 4096, got 4097",
    ),
    "a number beyond floating point": (
        {**HI, "decoding": {"policy": "eb", "gamma": 10**400}},
        "decoding.gamma",
        "too large",
    ),
    "iterations that take for ever": (
        {**HI, "decoding": {"iterations": 65}},
        "decoding.iterations",
        "iterations must be at most 64, got 65",
    ),
    "a history that takes for ever": (
        {**HI, "decoding": {"policy": "klass", "history": 65}},
        "decoding.history",
        "history must be at most 64, got 65",
    ),
    "parameters that exclude each other": (
        {**HI, "decoding": {"policy": "fixed", "passes": 3, "tokens_per_pass": 2}},
        "decoding",
        "tokens_per_pass",
    ),
    "a cache that the policy cannot use": (
        {**HI, "decoding": {"policy": "dawn", "cache": "dual"}},
        "decoding",
        "cannot run with cache: 'dual'",
    ),
}
UNSUPPORTED = {
    "tools": [{"type": "function"}],
    "tool_choice": "required",
    "response_format": {"type": "json_object"},
    "logit_bias": {"5": 1},
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "best_of": 2,
    "echo": True,
    "guided_json": {},
    "top_k": 5,
    "min_p": 0.1,
    "min_tokens": 3,
    "ignore_eos": True,
    "bad_words": ["no"],
    "allowed_token_ids": [1],
    "stop_token_ids": [1],
    "use_beam_search": True,
    "length_penalty": 0.5,
}
NOT_JSON = {
    "half an object": (b'{"prompt": "Hi"', "not JSON"),
    "not UTF-8": (b'{"prompt": "\xff"}', "not UTF-8"),
    "NaN": (b'{"prompt": "Hi", "temperature": NaN}', "NaN is no number"),
    "infinity": (b'{"prompt": "Hi", "x": -Infinity}', "-Infinity is no number"),
    "too deep": (b"[" * DEEP + b"]" * DEEP, "the body is nested too deeply"),
    "deep inside": (b'{"prompt":"Hi","decoding":{"top_k":' + b"[" * 985 + b"]" * 985 + b"}}", "nested too deeply"),
    "a number of 5000 digits": (b'{"prompt": "Hi", "seed": ' + b"1" * 5000 + b"}", "4300 digits"),
    "beyond floating point": (b'{"prompt": "Hi", "temperature": 1e999}', "got inf"),
    "a name twice": (b'{"prompt": "Hi", "max_tokens": 4, "max_tokens": 5}', "'max_tokens' twice"),
    "a name twice inside": (b'{"prompt": "Hi", "decoding": {"seed": 1, "seed": 1}}', "'seed' twice"),
    "a list": (b"[]", "must be a JSON object"),
    "null": (b"null", "must be a JSON object"),
    "nothing": (b"", "must be a JSON object"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_request_is_400_and_names_the_field(case, toy_served):
    body, param, says = WRONG[case]
    status, answer = toy_served.post(body)
    assert status == 400
    check(answer, param=param, says=says)


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_a_field_that_would_change_the_answer_is_400(name, toy_served):
    for path, body in (("/v1/completions", HI), (CHAT, TALK)):
        status, answer = toy_served.post({**body, name: UNSUPPORTED[name]}, path)
        assert status == 400
        check(answer, param=name, says="not supported")


@pytest.mark.parametrize("name", ["top_k", "stop_token_ids"])
def test_a_setting_of_ours_in_the_wrong_place_is_told_where_it_goes(name, toy_served):
    assert f"give it as decoding.{name}" in toy_served.post({**HI, name: UNSUPPORTED[name]})[1]["error"]["message"]


MANY = 1000
LISTS = {
    "ids": (schema.CompletionRequest, {"prompt": [1] * MANY + [1.5] * MANY}),
    "lists of ids": (schema.CompletionRequest, {"prompt": [[1]] * MANY + [[1.5] * MANY] * MANY}),
    "a suffix": (schema.CompletionRequest, {"prompt": "x", "suffix": [1.5] * MANY}),
    "stops": (schema.CompletionRequest, {"prompt": "x", "stop": [1] * MANY}),
    "messages": (schema.ChatRequest, {"messages": [{}] * MANY}),
    "parts": (schema.ChatRequest, {"messages": [{"role": "user", "content": [{}] * MANY}]}),
}


@pytest.mark.parametrize("case", LISTS)
def test_a_long_list_of_faults_is_not_gone_through(case):
    """An error for each element would keep the event loop busy for minutes."""
    kind, body = LISTS[case]
    with pytest.raises(ValidationError) as wrong:
        kind.model_validate(body)
    assert wrong.value.error_count() <= 6


def test_a_long_conversation_is_held_against_the_length_of_the_model_alone(toy_served):
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}]}] * 5000
    status, answer = toy_served.post({"messages": messages}, CHAT)
    assert status == 400
    check(answer, param="messages", says="4096 positions")


@pytest.mark.parametrize("item", [b"[1],", b'{"role":"user","content":"a"},'])
def test_very_many_lists_or_objects_are_refused_before_they_are_parsed(item, toy_served):
    raw = b'{"prompt":[' + item * MOST_CONTAINERS  # which is not JSON either: a parser would say so
    status, answer = toy_served.post(raw)
    assert status == 400
    check(answer, param=None, says=f"at most {MOST_CONTAINERS} lists and objects, got {MOST_CONTAINERS + 2}")


def test_brackets_inside_strings_are_no_lists(toy_served):
    brackets = '\\"[{\\' * MOST_CONTAINERS
    assert toy_served.post({**HI, "user": brackets, brackets: "["})[0] == 200


def test_a_text_takes_no_more_passes_than_the_model_has_positions(toy):
    served = Served(toy, ServerConfig(), policy=policies.get("fixed", passes=40), settings=Settings(max_tokens=256))

    def chosen(decoding):
        body = schema.CompletionRequest(prompt="x", decoding=decoding)
        return translate(body, served).requests[0].plan.policy.passes

    assert chosen(None) == chosen({"step_map": True}) == chosen({"schedule": "dream"}) == 40
    assert chosen({"passes": 512}) == 512  # over each of eight blocks
    assert chosen({"block_size": 256, "passes": 4096}) == 4096
    assert chosen({"max_tokens": 8, "passes": 4096}) == 4096
    for decoding, most in (({"passes": 513}, 512), ({"block_size": 2}, 32), ({"block_size": 1, "passes": 17}, 16)):
        with pytest.raises(ApiError, match=f"passes must be at most {most}, got"):
            chosen(decoding)


def test_the_servers_own_policy_is_not_held_against_the_bounds_for_requests(toy):
    policy = policies.get("mean_field", iterations=100)
    served = Served(toy, ServerConfig(), policy=policy, settings=Settings())
    body = schema.CompletionRequest(prompt="x", decoding={"threshold": 0.5})
    assert translate(body, served).requests[0].plan.policy.iterations == 100


@pytest.mark.parametrize("body", [{"prompt": "x" * 5000}, {**HI, "max_tokens": 4096}, {"prompt": [{"mask": 5000}]}])
def test_what_is_too_long_for_the_model_has_openais_code(body, toy_served):
    assert toy_served.post(body)[1]["error"]["code"] == "context_length_exceeded"
    assert toy_served.post({"prompt": []})[1]["error"]["code"] is None


@pytest.mark.parametrize("case", NOT_JSON)
def test_a_body_that_is_no_proper_json_is_400(case, toy_served):
    raw, says = NOT_JSON[case]
    status, answer = toy_served.post(raw)
    assert status == 400
    assert says in answer["error"]["message"]


MESSAGES = {
    "none": ([], "messages", "messages"),
    "no role": ([{"content": "Hi"}], "messages[0].role", "missing"),
    "unknown role": ([{"role": "usr", "content": "Hi"}], "messages[0].role", "'system', 'developer', 'user'"),
    "no content": ([{"role": "user"}], "messages[0].content", "must be a string or a list of parts"),
    "a picture": (
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
        "messages[0].content",
        "must be a string or a list of parts",
    ),
    "calls of tools": (
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": [{"id": "c"}]}],
        "messages[1].tool_calls",
        "not supported",
    ),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_a_wrong_message_is_400_and_named(case, toy_served):
    messages, param, says = MESSAGES[case]
    status, answer = toy_served.post({"messages": messages}, CHAT)
    assert status == 400
    check(answer, param=param, says=says)


def test_a_model_without_a_chat_template_says_so(make_llada):
    folder = make_llada()
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}')
    with running(unmask.load(str(folder), device="cpu"), settings=Settings(max_tokens=4)) as found:
        status, answer = found.post(TALK, CHAT)
    assert status == 400
    check(answer, param="messages", says="no chat template")


def test_the_official_client_raises_what_it_should(toy_served):
    with pytest.raises(NotFoundError) as missing:
        toy_served.client().completions.create(model="gpt-4", prompt="Hi")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(NotFoundError, match="'a/b' does not exist"):
        toy_served.client().models.retrieve("a/b")
    with pytest.raises(BadRequestError, match="top_p must be a number in") as wrong:
        toy_served.client().completions.create(model="toy", prompt="Hi", top_p=2)
    assert wrong.value.param == "top_p"


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v1/nothing", 404), ("GET", "/v1/completions", 405)])
def test_unknown_places_and_methods_have_the_same_body(method, path, status, toy_served):
    found, headers, text = toy_served.send(method, path)
    assert found == status
    check(json.loads(text), param=None, says=f"{method} {path}")
    assert headers.get("Allow") == ("POST" if status == 405 else None)


def test_a_body_that_is_not_called_json_is_400(toy_served):
    for kind in ("text/plain", ""):
        status, answer = toy_served.post(HI, **{"Content-Type": kind})
        assert status == 400
        check(answer, param=None, says="Content-Type: application/json")
    assert toy_served.post(HI, **{"Content-Type": "application/json; charset=utf-8"})[0] == 200


def test_a_body_that_is_too_large_is_413_told_or_not(toy):
    with running(toy, max_body_bytes=200) as found:
        large = json.dumps(HI | {"pad": "x" * 200}).encode()
        status, answer = found.post(large)
        assert status == 413
        check(answer, param=None, says="larger than 200 bytes")
        pieces = iter([large[:150], large[150:]])  # sent in chunks, without a length
        status, _, text = found.send("POST", "/v1/completions", pieces)
        assert status == 413
        assert json.loads(text)["error"]["code"] == "body_too_large"
        assert found.post(json.dumps(HI).ljust(200).encode())[0] == 200
        assert found.post(b"x" * 2**25)[0] == 413  # which is heard though the client was still sending


def test_a_long_value_is_not_sent_back_in_full(toy_served):
    status, answer = toy_served.post({**HI, "decoding": {"cache": "x" * 100_000}})
    assert status == 400
    assert len(answer["error"]["message"]) < 600
