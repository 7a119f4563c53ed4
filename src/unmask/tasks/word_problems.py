"""Word problems: two to six steps of arithmetic told in everyday English.

Prompt: `Problem: ` and the story with its question. Answer: the worked steps, one short sentence with one equation
each, then `#### ` and the number, which alone is checked. A story gets names, objects, numbers, one of several wordings
for each sentence, and sometimes a sentence that has nothing to do with the question. The split is by story and numbers,
so the same calculation in other words stays on its side. Stories live in `stories.py`, in this notation:

    rope: k=2..9, l=3..25, c=5..60 by 5, n=k*l, a=n+c
      from a rope of {a} meters {A} uses {c}. | {A} has {a} meters of rope and cuts off {c}.
      the rest is cut into pieces of {l} meters. | {he} cuts the rest into pieces {l} meters long.
      ? How many pieces are there? | How many pieces does {he} get?
      > {p=a-c} meters are left. > that makes {r=p/l} pieces.

First come the name and the numbers: a range to draw from, or a formula over names before it. Then each sentence has a
line with its wordings; `? ` marks the question, and each `> ` a worked step with one equation. A line that begins with
`| ` continues the line above. Slots: {A} and {B} are people, {he} {his} {him} stand for A, {goods} {other} {food}
{fruit} are things, and the rest are numbers. A step has no number beside its equation.
"""

from __future__ import annotations

import random
import re
from typing import ClassVar

from unmask.tasks import stories
from unmask.tasks.base import NUMBERS, Item, Task, draw_items, tasks

PROMPT = "Problem: "
LARGEST_RESULT = 9999
DISTRACTED, SPELLED = 0.3, 0.25  # how often a distraction is told, and a small number written as a word

PRONOUNS = {"f": {"he": "she", "his": "her", "him": "her"}, "m": {"he": "he", "his": "his", "him": "him"}}
PEOPLE = [
    *((name, "f") for name in "Anna Bella Clara Dina Elena Fatima Grace Hana Ines Julia Kira Lena Maya Nora".split()),
    *((name, "m") for name in "Adam Boris Carlos David Emil Felix George Hugo Ivan Jonas Kofi Liam Marco Noah".split()),
]
FRUIT = "apples pears plums lemons cherries figs limes peaches".split()
FOOD = "muffins cookies buns pies rolls waffles scones pretzels".split()
GOODS = (
    "candles books pens pencils stickers cards stamps coins marbles buttons beads shells stones balls kites puzzles "
    "magnets cups plates spoons jars bottles boxes bricks tiles nails seeds roses"
).split()
DISTRACTIONS = (
    "{B} is {odd} years old. | The shop opened {odd} years ago. | It takes {odd} minutes to walk there. | "
    "Yesterday {B} saw {odd} birds in the park. | {B} already owns {odd} {other}. | The bus was {odd} minutes late. | "
    "There are {odd} {other} on the table. | {A} lives at number {odd}. | {B} paid ${odd} for a pair of shoes. | "
    "There is a photo of it on page {odd} of the paper."
).split(" | ")
_EQUATION = re.compile(r"\{([a-z])=(.+?)\}")
_SLOT = re.compile(r"(\$?)\{(\w+)\}(%?)")
_NAME = re.compile(r"[a-z]")
_FINAL = re.compile(r"####\s*\$?\s*(-?[0-9][0-9,]{0,15})(?:\.0{1,9})?(?!\.?[0-9])")


class Story:
    """One template, read from its lines in the notation."""

    def __init__(self, text: str) -> None:
        head, *lines = text.split("\n  ")
        self.name, numbers = head.split(": ")
        self.numbers: dict[str, range | str] = {}  # a range to draw from, or a formula
        for entry in numbers.split(", "):
            low, dots, rest = entry[2:].partition("..")
            high, _, step = rest.partition(" by ")
            self.numbers[entry[0]] = range(int(low), int(high) + 1, int(step or 1)) if dots else entry[2:]
        self.told = [line.split(" | ") for line in lines if line[0] not in "?>"]  # the wordings of each sentence
        self.asked = next(line[2:].split(" | ") for line in lines if line.startswith("? "))
        steps = " ".join(line for line in lines if line.startswith("> "))[2:].split(" > ")
        # Of each step: the name of its result, the formula, and the sentence with `{}` for the equation.
        self.steps = [(*_EQUATION.findall(step)[0], _EQUATION.sub("{}", step)) for step in steps]


def parse(text: str) -> list[Story]:
    """The stories of a text in the notation."""
    return [Story(block) for block in re.split(r"\n+(?=\S)", text.strip().replace("\n  | ", " | "))]


STORIES = parse(stories.STORIES)


@tasks.register("word_problems")
class WordProblems(Task):
    """Stories whose every step is a positive whole number."""

    prefix: ClassVar[str] = PROMPT
    max_tokens: ClassVar[int] = 128
    block_size: ClassVar[int] = 32

    def generate(self, seed: int, n: int, split: str = "test") -> list[Item]:
        return draw_items("word_problems", seed, n, split, _tell)

    def check(self, item: Item, text: str) -> bool:
        found, wanted = final_number(text), final_number(item.answer)
        return found is not None and found == wanted


def final_number(text: str) -> int | None:
    """The whole number after the first `####`, if there is one."""
    match = _FINAL.search(text)
    return int(match[1].replace(",", "")) if match and text.find("####") == match.start() else None


def _tell(rng: random.Random) -> tuple[str, Item]:
    story = rng.choice(STORIES)
    while (values := _draw_numbers(story, rng)) is None:
        pass
    (first, kind), (second, _) = rng.sample(PEOPLE, 2)
    goods, other = rng.sample(GOODS, 2)
    words = {"A": first, "B": second, "goods": goods, "other": other, **PRONOUNS[kind]}
    words |= {"food": rng.choice(FOOD), "fruit": rng.choice(FRUIT)}
    told = [_sentence(rng.choice(wordings), words, values, rng) for wordings in story.told]
    if rng.random() < DISTRACTED:
        values["odd"] = rng.randint(2, 60)
        told.insert(rng.randint(0, len(told)), _sentence(rng.choice(DISTRACTIONS), words, values, rng))
    told.append(_sentence(rng.choice(story.asked), words, values, rng))
    steps = []
    for name, formula, text in story.steps:
        equation = f"{_NAME.sub(lambda match: str(values[match[0]]), formula)}={values[name]}"
        steps.append(_sentence(text.replace("{}", equation), words, values, rng))
    result = values[story.steps[-1][0]]
    numbers = ",".join(str(values[name]) for name in story.numbers)
    item = Item(prompt=PROMPT + " ".join(told), answer="\n".join([*steps, f"#### {result}"]), kind=story.name)
    return f"{story.name}:{numbers}", item


def _draw_numbers(story: Story, rng: random.Random) -> dict[str, int] | None:
    """A value for every number of the story and every step, or None if one is not a positive whole number."""
    values: dict[str, int] = {}
    rules = {**story.numbers, **{name: formula for name, formula, _ in story.steps}}
    for name, rule in rules.items():
        value = eval(rule, {}, values) if isinstance(rule, str) else rng.choice(rule)
        if value % 1 or not 0 < value <= LARGEST_RESULT:
            return None
        values[name] = int(value)
    return values


def _sentence(text: str, words: dict[str, str], values: dict[str, int], rng: random.Random) -> str:
    """The text with its slots filled and a capital at its start."""
    filled = _SLOT.sub(lambda slot: words.get(slot[2]) or _number(*slot.groups(), values, rng), text)
    return filled[0].upper() + filled[1:]


def _number(currency: str, name: str, percent: str, values: dict[str, int], rng: random.Random) -> str:
    """A number in digits or, if it is small, sometimes in words; money and percentages are always digits."""
    value = values[name]
    if not currency and not percent and value <= 12 and rng.random() < SPELLED:
        return "a dozen" if value == 12 and rng.random() < 0.5 else NUMBERS[value]
    return f"{currency}{value:,}{percent}"
