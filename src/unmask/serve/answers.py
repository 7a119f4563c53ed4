"""What a client asked for and reads: an answer as a whole, or the server-sent events of one that is streamed.

schema.py has the shapes. Here answers are plain data: in a chunk, a null field differs from a missing one.
"""

from __future__ import annotations

import math
import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from unmask import policies
from unmask.engine.scheduler import Request
from unmask.models.checkpoint.tokenizer import TextCodec
from unmask.serve.schema import Body
from unmask.serve.strict_json import dumps
from unmask.trace.record import pass_line, result_line
from unmask.types import Output, StreamEvent

DONE = b"data: [DONE]\n\n"
IMPOSSIBLE = -9999.0  # the logarithm of 0, which JSON does not have; the number is OpenAI's
BROKEN = "\N{REPLACEMENT CHARACTER}"
MOST_BROKEN = 3  # of an incomplete character: it lacks at least one of its four bytes
WINDOW = 8  # tokens that tell how the next one reads: the bytes of a whole character, and of an incomplete one


@dataclass(slots=True, kw_only=True)
class Answer:
    """The answer to one request, as far as its texts are decoded: texts, or messages that answer a conversation."""

    body: Body
    model: str  # as clients call it
    requests: list[Request]  # one for each choice: prompt by prompt, each prompt with seeds that count up
    ignored: list[str]
    logprobs: dict[Request, Logprobs]  # none: not asked for
    header: dict[str, Any] | None  # of the events, if they are asked for
    outputs: dict[Request, Output] = field(default_factory=dict)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    def hear(self, request: Request, event: StreamEvent) -> None:
        """Note what the answer needs of an event of a text."""
        if self.logprobs:
            self.logprobs[request].hear(event)
        if event.output is not None:
            self.outputs[request] = event.output

    @property
    def done(self) -> bool:
        return len(self.outputs) == len(self.requests)

    def whole(self) -> dict[str, Any]:
        """Everything at once."""
        kind, choices = "chat.completion" if self.body.chat else "text_completion", []
        for index, request in enumerate(self.requests):
            output = self.outputs[request]
            logprobs = self.logprobs[request].take(output) if self.logprobs else None
            message = {"role": "assistant", "content": output.text}
            choices.append(self._choice(index, "message", message, output.finish_reason, logprobs))
        return self._head(kind) | {"choices": choices} | self.costs()

    def first_frames(self) -> bytes:
        """The server-sent events before any text."""
        header = b"" if self.header is None else self._event("header", self.header)
        roles = range(len(self.requests) if self.body.chat else 0)
        return header + b"".join(self._chunk(index, {"role": "assistant", "content": ""}) for index in roles)

    def frames(self, request: Request, event: StreamEvent) -> bytes:
        """Hear an event of a text; the server-sent events for it: the pass, if asked for, new text, and the end."""
        self.hear(request, event)
        index, found, logprobs = self.requests.index(request), b"", None
        if self.header is not None and event.step is not None:
            found += self._event("pass", pass_line(index, event.step, request.token_text))
        if self.logprobs and (event.text_delta or event.output is not None):
            taken = self.logprobs[request].take(event.output)
            logprobs = taken if any(taken.values()) else None  # null: there is no token
        if event.text_delta:
            found += self._chunk(index, {"content": event.text_delta}, logprobs=logprobs)
            logprobs = None
        if event.output is not None:
            if self.header is not None:
                found += self._event("result", result_line(index, event.output))
            found += self._chunk(index, {}, event.output.finish_reason, logprobs)
        return found

    def last_frames(self) -> bytes:
        """The server-sent events after all text."""
        return (frame(self._chunk_of([]) | self.costs()) if self.body.include_usage else b"") + DONE

    def _chunk(
        self, index: int, delta: dict[str, str], reason: str | None = None, logprobs: dict[str, Any] | None = None
    ) -> bytes:
        """The news of one choice, as fields of a message; the last chunk has the costs, unless usage has its own."""
        chunk = self._chunk_of([self._choice(index, "delta", delta, reason, logprobs)])
        if reason is not None and self.done and not self.body.include_usage:
            chunk["decoding"] = self.costs()["decoding"]
        return frame(chunk)

    def _chunk_of(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        head = self._head("chat.completion.chunk" if self.body.chat else "text_completion")
        return head | {"choices": choices} | ({"usage": None} if self.body.include_usage else {})

    def _choice(self, index: int, part: str, said: dict[str, str], reason: str | None, logprobs: Any) -> dict[str, Any]:
        text = {part: said} if self.body.chat else {"text": said.get("content", "")}
        return {"index": index, **text, "logprobs": logprobs, "finish_reason": reason}

    def _event(self, kind: str, line: dict[str, Any]) -> bytes:
        """A line of a trace, with the head of a chunk and without choices: clients that look for text pass it over."""
        return frame(line | self._head(f"decoding.{kind}") | {"choices": []}, kind)

    def _head(self, kind: str) -> dict[str, Any]:
        name = f"chatcmpl-{self.id}" if self.body.chat else f"cmpl-{self.id}"
        return {"id": name, "object": kind, "created": self.created, "model": self.model}

    def costs(self) -> dict[str, Any]:
        """`usage` and `decoding` of the whole request."""
        plan, outputs = self.requests[0].plan, [self.outputs[request] for request in self.requests]
        prompt = sum(output.usage.prompt_tokens for output in outputs[:: self.body.n or 1])
        completion = sum(output.usage.completion_tokens for output in outputs)
        passes = sum(output.usage.forward_passes for output in outputs)
        decoding: dict[str, Any] = {
            "policy": policies.name_of(plan.policy),
            "seed": plan.settings.seed,
            "forward_passes": passes,
            "tokens_per_pass": completion / passes,
            "ignored": self.ignored,
        }
        if self.body.decoding is not None and self.body.decoding.step_map:
            maps = [output.step_map for output in outputs]
            decoding["step_map"] = maps[0] if len(maps) == 1 else maps
        usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
        return {"usage": usage, "decoding": decoding}


def frame(data: dict[str, Any], kind: str | None = None) -> bytes:
    """One server-sent event; without a kind it is a chunk."""
    head = b"" if kind is None else f"event: {kind}\n".encode()
    return head + b"data: " + dumps(data) + b"\n\n"


class Logprobs:
    """The log-probabilities of one text in OpenAI's two forms, each token's at the pass that committed it.

    They are gathered from the events of the text: what a pass knew is gone with the next. Offsets count characters;
    tokens that hold parts of one character have its offset.
    """

    def __init__(self, request: Request, codec: TextCodec, *, top: int, chat: bool) -> None:
        self.request, self.codec = request, codec
        self.top, self.chat = top, chat  # candidates told of each token; in the form for conversations
        self._ids = list(request.canvas.tokens)
        self._entries: dict[int, dict[str, Any]] = {}  # of committed tokens, by position
        self._first = 0 if request.infills else request.canvas.holes[0]  # position at which the text begins
        self._next = self._first  # position of the first token that the client does not have
        self._characters = 0  # before that token
        self._sent = 0  # characters that the client has

    def hear(self, event: StreamEvent) -> None:
        """Note what was sent, and what a pass committed; what it took back will be committed again."""
        self._sent += len(event.text_delta)
        if (step := event.step) is None:
            return
        candidates = {place.position: place.candidates for place in step.open or ()}
        for commit in step.committed:
            own = self._entry(commit.token_id, commit.probability or 0.0)
            known = candidates.get(commit.position, ())[: self.top]
            if self.chat:
                best: Any = [self._entry(*candidate) for candidate in known]
            else:
                best = _by_text([own, *(self._entry(*each) for each in known if each[0] != commit.token_id)])
            self._entries[commit.position] = own | {"top_logprobs": best}
            self._ids[commit.position] = commit.token_id

    def _entry(self, token_id: int, probability: float) -> dict[str, Any]:
        text = self.codec.token_text(token_id)
        # The bytes of a token that is no text by itself are not known here.
        raw = None if BROKEN in text else list(text.encode("utf-8"))
        return {"token": text, "logprob": math.log(probability) if probability > 0 else IMPOSSIBLE, "bytes": raw}

    def take(self, output: Output | None) -> dict[str, Any]:
        """The tokens that were not taken yet, up to the end of the text; of an unfinished one, up to what was sent."""
        canvas, entries, offsets = self.request.canvas, list[dict[str, Any]](), list[int]()
        end = canvas.length if output is None or self.request.infills else canvas.holes[0] + len(output.token_ids)
        for position in range(self._next, end):
            width = self._width(position)
            # A token without a character of its own may be taken back until the next character was sent.
            unsent = self._characters + max(1, width) > self._sent
            if output is None and (unsent or self._ids[position] == canvas.mask_id):
                break
            if position in self._entries:
                entries.append(self._entries[position])
                offsets.append(self._characters)
            self._next, self._characters = position + 1, self._characters + width
        if self.chat:
            return {"content": entries, "refusal": None}
        return {
            "tokens": [entry["token"] for entry in entries],
            "token_logprobs": [entry["logprob"] for entry in entries],
            "top_logprobs": [entry["top_logprobs"] for entry in entries],
            "text_offset": offsets,
        }

    def _width(self, position: int) -> int:
        """How many characters the token adds to the text. An incomplete character counts with its last token."""
        ids = self._ids[max(self._first, position - WINDOW) : position + 1]
        return max(0, self._length(ids) - self._length(ids[:-1]))

    def _length(self, ids: list[int]) -> int:
        text = self.codec.decode(ids)
        return len(text) - min(MOST_BROKEN, len(text) - len(text.rstrip(BROKEN)))


def _by_text(entries: list[dict[str, Any]]) -> dict[str, float]:
    """The log-probabilities of tokens by their texts; of two that read alike, the larger."""
    found: dict[str, float] = {}
    for entry in entries:
        found[entry["token"]] = max(found.get(entry["token"], IMPOSSIBLE), entry["logprob"])
    return found
