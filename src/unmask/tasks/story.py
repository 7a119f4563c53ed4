"""The form of a story behind `word_problems`, and the people and things that appear in it.

A number is `(low, high)`, `(low, high, step)`, or a formula over numbers before it. Each sentence has several wordings.
Slots: {A} {B} people, {he} {his} {him} for A, {goods} {other} {food} {fruit} things, and the numbers. In a step, `{}`
is its equation.
"""

from __future__ import annotations

from dataclasses import dataclass

Rule = tuple[int, int] | tuple[int, int, int] | str


@dataclass(frozen=True, slots=True)
class Story:
    """One template."""

    name: str
    numbers: dict[str, Rule]
    told: tuple[tuple[str, ...], ...]
    asked: tuple[str, ...]
    steps: tuple[tuple[str, str], ...]


PRONOUNS = {
    "f": {"he": "she", "his": "her", "him": "her"},
    "m": {"he": "he", "his": "his", "him": "him"},
}
WOMEN = [
    "Anna",
    "Bella",
    "Clara",
    "Dina",
    "Elena",
    "Fatima",
    "Grace",
    "Hana",
    "Ines",
    "Julia",
    "Kira",
    "Lena",
    "Maya",
    "Nora",
]
MEN = [
    "Adam",
    "Boris",
    "Carlos",
    "David",
    "Emil",
    "Felix",
    "George",
    "Hugo",
    "Ivan",
    "Jonas",
    "Kofi",
    "Liam",
    "Marco",
    "Noah",
]
PEOPLE = [(name, "f") for name in WOMEN] + [(name, "m") for name in MEN]
FRUIT = ["apples", "pears", "plums", "lemons", "cherries", "figs", "limes", "peaches"]
FOOD = ["muffins", "cookies", "buns", "pies", "rolls", "waffles", "scones", "pretzels"]
GOODS = [
    "candles",
    "books",
    "pens",
    "pencils",
    "stickers",
    "cards",
    "stamps",
    "coins",
    "marbles",
    "buttons",
    "beads",
    "shells",
    "stones",
    "balls",
    "kites",
    "puzzles",
    "magnets",
    "cups",
    "plates",
    "spoons",
    "jars",
    "bottles",
    "boxes",
    "bricks",
    "tiles",
    "nails",
    "seeds",
    "roses",
]
DISTRACTIONS = (
    "{B} is {odd} years old.",
    "The shop opened {odd} years ago.",
    "It takes {odd} minutes to walk there.",
    "Yesterday {B} saw {odd} birds in the park.",
    "{B} already owns {odd} {other}.",
    "The bus was {odd} minutes late.",
    "There are {odd} {other} on the table.",
    "{A} lives at number {odd}.",
    "{B} paid ${odd} for a pair of shoes.",
    "There is a photo of it on page {odd} of the paper.",
)
