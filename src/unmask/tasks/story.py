"""The notation of the stories behind `word_problems`, and the people and things that appear in them.

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

import re
from dataclasses import dataclass

from unmask.errors import UnmaskError

_STORY = re.compile(r"(\w+): (.+)\n((?:  [^ ?>|].*\n)+)  \? (.+)((?:\n  > .+)+)")
_FORMULA = r"[a-z](?:[*/](?:[a-z]|[0-9]+))*(?:[-+](?:[a-z]|[0-9]+))*"  # products first: computed left to right
_NUMBER = re.compile(rf"([a-z])=(?:([0-9]+)\.\.([0-9]+)(?: by ([1-9][0-9]*))?|({_FORMULA}))")
_EQUATION = re.compile(rf"\{{([a-z])=({_FORMULA})\}}")
_SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """One template."""

    name: str
    numbers: tuple[tuple[str, range | str], ...]
    told: tuple[tuple[str, ...], ...]  # the wordings of each sentence
    asked: tuple[str, ...]  # the wordings of the question
    steps: tuple[tuple[str, str, str], ...]  # a result's name, its formula, and its sentence with `{}` for the equation

    def rules(self) -> list[tuple[str, range | str]]:
        """Each name with its range or formula, in an order in which they can be computed."""
        return [*self.numbers, *((name, formula) for name, formula, _ in self.steps)]


def parse(text: str) -> tuple[Story, ...]:
    """The stories of a text in the notation; anything else is an error."""
    return tuple(_story(block) for block in re.split(r"\n(?=\S)", text.strip().replace("\n  | ", " | ")))


def _story(block: str) -> Story:
    match = _STORY.fullmatch(block)
    if match is None:
        raise UnmaskError(f"a story must be a line of numbers, then sentences, '? ' and '> ' lines, got {block!r}")
    name, numbers, told, asked, steps = match.groups()
    story = Story(
        name=name,
        numbers=tuple(_number(name, entry) for entry in numbers.split(", ")),
        told=tuple(tuple(line.split(" | ")) for line in told[2:-1].split("\n  ")),
        asked=tuple(asked.split(" | ")),
        steps=tuple(_step(name, step) for step in re.split(r"\s+> ", steps)[1:]),
    )
    _check(story)
    return story


def _number(story: str, entry: str) -> tuple[str, range | str]:
    if match := _NUMBER.fullmatch(entry):
        name, low, high, step, formula = match.groups()
        if rule := formula or range(int(low), int(high) + 1, int(step or 1)):
            return name, rule
    raise UnmaskError(f"story {story!r}: a number must be like 'a=2..9', 'a=10..90 by 5' or 'a=b*c', got {entry!r}")


def _step(story: str, text: str) -> tuple[str, str, str]:
    equations = _EQUATION.findall(text)
    if len(equations) != 1:
        raise UnmaskError(f"story {story!r}: a step must have one equation like '{{p=a*b}}', got {text!r}")
    return *equations[0], _EQUATION.sub("{}", text)


def _check(story: Story) -> None:
    """Refuse a name that is given twice, one that is used and not given, and a mark that is not part of a slot."""
    slots = {*SLOTS, *(name for name, _ in story.numbers)}
    texts = [(text, slots) for wordings in (*story.told, story.asked) for text in wordings]
    for text, known in (*texts, *((sentence.replace("{}", ""), set(SLOTS)) for _, _, sentence in story.steps)):
        if not text or set(_SLOT.findall(text)) - known or re.search(r"[{}|>]", _SLOT.sub("", text)):
            raise UnmaskError(f"story {story.name!r}: an unknown slot or a stray mark in {text!r}")
    given: set[str] = set()
    for name, rule in story.rules():
        if name in given or (isinstance(rule, str) and set(re.findall(r"[a-z]", rule)) - given):
            raise UnmaskError(f"story {story.name!r}: {name}={rule} gives a name twice, or uses one that is not given")
        given.add(name)


PRONOUNS = {"f": {"he": "she", "his": "her", "him": "her"}, "m": {"he": "he", "his": "his", "him": "him"}}
SLOTS = ("A", "B", "goods", "other", "food", "fruit", "he", "his", "him")
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
