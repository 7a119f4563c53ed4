"""Log-probabilities of the tokens of a text, each at the pass that committed it, in OpenAI's two forms.

They are gathered from the events of a text: what a pass knew is gone with the next. Offsets count characters; tokens
that hold parts of one character have its offset.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from unmask.engine.scheduler import Request
from unmask.models.checkpoint.tokenizer import TextCodec
from unmask.types import Output, StreamEvent

IMPOSSIBLE = -9999.0  # the logarithm of 0, which JSON does not have; the number is OpenAI's
BROKEN = "\N{REPLACEMENT CHARACTER}"
MOST_BROKEN = 3  # of an incomplete character: it lacks at least one of its four bytes
WINDOW = 8  # tokens that tell how the next one reads: the bytes of a whole character, and of an incomplete one


@dataclass(slots=True)
class Logprobs:
    """The log-probabilities of one text, as far as its events tell."""

    request: Request
    codec: TextCodec
    top: int  # candidates told of each token
    chat: bool  # in the form for conversations
    _ids: list[int] = field(init=False)  # of the canvas, by position
    _entries: dict[int, dict[str, Any]] = field(init=False, default_factory=dict)  # of committed tokens, by position
    _first: int = field(init=False)  # position at which the text begins
    _next: int = field(init=False)  # position of the first token that the client does not have
    _characters: int = field(init=False, default=0)  # before that token
    _sent: int = field(init=False, default=0)  # characters that the client has

    def __post_init__(self) -> None:
        self._ids = list(self.request.canvas.tokens)
        # The text of a continuation begins behind its prompt.
        self._first = self._next = 0 if self.request.infills else self.request.canvas.holes[0]

    def hear(self, event: StreamEvent) -> None:
        """Note what was sent, and what a pass committed; what it took back will be committed again."""
        self._sent += len(event.text_delta)
        if (step := event.step) is None:
            return
        candidates = {place.position: place.candidates for place in step.open or ()}
        for commit in step.committed:
            best = [self._entry(*candidate) for candidate in candidates.get(commit.position, ())[: self.top]]
            own = self._entry(commit.token_id, commit.probability or 0.0)
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
            "top_logprobs": [_best(entry) for entry in entries],
            "text_offset": offsets,
        }

    def _width(self, position: int) -> int:
        """How many characters the token adds to the text. An incomplete character counts with its last token."""
        ids = self._ids[max(self._first, position - WINDOW) : position + 1]
        return max(0, self._length(ids) - self._length(ids[:-1]))

    def _length(self, ids: list[int]) -> int:
        text = self.codec.decode(ids)
        return len(text) - min(MOST_BROKEN, len(text) - len(text.rstrip(BROKEN)))


def _best(entry: dict[str, Any]) -> dict[str, float]:
    """Log-probabilities of a token and its candidates by their texts; of two that read alike, the first."""
    return {each["token"]: each["logprob"] for each in (*reversed(entry["top_logprobs"]), entry)}
