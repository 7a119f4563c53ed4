"""Log-probabilities of the committed tokens, in OpenAI's two forms, through the official client."""

import json
import math

import pytest
from serve.servers import running

import unmask
from unmask.serve.answers import BROKEN, IMPOSSIBLE, _by_text

PROMPT = "Countdown: 86,28,13,31,96"
MESSAGES = [{"role": "user", "content": PROMPT}]


def committed(output: unmask.Output, start: int) -> list[dict]:
    """The last commit of every token of the text, from the trace, with the candidates that the pass had for it."""
    found = {}
    for line in output.trace.steps:
        candidates = {place["position"]: place["candidates"] for place in line["open"]}
        for commit in line["committed"]:
            found[commit["position"]] = {**commit, "candidates": candidates[commit["position"]]}
    return [found[position] for position in range(start, start + len(output.token_ids))]


@pytest.mark.parametrize("policy", ["mean_field", "wino"])
def test_a_completion_tells_what_the_passes_knew_that_committed_its_tokens(policy, served):
    out = served.llm.generate(PROMPT, policy=policy, max_tokens=32, early_stop=True, trace=unmask.Detail(candidates=3))
    extra = {"extra_body": {"decoding": {"policy": policy}}}
    answer = served.client().completions.create(model="tiny", prompt=PROMPT, max_tokens=32, logprobs=3, **extra)
    found, text = answer.choices[0].logprobs, answer.choices[0].text
    expected = committed(out, out.usage.prompt_tokens)
    assert text == out.text == "".join(found.tokens)
    assert found.token_logprobs == [math.log(commit["probability"]) for commit in expected]
    assert found.text_offset == [len("".join(found.tokens[:at])) for at in range(len(found.tokens))]
    for best, commit in zip(found.top_logprobs, expected, strict=True):
        assert len(best) in (3, 4)  # the token itself may not be among the three
        assert best[commit["text"]] == math.log(commit["probability"])
        assert max(best.values()) == pytest.approx(math.log(commit["candidates"][0][1]), abs=1e-6)


def test_a_conversation_has_its_own_form(served):
    out = served.llm.chat(MESSAGES, max_tokens=32, early_stop=True, trace=unmask.Detail(candidates=2))
    asked = {"model": "tiny", "messages": MESSAGES, "max_tokens": 32, "logprobs": True}
    content = served.client().chat.completions.create(**asked, top_logprobs=2).choices[0].logprobs.content
    expected = committed(out, out.usage.prompt_tokens)
    assert [token.token for token in content] == [commit["text"] for commit in expected]
    assert [token.logprob for token in content] == [math.log(commit["probability"]) for commit in expected]
    assert bytes(byte for token in content for byte in token.bytes).decode() == out.text
    assert [[best.logprob for best in token.top_logprobs] for token in content] == [
        [math.log(probability) if probability else IMPOSSIBLE for _, probability in commit["candidates"]]
        for commit in expected
    ]
    bare = served.client().chat.completions.create(**asked).choices[0].logprobs.content
    assert [token.logprob for token in bare] == [token.logprob for token in content]
    assert all(token.top_logprobs == [] for token in bare)


def test_without_candidates_the_tokens_own_are_told(served):
    found = served.client().completions.create(model="tiny", prompt=PROMPT, max_tokens=32, logprobs=0).choices[0]
    assert [list(best) for best in found.logprobs.top_logprobs] == [[token] for token in found.logprobs.tokens]
    for none in (None, False):
        choice = served.post({"prompt": PROMPT, "max_tokens": 4, "logprobs": none})[1]["choices"][0]
        assert choice["logprobs"] is None


def streamed(found, path: str, **body) -> dict[int, tuple[str, dict]]:
    """The text and the joined log-probabilities of each choice, with no token before its letters."""
    _, _, raw = found.send("POST", path, {**body, "stream": True})
    texts, told = {}, {}
    for line in raw.split("\n\n"):
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            index = choice["index"]
            piece = choice.get("text", "") or choice.get("delta", {}).get("content", "")
            texts[index] = texts.get(index, "") + piece
            for name, values in (choice["logprobs"] or {}).items():
                told.setdefault(index, {}).setdefault(name, []).extend(values or [])
            assert all(offset < len(texts[index]) for offset in told.get(index, {}).get("text_offset", []))
    return {index: (texts[index], told[index]) for index in texts}


@pytest.mark.parametrize("policy", ["fixed", "wino", "mean_field"])
def test_the_chunks_of_a_stream_add_up_to_the_whole(policy, toy_served):
    body = {"prompt": ["Hi", "Ho"], "max_tokens": 40, "temperature": 1.0, "seed": 3, "n": 2, "logprobs": 2}
    body["decoding"] = {"policy": policy, "block_size": 8}
    whole = toy_served.post(body)[1]["choices"]
    found = streamed(toy_served, "/v1/completions", **body)
    assert {index: text for index, (text, _) in found.items()} == {one["index"]: one["text"] for one in whole}
    assert [found[one["index"]][1] for one in whole] == [one["logprobs"] for one in whole]
    assert len({one["text"] for one in whole}) > 1 or policy == "fixed"  # which commits what is likeliest


@pytest.mark.parametrize("chat", [False, True])
def test_chunks_without_tokens_have_none(chat, served):
    asked = {"messages": MESSAGES, "logprobs": True} if chat else {"prompt": PROMPT, "logprobs": 0}
    path = "/v1/chat/completions" if chat else "/v1/completions"
    _, _, raw = served.send("POST", path, {**asked, "max_tokens": 32, "stream": True})
    told = [json.loads(line[6:])["choices"][0]["logprobs"] for line in raw.split("\n\n") if line.startswith("data: {")]
    assert None in told
    assert all(any(each.values()) for each in told if each is not None)


def test_the_token_itself_comes_first_and_then_the_likeliest(toy_served):
    body = {"prompt": "Hi", "max_tokens": 40, "temperature": 2.0, "seed": 3, "logprobs": 3}
    found = toy_served.post(body)[1]["choices"][0]["logprobs"]
    for token, logprob, best in zip(found["tokens"], found["token_logprobs"], found["top_logprobs"], strict=True):
        first, *others = best.items()
        assert first[0] == token
        assert first[1] == logprob or token == BROKEN  # as several tokens read
        assert [value for _, value in others] == sorted((value for _, value in others), reverse=True)
    assert any(len(best) == 4 for best in found["top_logprobs"])


def test_of_two_that_read_alike_the_likelier_is_told():
    entries = [{"token": "\ufffd", "logprob": value} for value in (-2.0, -1.0, -3.0)]
    assert _by_text(entries) == {"\ufffd": -1.0}


def test_a_streamed_conversation_adds_up_too(served):
    body = {"messages": MESSAGES, "max_tokens": 32, "logprobs": True, "top_logprobs": 1}
    path = "/v1/chat/completions"
    whole = served.post(body, path)[1]["choices"][0]
    assert streamed(served, path, **body)[0] == (whole["message"]["content"], {**whole["logprobs"], "refusal": []})


def test_tokens_end_where_the_text_was_stopped(toy_served):
    body = {"prompt": "Hi", "max_tokens": 40, "stop": "letter", "logprobs": 1}
    choice = toy_served.post(body)[1]["choices"][0]
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    assert streamed(toy_served, "/v1/completions", **body)[0] == (choice["text"], choice["logprobs"])


def test_only_the_tokens_of_holes_have_some_and_offsets_lie_in_the_whole_text(toy_served):
    body = {"prompt": [{"text": "Every "}, {"mask": 4}, {"text": "ed "}, {"mask": 2}], "logprobs": 1}
    choice = toy_served.post(body)[1]["choices"][0]
    assert choice["logprobs"]["text_offset"] == [6, 7, 8, 9, 13, 14]
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"][6:10] + choice["text"][13:15]
    assert streamed(toy_served, "/v1/completions", **body)[0] == (choice["text"], choice["logprobs"])


def test_offsets_count_characters_however_many_tokens_each_has(toy_served):
    body = {"prompt": [{"text": "\N{SNOWMAN}\N{GRINNING FACE}" * 6}, {"mask": 2}], "logprobs": 0}
    choice = toy_served.post(body)[1]["choices"][0]
    assert choice["logprobs"]["text_offset"] == [12, 13]
    assert streamed(toy_served, "/v1/completions", **body)[0] == (choice["text"], choice["logprobs"])


def test_tokens_that_are_parts_of_a_character_have_its_offset(make_llada):
    """Random weights write random bytes."""
    llm = unmask.load(str(make_llada()), device="cpu")
    settings = unmask.Settings(max_tokens=40, temperature=1.0)
    with running(llm, policy="fixed", settings=settings, seed=5) as found:
        body = {"prompt": "the", "logprobs": 0}
        choice = found.post(body)[1]["choices"][0]
        assert streamed(found, "/v1/completions", **body)[0] == (choice["text"], choice["logprobs"])
        content = found.post({"messages": MESSAGES, "logprobs": True}, "/v1/chat/completions")[1]["choices"][0]
    offsets = choice["logprobs"]["text_offset"]
    assert offsets == sorted(offsets)
    assert offsets[0] == 0
    assert offsets[-1] <= len(choice["text"])
    assert any(token["bytes"] is None for token in content["logprobs"]["content"])


def test_events_and_log_probabilities_go_together(toy_served):
    body = {"prompt": "Hi", "max_tokens": 8, "stream": True, "logprobs": 3}
    for events, candidates in ((True, 3), ({"candidates": 5}, 5), ({"candidates": 1}, 3)):
        _, _, text = toy_served.send("POST", "/v1/completions", {**body, "decoding": {"events": events}})
        line = next(frame for frame in text.split("\n\n") if frame.startswith("event: pass"))
        assert len(json.loads(line.split("data: ")[1])["open"][0]["candidates"]) == candidates
        assert '"top_logprobs": [{' in text


WRONG = {
    "too many": ("/v1/completions", {"prompt": "Hi", "logprobs": 21}, "logprobs", "from 0 to 20"),
    "true": ("/v1/completions", {"prompt": "Hi", "logprobs": True}, "logprobs", "from 0 to 20"),
    "a number for a conversation": ("/v1/chat/completions", {"messages": MESSAGES, "logprobs": 2}, "logprobs", "true"),
    "candidates alone": ("/v1/chat/completions", {"messages": MESSAGES, "top_logprobs": 2}, "top_logprobs", "true"),
    "an answer of very many candidates": (
        "/v1/completions",
        {"prompt": "Hi", "max_tokens": 2000, "n": 8, "logprobs": 20},
        "logprobs",
        "320000 candidates are asked for; one request may ask for 262144",
    ),
    "too many candidates": (
        "/v1/chat/completions",
        {"messages": MESSAGES, "logprobs": True, "top_logprobs": 21},
        "top_logprobs",
        "less than or equal to 20",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_told_is_refused(case, toy_served):
    path, body, param, says = WRONG[case]
    status, answer = toy_served.post(body, path)
    assert (status, answer["error"]["param"]) == (400, param)
    assert says in answer["error"]["message"]
