"""List functions: an English description of a transformation, answered with a Python function `f`.

Prompt: `Function: ` and one to three operations on a list of integers, a string or a list of strings, in words.
Answer: the source of `f`, one operation a line. It is right if it passes hidden tests in the sandbox, however it is
written. Reference answers come in many forms of different length, in equal shares: names for the parameter and for the
results between operations, a last line that returns a value or a name, comprehensions or `map` and `filter`. So a name
chosen in one place must be kept in every other, and tokens that are each likely alone can make a wrong program.
Operations live in `primitives.py`. The split is by program, numbers and letters in it included, whatever its form.
"""

from __future__ import annotations

import random
import re
from functools import lru_cache
from typing import Any, ClassVar

from unmask import sandbox
from unmask.tasks.base import NUMBERS, Item, Task, draw_items, tasks
from unmask.tasks.primitives import PRIMITIVES, Primitive

PROMPT = "Function: "
TESTS = 10
SPELLED = 0.25  # how often a small number is written as a word

_LETTERS = "aeioubcdlmnprst"
_INTRODUCTIONS = {
    "ints": ("given a list of integers,", "take a list of numbers and", "for a list of integers:"),
    "text": ("given a string,", "take a string and", "for a string:"),
    "words": ("given a list of strings,", "take a list of strings and", "for a list of strings:"),
}
_PARAMETERS = ("x", "data")
_FRESH = ("y", "z", "w")
_MAPPED = re.compile(r"\[(?P<value>(?:(?! for ).)+) for (?P<name>\w) in x\]")
_FILTERED = re.compile(r"\[(?P<name>\w) for (?P=name) in x if (?P<value>.+)\]")
_FRONT = re.compile(r"x\[:(?P<stop>[^:]*)\]")
_LINKS = (", then ", "; after that, ", " and then ")
_BY_SOURCE = {source: [p for p in PRIMITIVES if p.source == source] for source in _INTRODUCTIONS}
_compiled = lru_cache(maxsize=4096)(lambda line: compile(line, "<primitive>", "eval"))
_PHRASES = (
    "Level up Anna noon tea stats cabbage lemon Otto river street apple data radar minus tree Rabbit moon salad "
    "bottle cat lamp pad Sister toast ruler acid"
).split()


@tasks.register("list_functions")
class ListFunctions(Task):
    """Chains of operations whose types fit; numbers and truth values end a chain."""

    prefix: ClassVar[str] = PROMPT
    max_tokens: ClassVar[int] = 128
    block_size: ClassVar[int] = 32

    def generate(self, seed: int, n: int, split: str = "test") -> list[Item]:
        return draw_items("list_functions", seed, n, split, _describe)

    def check(self, item: Item, text: str) -> bool:
        return sandbox.run_tests(text, item.tests).passed

    def check_many(self, items: list[Item], texts: list[str]) -> list[bool]:
        jobs = [(text, item.tests) for item, text in zip(items, texts, strict=True)]
        return [result.passed for result in sandbox.run_many(jobs)]


def _describe(rng: random.Random) -> tuple[str, Item]:
    source = rng.choices(("ints", "text", "words"), (5, 3, 2))[0]
    chain = _chain(source, rng.choices((1, 2, 3), (1, 3, 3))[0], rng)
    asked, lines = zip(*(_fill(primitive, rng) for primitive in chain), strict=True)
    link = rng.choice(_LINKS)
    prompt = f"{PROMPT}{rng.choice(_INTRODUCTIONS[source])} {link.join(asked)}."
    item = Item(prompt=prompt, answer=_program(lines, rng), kind=str(len(chain)), tests=_tests(source, lines, rng))
    return "\n".join(lines), item


def _chain(source: str, length: int, rng: random.Random) -> list[Primitive]:
    chain: list[Primitive] = []
    while len(chain) < length and source in _BY_SOURCE:
        last = len(chain) == length - 1
        options = [p for p in _BY_SOURCE[source] if p not in chain and (last or p.target in _BY_SOURCE)]
        chain.append(rng.choice(options))
        source = chain[-1].target
    return chain


def _fill(primitive: Primitive, rng: random.Random) -> tuple[str, str]:
    """One wording and the expression of a primitive, with the same number and letters in both."""
    number = rng.choice(primitive.numbers)
    c, d = rng.sample(_LETTERS, 2)
    spelled = NUMBERS[number] if number <= 9 and rng.random() < SPELLED else str(number)
    asked, code = rng.choice(primitive.asked), primitive.code
    for slot, told, written in (("{k}", spelled, str(number)), ("{c}", c, c), ("{d}", d, d)):
        asked, code = asked.replace(slot, told), code.replace(slot, written)
    return asked, code


def _program(lines: tuple[str, ...], rng: random.Random) -> str:
    """One of the forms in which the operations can be written down."""
    name = parameter = rng.choice(_PARAMETERS)
    fresh, named_result = rng.random() < 0.5, rng.random() < 0.5
    written = [f"def f({parameter}):"]
    for number, line in enumerate(lines):
        if rng.random() < 0.5:
            line = other_form(line)
        line = re.sub(r"\bx\b", name, line)
        if number == len(lines) - 1 and not named_result:
            return "\n".join([*written, f"    return {line}"])
        name = _FRESH[number] if fresh else parameter
        written.append(f"    {name} = {line}")
    return "\n".join([*written, f"    return {name}"])


def other_form(line: str) -> str:
    """The same operation written in another way, or the line as it is where there is no other way."""
    if match := _FILTERED.fullmatch(line):
        return f"list(filter(lambda {match['name']}: {match['value']}, x))"
    if match := _MAPPED.fullmatch(line):
        return f"list(map(lambda {match['name']}: {match['value']}, x))"
    return _FRONT.sub(r"x[0:\g<stop>]", line)


def _tests(source: str, lines: tuple[str, ...], rng: random.Random) -> tuple[str, ...]:
    tests = []
    for _ in range(TESTS):
        given = _example(source, rng)
        value: Any = given
        for line in lines:
            value = eval(_compiled(line), {"x": value})
        tests.append(f"assert f({given!r}) == {value!r}")
    return tuple(tests)


def _example(source: str, rng: random.Random) -> list[int] | list[str] | str:
    if source == "ints":
        return [rng.randint(-12, 20) for _ in range(rng.randint(0, 9))]
    phrase: list[str] = [rng.choice(_PHRASES) for _ in range(rng.randint(0, 6))]
    return phrase if source == "words" else " ".join(phrase)
