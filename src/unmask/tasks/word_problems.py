"""Word problems: two to six steps of arithmetic told in everyday English.

Prompt: `Problem: ` and the story with its question. Answer: the worked steps, one short sentence with one equation
each, then `#### ` and the number, which alone is checked. Stories live in `stories_*.py`; here they get names, objects,
numbers, one of several wordings for each sentence, and sometimes a sentence that has nothing to do with the question.
The split is by story and numbers, so the same calculation in other words stays on its side.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from typing import ClassVar

from unmask.tasks import stories_at_home, stories_at_work, stories_in_town
from unmask.tasks.base import Item, draw_items, tasks
from unmask.tasks.story import DISTRACTIONS, FOOD, FRUIT, GOODS, PEOPLE, PRONOUNS, Story

PROMPT = "Problem: "
STORIES = (*stories_at_home.STORIES, *stories_at_work.STORIES, *stories_in_town.STORIES)
LARGEST_RESULT = 9999
DISTRACTED, SPELLED = 0.3, 0.25  # how often a distraction is told, and a small number written as a word

_WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
_SLOT = re.compile(r"(\$?)\{(\w+)\}(%?)")
_NAME = re.compile(r"[a-z]\w*")
_FINAL = re.compile(r"####\s*\$?\s*(-?[0-9][0-9,]{0,15})(?:\.0{1,9})?(?!\.?[0-9])")


@tasks.register("word_problems")
@dataclass(frozen=True, slots=True, kw_only=True)
class WordProblems:
    """Stories whose every step is a positive whole number."""

    prefix: ClassVar[str] = PROMPT
    max_tokens: ClassVar[int] = 128
    block_size: ClassVar[int] = 32

    def generate(self, seed: int, n: int, split: str = "test") -> list[Item]:
        return draw_items("word_problems", seed, n, split, _tell)

    def check(self, item: Item, text: str) -> bool:
        found, wanted = final_number(text), final_number(item.answer)
        return found is not None and found == wanted

    def check_many(self, items: list[Item], texts: list[str]) -> list[bool]:
        return [self.check(item, text) for item, text in zip(items, texts, strict=True)]


def final_number(text: str) -> int | None:
    """The whole number after the first `####`, if there is one."""
    match = _FINAL.search(text)
    return int(match[1].replace(",", "")) if match and text.find("####") == match.start() else None


def _tell(rng: random.Random) -> tuple[str, Item]:
    story = rng.choice(STORIES)
    while (values := _draw_numbers(story, rng)) is None:
        pass
    words = _draw_words(rng)
    told = [_render(rng.choice(wordings), values, words, rng) for wordings in story.told]
    if rng.random() < DISTRACTED:
        values["odd"] = rng.randint(2, 60)
        told.insert(rng.randint(0, len(told)), _render(rng.choice(DISTRACTIONS), values, words, rng))
    told.append(_render(rng.choice(story.asked), values, words, rng))
    steps = [_step(equation, text, values, words, rng) for equation, text in story.steps]
    result = values[story.steps[-1][0].split("=")[0]]
    numbers = ",".join(str(values[name]) for name in story.numbers)
    item = Item(prompt=PROMPT + " ".join(told), answer="\n".join([*steps, f"#### {result}"]), kind=story.name)
    return f"{story.name}:{numbers}", item


def _draw_numbers(story: Story, rng: random.Random) -> dict[str, int] | None:
    """A value for every number of the story and every step, or None if a step is not a positive whole number."""
    values: dict[str, int] = {}
    for name, rule in story.numbers.items():
        if isinstance(rule, str):
            if (value := _value_of(rule, values)) == 0:
                return None
            values[name] = value
        else:
            values[name] = rng.randrange(rule[0], rule[1] + 1, rule[2] if len(rule) > 2 else 1)
    for equation, _ in story.steps:
        name, formula = equation.split("=")
        if (value := _value_of(formula, values)) == 0:
            return None
        values[name] = value
    return values


def _value_of(formula: str, values: dict[str, int]) -> int:
    """A formula over +, -, *, / from left to right (stories never mix ranks); 0 stands for anything unusable."""
    first, *rest = re.split(r"([-+*/])", formula)
    total = _operand(first, values)
    for op, operand in zip(rest[::2], rest[1::2], strict=True):
        value = _operand(operand, values)
        if op == "/":
            total = total // value if value and total % value == 0 else 0
        else:
            total = total + value if op == "+" else total - value if op == "-" else total * value
    return total if 0 < total <= LARGEST_RESULT else 0


def _operand(text: str, values: dict[str, int]) -> int:
    return int(text) if text.isdecimal() else values[text]


def _step(equation: str, text: str, values: dict[str, int], words: dict[str, str], rng: random.Random) -> str:
    name, formula = equation.split("=")
    sum_ = _NAME.sub(lambda match: str(values[match[0]]), formula)
    return _render(text.replace("{}", f"{sum_}={values[name]}"), values, words, rng, spell=False)


def _render(text: str, values: dict[str, int], words: dict[str, str], rng: random.Random, *, spell: bool = True) -> str:
    """Fill the slots; a sentence starts with a capital."""
    filled = _SLOT.sub(lambda slot: _fill(slot, values, words, rng, spell=spell), text)
    return filled[0].upper() + filled[1:]


def _fill(
    slot: re.Match[str], values: dict[str, int], words: dict[str, str], rng: random.Random, *, spell: bool
) -> str:
    """What stands in a slot. Amounts of money and percentages are always digits."""
    currency, name, percent = slot.groups()
    if name in words:
        return words[name]
    value = values[name]
    if spell and not currency and not percent and value <= 12 and rng.random() < SPELLED:
        return "a dozen" if value == 12 and rng.random() < 0.5 else _WORDS[value]
    return f"{currency}{value:,}{percent}" if spell else f"{currency}{value}{percent}"


def _draw_words(rng: random.Random) -> dict[str, str]:
    (first, kind), (second, _) = rng.sample(PEOPLE, 2)
    goods, other = rng.sample(GOODS, 2)
    eaten = {"food": rng.choice(FOOD), "fruit": rng.choice(FRUIT)}
    return {"A": first, "B": second, "goods": goods, "other": other, **eaten, **PRONOUNS[kind]}
