"""What a task of the tiny suite is: seeded items, an exact checker, and a split that cannot leak.

The side of an item is a hash of its content, so no seed can ever put the same problem into both train and test.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import ClassVar, Protocol, runtime_checkable

from unmask.errors import check_known
from unmask.registry import Registry

TEST_SHARE = 1 / 8
NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve".split()  # in words


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One problem: what the model is given, and what its answer is checked against."""

    prompt: str
    answer: str  # a correct answer, in the form the model is taught
    kind: str = ""  # for breakdowns: number of holes, template, count of numbers, chain of primitives
    tests: tuple[str, ...] = ()  # hidden assertions, where the answer is a program
    gaps: tuple[tuple[int, int], ...] = ()  # spans of the answer to fill in, where the rest of it is given


@runtime_checkable
class Task(Protocol):
    """A family of problems. `max_tokens` and `block_size` are the documented decoding settings."""

    prefix: ClassVar[str]  # how every prompt of the task begins
    max_tokens: ClassVar[int]
    block_size: ClassVar[int]

    def generate(self, seed: int, n: int, split: str = "test") -> list[Item]:
        """`n` different items of one side, 'train' or 'test'; the same seed gives the same items for ever."""

    def check(self, item: Item, text: str) -> bool:
        """Whether the text solves the item; any text is allowed, none raises."""

    def check_many(self, items: list[Item], texts: list[str]) -> list[bool]:
        """`check` for each pair; a task may do once what the pairs share."""
        return [self.check(item, text) for item, text in zip(items, texts, strict=True)]


tasks: Registry[Task] = Registry("task", "unmask.tasks")


def side(content: str) -> str:
    """The side, train or test, to which a problem with this canonical content belongs."""
    digest = blake2b(content.encode(), digest_size=4).digest()
    return "test" if int.from_bytes(digest, "big") < TEST_SHARE * 2**32 else "train"


def draw_items(
    name: str, seed: int, n: int, split: str, draw: Callable[[random.Random], tuple[str, Item]]
) -> list[Item]:
    """The first `n` different items on the wanted side; `draw` gives canonical content and item."""
    check_known("split", [split], ["train", "test"])
    rng = random.Random(f"{name}/{split}/{seed}")
    items: dict[str, Item] = {}
    while len(items) < n:
        content, item = draw(rng)
        if side(content) == split:
            items.setdefault(item.prompt, item)
    return list(items.values())
