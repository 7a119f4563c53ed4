"""The passes of a streamed text as server-sent events: the lines of a trace between the chunks."""

import json
import threading

import pytest
from openai import OpenAI
from serve.servers import running, until

import unmask
from unmask.serve import app

PROMPT = "Countdown: 86,28,13,31,96"


def parsed(text: str) -> list[tuple[str, dict]]:
    """The frames of a stream as pairs of event and data; comments and the end are left out."""
    found = []
    for frame in text.removesuffix("\n\n").split("\n\n"):
        lines = dict(line.split(": ", 1) for line in frame.split("\n"))
        if lines.get("data") not in (None, "[DONE]"):
            found.append((lines.get("event", "message"), json.loads(lines["data"])))
    return found


def ask(found, events, path="/v1/completions", **body):
    given = {"prompt": PROMPT} if path == "/v1/completions" else {"messages": [{"role": "user", "content": PROMPT}]}
    decoding = {"events": events, **body.pop("decoding", {})}
    body = {**given, "max_tokens": 30, "stream": True, "decoding": decoding, **body}
    status, _, text = found.send("POST", path, body)
    assert status == 200, text
    assert text.endswith("data: [DONE]\n\n")
    return parsed(text)


def lines(frames: list[tuple[str, dict]], kind: str) -> list[dict]:
    """The data of the events of a kind, without the fields that every chunk has."""
    found = [data for event, data in frames if event == kind]
    for data in found:
        assert data.pop("object") == f"decoding.{kind}"
        assert data.pop("choices") == []
        assert data.pop("id").startswith(("cmpl-", "chatcmpl-"))
        assert isinstance(data.pop("created"), int)
        assert data.pop("model") == "tiny"
    return found


def test_the_events_of_a_text_are_the_lines_of_its_trace(served):
    detail = {"candidates": 3, "overlap": True}
    frames = ask(served, detail)
    trace = served.llm.generate(PROMPT, max_tokens=30, early_stop=True, trace=unmask.Detail(**detail)).trace
    header = dict(trace.header)
    assert header.pop("model") == "tiny"
    assert lines(frames, "header") == [header]
    assert lines(frames, "pass") == trace.steps
    assert lines(frames, "result") == trace.results


def test_the_light_form_tells_the_commits_alone(served):
    frames = ask(served, True, path="/v1/chat/completions")
    passes = lines(frames, "pass")
    out = served.llm.chat([{"role": "user", "content": PROMPT}], max_tokens=30, early_stop=True, trace=True)
    assert len(passes) == out.usage.forward_passes
    assert all(line["open"] == [] and "overlap" not in line for line in passes)
    told = [[(c["position"], c["text"], c["probability"]) for c in line["committed"]] for line in passes]
    assert told == [[(c["position"], c["text"], None) for c in line["committed"]] for line in out.trace.steps]


def test_events_come_between_the_chunks_of_the_text(served):
    body = {"decoding": {"policy": "fixed"}}
    frames = ask(served, True, **body)
    kinds = [kind for kind, _ in frames]
    assert kinds[0] == "header"
    assert kinds[-2:] == ["result", "message"]
    assert "pass" in kinds[kinds.index("message") : -2]
    plain = [data for kind, data in frames if kind == "message"]
    text = "".join(choice["text"] for data in plain for choice in data["choices"])
    assert text == served.llm.generate(PROMPT, max_tokens=30, early_stop=True, policy="fixed").text


def test_rows_are_the_choices_of_the_request(served):
    frames = ask(served, {"candidates": 1}, n=2, temperature=1.0, prompt=[PROMPT, "Countdown: 3,4,5,12"], seed=5)
    [header] = lines(frames, "header")
    assert [PROMPT in prompt["text"] for prompt in header["prompts"]] == [True, True, False, False]
    passes, results = lines(frames, "pass"), {line["row"]: line for line in lines(frames, "result")}
    assert sorted(results) == [0, 1, 2, 3]
    for row, result in results.items():
        own = [line for line in passes if line["row"] == row]
        assert [line["step"] for line in own] == list(range(result["usage"]["forward_passes"]))
        settings = unmask.Settings(max_tokens=30, early_stop=True, temperature=1.0, seed=5 + row % 2)
        prompt = PROMPT if row < 2 else "Countdown: 3,4,5,12"
        assert served.llm.generate(prompt, settings=settings).text == result["text"]


def test_the_official_client_reads_a_stream_with_events(served):
    client: OpenAI = served.client()
    asked = {"model": "tiny", "max_tokens": 30, "stream": True, "extra_body": {"decoding": {"events": {}}}}
    chunks = list(client.completions.create(prompt=PROMPT, **asked))
    text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    assert text == served.llm.generate(PROMPT, max_tokens=30, early_stop=True).text
    assert {chunk.object for chunk in chunks if not chunk.choices} == {f"decoding.{k}" for k in KINDS}
    messages = [{"role": "user", "content": PROMPT}]
    chunks = list(client.chat.completions.create(messages=messages, **asked))
    passes = [chunk for chunk in chunks if chunk.object == "decoding.pass"]
    assert [chunk.step for chunk in passes] == list(range(len(passes)))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == served.llm.chat(messages, max_tokens=30, early_stop=True).text


KINDS = ("header", "pass", "result")


@pytest.mark.parametrize("decoding", [{}, {"events": False}, {"events": None}])
def test_a_stream_without_events_is_what_it_was(toy_served, decoding):
    body = {"prompt": "Hi", "max_tokens": 3, "stream": True, "decoding": {"policy": "fixed", **decoding}}
    _, _, text = toy_served.send("POST", "/v1/completions", body)
    first = json.loads(text.split("\n\n")[0].removeprefix("data: "))
    head = f'{{"id": "{first["id"]}", "object": "text_completion", "created": {first["created"]}, "model": "toy"'

    def chunk(text: str, reason: str = "null", more: str = "") -> str:
        choice = f'{{"index": 0, "text": "{text}", "logprobs": null, "finish_reason": {reason}}}'
        return f'data: {head}, "choices": [{choice}]{more}}}\n\n'

    costs = '{"policy": "fixed", "seed": 0, "forward_passes": 3, "tokens_per_pass": 1.0, "ignored": []}'
    last = chunk("", '"length"', f', "decoding": {costs}')
    assert text == chunk("E") + chunk("v") + chunk("e") + last + "data: [DONE]\n\n"


REFUSED = {
    "events is for requests with stream: true": {"events": True, "stream": False},
    "overlap is for blocks of at most 256 positions": {"events": {"overlap": True}, "block_size": 257},
}
FORMS = ["yes", 1, [], {"candidate": 1}, {"candidates": -1}, {"candidates": 21}, {"candidates": "5"}, {"overlap": 1}]
WRONG = [*REFUSED.items(), *(("decoding.events must be true, false or {", {"events": form}) for form in FORMS)]


@pytest.mark.parametrize(("message", "decoding"), WRONG)
def test_what_cannot_be_sent_is_refused_with_the_name_of_the_field(toy_served, message, decoding):
    given = {name: value for name, value in decoding.items() if name != "stream"}
    status, answer = toy_served.post({"prompt": "Hi", "stream": decoding.get("stream", True), "decoding": given})
    assert status == 400
    assert answer["error"]["message"].startswith(message)
    assert answer["error"]["param"] == "decoding.events"


@pytest.mark.parametrize("decoding", [{}, {"events": True}])
def test_a_silent_stream_gives_signs_of_life(held, decoding, monkeypatch):
    monkeypatch.setattr(app, "SILENCE_S", 0.02)
    with running(held) as found:
        answers = []
        body = {"prompt": "Hi", "max_tokens": 6, "stream": True, "decoding": decoding}
        asking = threading.Thread(target=lambda: answers.append(found.send("POST", "/v1/completions", body)))
        asking.start()
        until(lambda: held.model.passes > 0)
        threading.Event().wait(0.2)  # the engine is blocked, and the stream silent
        held.model.gate.set()
        asking.join(30)
    [(status, _, text)] = answers
    assert status == 200
    assert text.count(": still here\n\n") >= 2
    without = text.replace(": still here\n\n", "")
    pieces = [choice["text"] for kind, data in parsed(without) if kind == "message" for choice in data["choices"]]
    assert "".join(pieces) == "Every "
    assert without.endswith("data: [DONE]\n\n")


def test_a_client_that_leaves_a_silent_stream_takes_its_text_along(held, monkeypatch):
    monkeypatch.setattr(app, "SILENCE_S", 0.02)
    with running(held) as found:
        client = found.client()
        asked = {"model": "toy", "prompt": "Hi", "max_tokens": 6, "stream": True}
        coming = client.completions.create(**asked)
        until(lambda: held.model.passes > 0)
        coming.close()
        until(lambda: found.worker.under_way() == 0)
        held.model.gate.set()
        assert client.completions.create(model="toy", prompt="Hi", max_tokens=6).choices[0].text == "Every "
