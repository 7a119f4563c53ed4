"""Where a text ends, which part of it can be shown before it is complete, and what a finished canvas says."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from unmask.engine.canvas import Canvas
from unmask.models.checkpoint.tokenizer import TextCodec
from unmask.types import Output, Usage

_BYTES = 4  # of a character, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What ends a text: certain token ids, or certain strings."""

    token_ids: Collection[int]
    strings: Sequence[str]
    codec: TextCodec
    special: bool = False  # special tokens are part of the text

    def cut(self, ids: list[int]) -> tuple[list[int], str, bool]:
        """The ids and the text before the end, and whether the text has an end."""
        kept = next((ids[:index] for index, token in enumerate(ids) if token in self.token_ids), ids)
        text = self.codec.decode(kept, special=self.special)
        found = [(place, string) for string in self.strings if (place := text.find(string)) >= 0]
        if not found:
            return kept, text, len(kept) < len(ids)
        # The string that is complete first: a stream cannot wait for a longer string that began earlier.
        end, _ = min(found, key=lambda match: (match[0] + len(match[1]), match[0]))
        return kept[: self._tokens_within(kept, end)], text[:end], True

    def _tokens_within(self, ids: list[int], characters: int) -> int:
        """The largest number of leading tokens whose text is no longer than so many characters."""

        def length(n: int) -> int:
            return len(self.codec.decode(ids[:n]))

        # Incomplete characters make lengths go up and down by a few.
        near = min(len(ids), bisect_right(range(len(ids) + 1), characters, key=length) + _BYTES)
        return next(n for n in range(near, -1, -1) if length(n) <= characters)

    def held_back(self, text: str) -> int:
        """How many characters at the end of an unfinished text may still turn out to belong to a stop string."""
        longest = 0
        for string in self.strings if text else ():
            end = min(len(string) - 1, len(text))
            while (place := string.rfind(text[-1:], longest, end)) >= 0 and not text.endswith(string[: place + 1]):
                end = place
            longest = max(longest, place + 1)
        return longest


@dataclass(slots=True, kw_only=True)
class TextStream:
    """Turns a growing list of ids into pieces of text that never have to be taken back."""

    ending: Ending
    sent: str = field(init=False, default="")
    _ended: bool = field(init=False, default=False)

    def feed(self, ids: list[int], *, final: bool) -> str:
        """The text that has become certain since the last call."""
        if self._ended and not final:
            return ""
        _, text, self._ended = self.ending.cut(ids)
        if not self._ended and not final:
            # An incomplete character decodes to replacement characters until its last byte has come.
            text = text.rstrip("\N{REPLACEMENT CHARACTER}")
            text = text[: len(text) - self.ending.held_back(text)]
        delta = text[len(self.sent) :]
        self.sent += delta
        return delta


def shown(canvas: Canvas, tokens: list[int], special: Collection[int]) -> list[int]:
    """The tokens that the text of an infilling, or of its beginning, is made of.

    A special token between two texts is shown as it was written, so that they do not run together. One at either end,
    or in a hole, is left out.
    """
    holes = set(canvas.holes)
    kept = [token for place, token in enumerate(tokens) if token not in special or place not in holes]
    texts = [place for place, token in enumerate(kept) if token not in special]
    return kept[texts[0] : texts[-1] + 1] if texts else []


def output_of(canvas: Canvas, ending: Ending, *, infills: bool) -> Output:
    """What a finished canvas says: a continuation up to where its text ends, or an infilled text as a whole."""
    if infills:
        text = ending.codec.decode(shown(canvas, canvas.tokens, ending.codec.special_ids), special=True)
        ids, ended, completion = list(canvas.tokens), True, len(canvas.holes)
    else:
        ids, text, ended = ending.cut(canvas.filled)
        completion = len(ids)
    prompt = len(canvas.tokens) - len(canvas.holes)
    return Output(
        text=text,
        token_ids=ids,
        finish_reason="stop" if ended else "length",
        usage=Usage(prompt_tokens=prompt, completion_tokens=completion, forward_passes=canvas.passes),
        canvas_ids=canvas.filled,
        step_map=[canvas.step_map[position] for position in canvas.holes],
    )
