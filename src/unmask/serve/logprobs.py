"""Log-probabilities of the tokens of a text, each at the pass that committed it, in OpenAI's two forms.

They are gathered from the events of a text: what a pass knew is gone with the next. Offsets count characters; tokens
that hold parts of one character have its offset.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from unmask.engine.scheduler import Request
from unmask.models.checkpoint.tokenizer import TextCodec
from unmask.types import Output, StreamEvent

IMPOSSIBLE = -9999.0  # the logarithm of 0, which JSON does not have; the number is OpenAI's
BROKEN = "\N{REPLACEMENT CHARACTER}"
BYTES = 4  # of a character, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A place in the text, between two tokens."""

    position: int  # of the token behind it
    characters: int = 0  # before it
    base: int = 0  # characters before the tail, with its first token
    tail: tuple[int, ...] = ()  # the last token before the character that is incomplete here, and the tokens of that


@dataclass(frozen=True, slots=True, kw_only=True)
class _Token:
    """A token that was committed, and the likeliest ones at its position."""

    id: int
    probability: float
    candidates: tuple[tuple[int, float], ...]
    offset: int = 0


@dataclass(slots=True)
class Logprobs:
    """The log-probabilities of one text, as far as its events tell."""

    request: Request
    codec: TextCodec
    top: int  # candidates told of each token
    chat: bool  # in the form for conversations
    _found: dict[int, _Token] = field(init=False, default_factory=dict)  # by position
    _told: _Place = field(init=False)  # the end of the tokens that the client has
    _sent: int = field(init=False, default=0)  # characters that the client has

    def __post_init__(self) -> None:
        # The text of a continuation begins behind its prompt.
        self._told = _Place(position=0 if self.request.infills else self.request.canvas.holes[0])

    def hear(self, event: StreamEvent) -> None:
        """Note what was sent, and what a pass committed; what it took back will be committed again."""
        self._sent += len(event.text_delta)
        if (step := event.step) is None:
            return
        known = {place.position: place.candidates for place in step.open or ()}
        for commit in step.committed:
            likeliest, probability = known.get(commit.position, ())[: self.top], commit.probability or 0.0
            self._found[commit.position] = _Token(id=commit.token_id, probability=probability, candidates=likeliest)

    def take(self, output: Output | None) -> list[_Token]:
        """The tokens that were not taken yet, up to the end of the text; of an unfinished one, up to what was sent."""
        canvas, place = self.request.canvas, self._told
        end = canvas.length if output is None or self.request.infills else canvas.holes[0] + len(output.token_ids)
        holes, seen, count = set(canvas.holes), list[_Token](), 0
        while place.position < end and (output is not None or place.characters <= self._sent):
            token = self._found.get(place.position)
            if token is None and place.position in holes:
                break
            after = self._after(place, canvas.tokens[place.position] if token is None else token.id)
            if token is not None:
                seen.append(replace(token, offset=place.characters))
            # A token without characters of its own may still be taken back: it waits for one that was sent.
            if output is not None or place.characters < after.characters <= self._sent:
                self._told, count = after, len(seen)
            place = after
        return seen[:count]

    def _after(self, place: _Place, token_id: int) -> _Place:
        """The place behind the next token. A few tokens before it are enough to know how it reads."""
        window, decode = (*place.tail, token_id), self.codec.decode
        text = decode(window)[len(decode(place.tail[:1])) :]
        if text.endswith(BROKEN) and len(window) <= BYTES:
            whole = place.base + len(text.rstrip(BROKEN))
            return _Place(position=place.position + 1, characters=whole, base=place.base, tail=window)
        base = place.base + len(text)
        return _Place(position=place.position + 1, characters=base, base=base, tail=(token_id,))

    def form(self, tokens: list[_Token]) -> dict[str, Any]:
        """What a client reads of these tokens."""
        if self.chat:
            return {"content": [self._entry(token) for token in tokens], "refusal": None}
        return {
            "tokens": [self.codec.token_text(token.id) for token in tokens],
            "token_logprobs": [_logprob(token.probability) for token in tokens],
            "top_logprobs": [self._best(token) for token in tokens],
            "text_offset": [token.offset for token in tokens],
        }

    def _best(self, token: _Token) -> dict[str, float]:
        """The candidates by their texts, with the committed token among them; of two that read alike, the likelier."""
        found = {self.codec.token_text(token.id): _logprob(token.probability)}
        for candidate, probability in token.candidates:
            text = self.codec.token_text(candidate)
            if candidate != token.id:
                found[text] = max(found.get(text, IMPOSSIBLE), _logprob(probability))
        return found

    def _entry(self, token: _Token) -> dict[str, Any]:
        best = [self._named(candidate, probability) for candidate, probability in token.candidates]
        return self._named(token.id, token.probability) | {"top_logprobs": best}

    def _named(self, token_id: int, probability: float) -> dict[str, Any]:
        text = self.codec.token_text(token_id)
        # The bytes of a token that is no text by itself are not known here.
        raw = None if BROKEN in text else list(text.encode("utf-8"))
        return {"token": text, "logprob": _logprob(probability), "bytes": raw}


def _logprob(probability: float) -> float:
    return math.log(probability) if probability > 0 else IMPOSSIBLE
