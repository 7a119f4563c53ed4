"""Gaps: answers that are written already, with some of their words rubbed out.

The model sees prompt and answer with masks where something is missing, so holes lie between known text on both sides.
`number_gaps`: every number of a worked word problem is missing. `code_gaps`: half of the names, numbers and signs of a
list function are. The items are those of word problems and list functions, on the same side of the split.

No rule of this project was tuned on these two: they are for judging rules (docs/joint.md).
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, replace
from typing import ClassVar

from unmask.tasks.base import Item, Task, tasks
from unmask.tasks.list_functions import ListFunctions
from unmask.tasks.word_problems import WordProblems

_NUMBER = re.compile(r"[0-9][0-9,]*")
_WORD = re.compile(r"[A-Za-z_]+|[0-9]+|[^\sA-Za-z_0-9]")
SEED = 1_000_003  # items differ from those that the other tasks draw with the same seed


@tasks.register("number_gaps")
@dataclass(frozen=True, slots=True, kw_only=True)
class NumberGaps(Task):
    """Worked word problems without their numbers."""

    prefix: ClassVar[str] = WordProblems.prefix
    max_tokens: ClassVar[int] = WordProblems.max_tokens
    block_size: ClassVar[int] = WordProblems.block_size

    def generate(self, seed: int, n: int, split: str = "test") -> list[Item]:
        items = WordProblems().generate(SEED + seed, n, split)
        return [replace(item, gaps=_spans(_NUMBER, item.answer)) for item in items]

    def check(self, item: Item, text: str) -> bool:
        return WordProblems().check(item, text)


@tasks.register("code_gaps")
@dataclass(frozen=True, slots=True, kw_only=True)
class CodeGaps(Task):
    """List functions without half of their words."""

    prefix: ClassVar[str] = ListFunctions.prefix
    max_tokens: ClassVar[int] = ListFunctions.max_tokens
    block_size: ClassVar[int] = ListFunctions.block_size

    def generate(self, seed: int, n: int, split: str = "test") -> list[Item]:
        rng = random.Random(f"code_gaps/{split}/{seed}")
        items = ListFunctions().generate(SEED + seed, n, split)
        words = [_spans(_WORD, item.answer) for item in items]
        return [
            replace(item, gaps=tuple(sorted(rng.sample(spans, len(spans) // 2))))
            for item, spans in zip(items, words, strict=True)
        ]

    def check(self, item: Item, text: str) -> bool:
        return ListFunctions().check(item, text)

    def check_many(self, items: list[Item], texts: list[str]) -> list[bool]:
        return ListFunctions().check_many(items, texts)


def _spans(words: re.Pattern[str], text: str) -> tuple[tuple[int, int], ...]:
    return tuple(match.span() for match in words.finditer(text))
