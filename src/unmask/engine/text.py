"""Where a text ends, and which part of it can be shown before it is complete."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from unmask.models.tokenizer import TextCodec


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What ends a text: certain token ids, or certain strings."""

    token_ids: Collection[int]
    strings: Sequence[str]
    codec: TextCodec

    def cut(self, ids: list[int]) -> tuple[list[int], str, bool]:
        """The ids and the text before the end, and whether there was one."""
        kept = next((ids[:index] for index, token in enumerate(ids) if token in self.token_ids), ids)
        text = self.codec.decode(kept)
        matches = [place for place in (text.find(string) for string in self.strings) if place >= 0]
        if not matches:
            return kept, text, len(kept) < len(ids)
        end = min(matches)
        whole = next(n for n in range(len(kept), -1, -1) if len(self.codec.decode(kept[:n])) <= end)
        return kept[:whole], text[:end], True

    def held_back(self, text: str) -> int:
        """How many characters at the end of an unfinished text may still turn out to belong to a stop string."""
        longest = 0
        for string in self.strings:
            for length in range(min(len(string) - 1, len(text)), longest, -1):
                if text.endswith(string[:length]):
                    longest = length
                    break
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
