"""Gaps: answers that are written already, with some of their words rubbed out.

The model sees prompt and answer with masks where something is missing, so holes lie between known text on both sides.
`number_gaps`: every number of a worked word problem is missing. `code_gaps`: half of the names, numbers and signs of a
list function are. The items are those of word problems and list functions, on the same side of the split.

No rule of this project was tuned on these two: they are for judging rules (docs/joint.md).
"""

from __future__ import annotations

import random
import re
from dataclasses import replace

from unmask.tasks.base import Item, tasks
from unmask.tasks.list_functions import ListFunctions
from unmask.tasks.word_problems import WordProblems

_NUMBER = re.compile(r"[0-9][0-9,]*")
_WORD = re.compile(r"[A-Za-z_]+|[0-9]+|[^\sA-Za-z_0-9]")
SEED = 1_000_003  # items differ from those that the other tasks draw with the same seed


@tasks.register("number_gaps")
class NumberGaps(WordProblems):
    """Worked word problems without their numbers."""

    def generate(self, seed: int, n: int, split: str = "test") -> list[Item]:
        items = WordProblems.generate(self, SEED + seed, n, split)
        return [replace(item, gaps=_spans(_NUMBER, item.answer)) for item in items]


@tasks.register("code_gaps")
class CodeGaps(ListFunctions):
    """List functions without half of their words."""

    def generate(self, seed: int, n: int, split: str = "test") -> list[Item]:
        rng = random.Random(f"code_gaps/{split}/{seed}")
        items = ListFunctions.generate(self, SEED + seed, n, split)
        words = [_spans(_WORD, item.answer) for item in items]
        return [
            replace(item, gaps=tuple(sorted(rng.sample(spans, len(spans) // 2))))
            for item, spans in zip(items, words, strict=True)
        ]


def _spans(words: re.Pattern[str], text: str) -> tuple[tuple[int, int], ...]:
    return tuple(match.span() for match in words.finditer(text))
