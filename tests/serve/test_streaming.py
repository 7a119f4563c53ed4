"""Streams: frames, chunks, and text that adds up, through the official client and byte by byte."""

import asyncio
import json
import math
from typing import Literal

import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel
from serve.servers import running

import unmask
from unmask import policies
from unmask.models.toy import SENTENCE
from unmask.serve import schema
from unmask.serve.app import EventStream, _frames
from unmask.serve.config import ServerConfig
from unmask.serve.served import Served
from unmask.serve.translate import translate
from unmask.serve.worker import Ticket
from unmask.types import StreamEvent

PROMPT = "Countdown: 86,28,13,31,96"
CHAT = "/v1/chat/completions"


class Delta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChunkChoice(BaseModel):
    index: int
    delta: Delta
    logprobs: None = None
    finish_reason: Literal["stop", "length"] | None = None


class Chunk(schema.ChatCompletion):
    """One step of a conversation that is streamed."""

    object: Literal["chat.completion.chunk"]
    choices: list[ChunkChoice]


def frames(text: str) -> list[str]:
    """What the frames of a stream carry; every one of them is checked for its form."""
    assert text.endswith("\n\n")
    found = text.removesuffix("\n\n").split("\n\n")
    assert all(frame.startswith("data: ") and "\n" not in frame for frame in found)
    return [frame.removeprefix("data: ") for frame in found]


def test_the_pieces_of_a_completion_add_up(toy_served):
    out = toy_served.llm.generate("Hi", max_tokens=48, early_stop=True, policy="fixed")
    stream = toy_served.client().completions.create(
        model="toy", prompt="Hi", max_tokens=48, stream=True, extra_body={"decoding": {"policy": "fixed"}}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks) == out.text
    assert sum(bool(chunk.choices[0].text) for chunk in chunks) > 1
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[-1].decoding["forward_passes"] == out.usage.forward_passes
    assert not any(hasattr(chunk, "decoding") for chunk in chunks[:-1])


def test_a_streamed_conversation_begins_with_the_role(served):
    messages = [{"role": "user", "content": PROMPT}]
    out = served.llm.chat(messages, max_tokens=48, early_stop=True)
    chunks = list(served.client().chat.completions.create(model="tiny", messages=messages, max_tokens=48, stream=True))
    assert all(chunk.object == "chat.completion.chunk" for chunk in chunks)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:])
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == out.text
    assert chunks[-1].choices[0].finish_reason == out.finish_reason
    assert chunks[-1].decoding["policy"] == "mean_field"


def test_the_async_client_streams(served):
    async def ask():
        async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            stream = await client.completions.create(model="tiny", prompt=PROMPT, max_tokens=48, stream=True)
            return "".join([chunk.choices[0].text async for chunk in stream])

    assert asyncio.run(ask()) == served.llm.generate(PROMPT, max_tokens=48, early_stop=True).text


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("version", ["2.3", "2.4"])
def test_a_stream_ends_when_its_client_leaves_whatever_the_version_of_asgi(version, lost, toy):
    served = Served(toy, ServerConfig(), policy=policies.get("fixed"), settings=unmask.Settings())
    asked = translate(schema.CompletionRequest(prompt="Hi"), served)

    async def receive():
        if lost:
            raise OSError("the connection cannot be heard")
        return {"type": "http.disconnect"}

    async def send(message):
        pass

    async def answer():
        ticket = Ticket(asked.requests)
        stream = EventStream(asked, ticket, math.inf)
        await asyncio.wait_for(stream({"type": "http", "asgi": {"spec_version": version}}, receive, send), 10)
        assert ticket.requests[0].abandoned

    asyncio.run(answer())


def test_a_stream_ends_at_its_deadline_whatever_waits_to_be_sent(toy):
    served = Served(toy, ServerConfig(), policy=policies.get("fixed"), settings=unmask.Settings())
    asked = translate(schema.CompletionRequest(prompt="Hi"), served)

    async def read_slowly() -> list[bytes]:
        ticket, found = Ticket(asked.requests), []
        for _ in range(100):
            ticket.tell((asked.requests[0], StreamEvent(text_delta="a")))
        async for each in _frames(asked, ticket, asyncio.get_running_loop().time() + 0.1):
            found.append(each)
            await asyncio.sleep(0.03)
        return found

    *chunks, last = asyncio.run(read_slowly())
    assert 1 <= len(chunks) <= 5
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "timeout"


def test_usage_comes_last_if_it_is_asked_for(toy_served):
    chunks = list(
        toy_served.client().chat.completions.create(
            model="toy",
            messages=[{"role": "user", "content": "Hi"}],
            max_tokens=12,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert all(chunk.usage is None and "usage" in chunk.model_fields_set for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 12
    assert chunks[-1].usage.total_tokens == 12 + chunks[-1].usage.prompt_tokens
    assert chunks[-1].decoding["ignored"] == []
    assert not hasattr(chunks[-2], "decoding")


def test_choices_interleave_by_index(toy_served):
    body = {"prompt": ["a", "bb"], "n": 2, "max_tokens": 20, "stream": True, "temperature": 1.0, "seed": 0}
    texts, reasons, order = {}, {}, []
    for chunk in toy_served.client().completions.create(model="toy", **body):
        choice = chunk.choices[0]
        texts[choice.index] = texts.get(choice.index, "") + choice.text
        order.append(choice.index)
        if choice.finish_reason:
            reasons[choice.index] = choice.finish_reason
    settings = unmask.Settings(max_tokens=20, temperature=1.0, early_stop=True)
    alone = [toy_served.llm.generate(p, settings=settings.with_(seed=s)).text for p in ("a", "bb") for s in (0, 1)]
    assert [texts[index] for index in range(4)] == alone
    assert set(reasons) == {0, 1, 2, 3}
    assert order != sorted(order)


@pytest.mark.parametrize("path", ["/v1/completions", CHAT])
def test_every_frame_is_one_line_of_json_and_the_last_says_done(toy_served, path):
    body = {"messages": [{"role": "user", "content": "Hi"}]} if path == CHAT else {"prompt": "Hi"}
    status, headers, text = toy_served.send("POST", path, {**body, "max_tokens": 9, "stream": True})
    assert status == 200
    assert headers["Content-Type"].startswith("text/event-stream")
    *chunks, done = frames(text)
    assert done == "[DONE]"
    kind = Chunk if path == CHAT else schema.Completion
    for chunk in map(json.loads, chunks):
        assert kind.model_validate(chunk).model_dump(exclude_unset=True) == chunk


def test_no_piece_ends_inside_a_character(make_llada):
    """Random weights write random bytes, most of which are no whole characters by themselves."""
    llm = unmask.load(str(make_llada()), device="cpu")
    settings = unmask.Settings(max_tokens=40, temperature=1.0, seed=5)
    with running(llm, policy="fixed", settings=settings, seed=5) as found:
        _, _, text = found.send("POST", "/v1/completions", {"prompt": "the", "stream": True})
        pieces = [json.loads(chunk)["choices"][0]["text"] for chunk in frames(text)[:-1]]
    whole = llm.generate("the", policy="fixed", settings=settings).text
    assert "".join(pieces) == whole
    assert any(ord(letter) > 127 for letter in whole)


def test_a_piece_that_may_begin_a_stop_string_is_held_back(toy_served):
    stop = SENTENCE[10:14]
    body = {"prompt": "Hi", "max_tokens": 30, "stop": stop, "stream": True, "decoding": {"policy": "fixed"}}
    _, _, text = toy_served.send("POST", "/v1/completions", body)
    pieces = [json.loads(chunk)["choices"][0]["text"] for chunk in frames(text)[:-1]]
    assert "".join(pieces) == SENTENCE[:10]
