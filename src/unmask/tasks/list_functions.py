"""List functions: an English description of a transformation, answered with a Python function `f`.

Prompt: `Function: ` and one to three operations on a list of integers, a string or a list of strings, in words.
Answer: the source of `f`, one operation a line. It is right if it passes hidden tests in the sandbox, however it is
written. Reference answers come in many forms of different length, in equal shares: names for the parameter and for the
results between operations, a last line that returns a value or a name, comprehensions or `map` and `filter`. So a name
chosen in one place must be kept in every other, and tokens that are each likely alone can make a wrong program.
The split is by program, numbers and letters in it included, whatever its form.

The operations are at the end of this file, one a line: a Python expression in `x`, and ways to ask for it. A line such
as `ints -> words:` says what the operations under it take and give; number and truth end a chain. Slots: {k} is a
number from 2 to 5, unless the line ends in a range of its own, and {c} and {d} are two different letters. Every
expression is total: it has a value for every input of its type, the empty one included.
"""

from __future__ import annotations

import random
import re
from functools import lru_cache
from typing import Any, ClassVar

from unmask import sandbox
from unmask.tasks.base import NUMBERS, Item, Task, draw_items, tasks

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
_compiled = lru_cache(maxsize=4096)(lambda line: compile(line, "<primitive>", "eval"))
_PHRASES = (
    "Level up Anna noon tea stats cabbage lemon Otto river street apple data radar minus tree Rabbit moon salad "
    "bottle cat lamp pad Sister toast ruler acid"
).split()


class Primitive:
    """One operation, read from its line in the notation; {k} is one of its numbers."""

    def __init__(self, source: str, target: str, line: str) -> None:
        self.source, self.target = source, target
        self.code, *self.asked = line.strip().split(" | ")
        low, high = self.asked.pop().removeprefix("k=").split("..") if self.asked[-1].startswith("k=") else (2, 5)
        self.numbers = range(int(low), int(high) + 1)


def parse(text: str) -> list[Primitive]:
    """The operations of a text in the notation."""
    found: list[Primitive] = []
    source = target = ""
    for line in filter(None, text.splitlines()):
        if line.startswith("  "):
            found.append(Primitive(source, target, line))
        else:
            source, target = line.removesuffix(":").split(" -> ")
    return found


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


PRIMITIVES = parse("""
ints -> ints:
  [v for v in x if v % 2 == 0] | keep only the even numbers | drop every odd number
  [v for v in x if v % 2 == 1] | keep only the odd numbers | throw out the even numbers
  [v for v in x if v > 0] | keep the positive numbers | drop all numbers that are not positive
  [v for v in x if v < 0] | keep the negative numbers | keep only what is below zero
  [v for v in x if v > {k}] | keep numbers greater than {k} | keep what is above {k} | k=2..15
  [v for v in x if v < {k}] | keep numbers smaller than {k} | keep what is below {k} | k=2..15
  [v for v in x if v % {k} == 0] | keep the multiples of {k} | keep what {k} divides | k=3..9
  [v for v in x if v % {k} != 0] | drop the multiples of {k} | remove what {k} divides | k=3..9
  [v for v in x if v != {k}] | remove every {k} | drop all that equal {k} | k=2..9
  [v + {k} for v in x] | add {k} to each number | increase every number by {k} | k=2..15
  [v - {k} for v in x] | subtract {k} from each number | lower every number by {k} | k=2..15
  [v * {k} for v in x] | multiply each number by {k} | make every number {k} times as large | k=2..9
  [v // {k} for v in x] | divide each number by {k}, rounding down | floor divide all by {k} | k=2..9
  [v % {k} for v in x] | take each number modulo {k} | replace all by the remainder mod {k} | k=2..9
  [v * v for v in x] | square each number | replace every number by its square
  [v ** 3 for v in x] | cube each number | raise every number to the third power
  [-v for v in x] | negate each number | flip the sign of every number
  [abs(v) for v in x] | take absolute values | drop the sign of each number
  [min(v, {k}) for v in x] | cap each number at {k} | replace larger numbers by {k} | k=2..15
  [max(v, {k}) for v in x] | raise each number to at least {k} | replace smaller numbers by {k} | k=2..9
  [i * v for i, v in enumerate(x)] | multiply each number by its index | weight numbers by position
  [i + v for i, v in enumerate(x)] | add its index to each number | add the position to every number
  [b - a for a, b in zip(x, x[1:])] | take differences of neighbours | subtract each from the next
  [a + b for a, b in zip(x, x[1:])] | add up neighbours | sum each number with the next
  [sum(x[:i + 1]) for i in range(len(x))] | build running sums | take cumulative totals
  [sum(int(d) for d in str(abs(v))) for v in x] | take digit sums | replace numbers by their digit sum
  x[::-1] | reverse the list | put the numbers in reverse order
  sorted(x) | sort in ascending order | sort from small to large
  sorted(x, reverse=True) | sort in descending order | sort from large to small
  sorted(x, key=abs) | sort by absolute value | order by distance from zero
  list(dict.fromkeys(x)) | remove duplicates | keep the first of equal numbers
  x[:{k}] | keep the first {k} numbers | cut the list to its first {k}
  x[-{k}:] | keep the last {k} numbers | cut the list to its last {k}
  x[{k}:] | skip the first {k} numbers | drop {k} numbers from the front
  x[:-{k}] | drop the last {k} numbers | leave out {k} numbers at the end
  x[::2] | take every second number | keep numbers at even positions
  x[1:] + x[:1] | move the first number to the end | rotate left by one
  x + x | repeat the list | join the list with itself
  x + x[::-1] | append the mirrored list | join the list with its reverse
  x + [{k}] | append {k} | put {k} at the end | k=2..20
  [{k}] + x | prepend {k} | put {k} in front | k=2..20
ints -> words:
  [str(v) for v in x] | turn each number into a string | convert numbers to strings
ints -> number:
  sum(x) | return the sum | add everything up
  sum(v * v for v in x) | return the sum of squares | add up the squares
  max(x, default=0) | return the largest number | give the maximum
  min(x, default=0) | return the smallest number | give the minimum
  max(x, default=0) - min(x, default=0) | return the range | give maximum minus minimum
  len(x) | return how many numbers there are | count the numbers
  len(set(x)) | count the distinct numbers | return how many different numbers there are
  sum(v % 2 == 0 for v in x) | count the even numbers | return how many are even
  sum(v > {k} for v in x) | count numbers above {k} | return how many exceed {k} | k=2..15
  x.count({k}) | count how often {k} occurs | return the number of times {k} appears | k=2..9
  x[-1] if x else 0 | return the last number | give the final number or 0
  sorted(x)[len(x) // 2] if x else 0 | return the median | give the middle after sorting
ints -> truth:
  all(v > 0 for v in x) | tell whether all are positive | check that every number is positive
  any(v > {k} for v in x) | tell whether any exceeds {k} | check if one is above {k} | k=2..15
  x == sorted(x) | tell whether it is sorted | check that it is in ascending order
text -> text:
  x.upper() | convert to upper case | make all letters capital
  x.lower() | convert to lower case | make all letters small
  x.swapcase() | swap upper and lower case | invert the case of letters
  x.title() | capitalize each word of it | convert to title case
  x[::-1] | reverse the string | spell it backwards
  x.replace(" ", "") | remove all spaces | delete the blanks
  x.replace(" ", "_") | replace spaces by underscores | turn blanks into underscores
  x.replace("{c}", "{d}") | replace "{c}" by "{d}" | change every "{c}" into "{d}"
  x.replace("{c}", "") | delete every "{c}" | remove the letter "{c}"
  "".join(c for c in x if c not in "aeiou") | remove the small vowels | delete small vowels
  "".join(c for c in x if c in "aeiou") | keep only small vowels | drop all but the small vowels
  "".join(c for c in x if c.isalpha()) | keep only letters | drop what is not a letter
  "".join(c * 2 for c in x) | double each character | write every character twice
  "".join(sorted(x)) | sort the characters | put the characters in order
  "".join(dict.fromkeys(x)) | drop repeated characters | keep each character once
  x[:{k}] | keep the first {k} characters | cut it to {k} characters | k=2..8
  x[-{k}:] | keep the last {k} characters | take {k} characters from the end | k=2..8
  x[{k}:] | skip the first {k} characters | drop {k} characters from the front
  x[::2] | take every second character | keep characters at even positions
  x * {k} | repeat the string {k} times | write it {k} times in a row
  x + "{c}" | append "{c}" | put "{c}" at the end
  "{c}" + x | prepend "{c}" | put "{c}" in front
text -> words:
  x.split() | split it into words | cut it at blanks
  list(x) | split it into characters | make a list of its characters
text -> number:
  len(x) | return the length | count the characters
  len(x.split()) | count the words | return the number of words
  x.count("{c}") | count how often "{c}" occurs | return the number of "{c}"
  sum(c in "aeiou" for c in x) | count the small vowels | return how many small vowels it has
  len(set(x)) | count different characters | return how many different characters it has
text -> truth:
  x == x[::-1] | tell whether it is a palindrome | check if it reads the same backwards
  x.startswith("{c}") | tell whether it starts with "{c}" | check for "{c}" at the start
  "{c}" in x | tell whether it contains "{c}" | check if "{c}" occurs
words -> words:
  sorted(x) | sort alphabetically | put the strings in alphabetical order
  sorted(x, key=len) | sort by length | order the strings from short to long
  x[::-1] | reverse the list | put the strings in reverse order
  list(dict.fromkeys(x)) | remove duplicates | keep the first of equal strings
  [w.upper() for w in x] | write each string in upper case | make all strings upper case
  [w.capitalize() for w in x] | capitalize each string | start each string with a capital
  [w[::-1] for w in x] | reverse each string | spell every string backwards
  [w[:1] for w in x] | take first letters | keep the initial of each string
  [w * 2 for w in x] | double each string | write every string twice in a row
  [w + "{c}" for w in x] | append "{c}" to each string | put "{c}" after every string
  [w for w in x if len(w) > {k}] | keep strings longer than {k} | drop strings up to length {k}
  [w for w in x if len(w) < {k}] | keep strings shorter than {k} | drop strings of length {k} and up
  [w for w in x if "{c}" in w] | keep strings with "{c}" | keep strings that contain "{c}"
  [w for w in x if "{c}" not in w] | drop strings with "{c}" | keep strings without "{c}"
  [w for w in x if w == w[::-1]] | keep palindromes | drop all but the palindromes
  x[:{k}] | keep the first {k} strings | cut the list to its first {k}
  x[{k}:] | skip the first {k} strings | drop {k} strings from the front
  x[::2] | take every second string | keep strings at even positions
words -> ints:
  [len(w) for w in x] | replace each string by its length | list the lengths
words -> text:
  " ".join(x) | join them with spaces | glue the strings with blanks
  "-".join(x) | join them with dashes | glue the strings with dashes
  "".join(x) | join them into one string | glue the strings together
words -> number:
  len(x) | return how many strings there are | count the strings
  sum(len(w) for w in x) | return the total length | count all characters
  max((len(w) for w in x), default=0) | return the greatest length | give the longest length
  sum("{c}" in w for w in x) | count strings with "{c}" | return how many contain "{c}"
""")
_BY_SOURCE = {source: [p for p in PRIMITIVES if p.source == source] for source in _INTRODUCTIONS}
