"""Countdown: reach a target from 3 or 4 numbers with + - * /, each number used exactly once.

Prompt: `Countdown: 86,28,13,31,96`, the last number being the target. Answer: one equation for each step, such as
`86+28=114,31-13=18,114-18=96`; every result is a positive integer, a step uses up its two numbers, any solution counts.
Reference solutions add up first, then subtract; the order of terms and of factors is drawn. So most problems have
several answers, and tokens of different answers do not mix. The split is by the numbers, whatever their order, and the
target.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from unmask.errors import UnmaskError
from unmask.tasks.base import Item, Task, draw_items, tasks

PROMPT = "Countdown: "
LARGEST, LARGEST_TARGET, LARGEST_RESULT = 99, 100, 999

_STEP = re.compile(r"([0-9]{1,9})([-+*/])([0-9]{1,9})=([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class _Value:
    """A number on the table: given (`op` empty), or the result of an operation on two others."""

    number: int
    op: str = ""
    operands: tuple[_Value, ...] = ()


@tasks.register("countdown")
@dataclass(frozen=True, slots=True, kw_only=True)
class Countdown(Task):
    """Solvable by construction: random operations are applied until one number, the target, is left."""

    numbers: int | None = None  # how many are given: 2, 3 or 4; None: 3 and 4 in equal shares
    prefix: ClassVar[str] = PROMPT
    max_tokens: ClassVar[int] = 48
    block_size: ClassVar[int] = 48

    def __post_init__(self) -> None:
        if self.numbers not in (None, 2, 3, 4):
            raise UnmaskError(f"numbers must be 2, 3 or 4, got {self.numbers!r}")

    def generate(self, seed: int, n: int, split: str = "test") -> list[Item]:
        def draw(rng: random.Random) -> tuple[str, Item]:
            count = self.numbers or rng.choice((3, 4))
            while True:
                given = [rng.randint(1, LARGEST) for _ in range(count)]
                goal = _combine([_Value(number) for number in given], rng)
                if goal is not None and goal.number <= LARGEST_TARGET:
                    break
            steps: list[str] = []
            _write(goal, steps, rng)
            listed = ",".join(map(str, given))
            content = f"{sorted(given)}:{goal.number}"
            return content, Item(prompt=f"{PROMPT}{listed},{goal.number}", answer=",".join(steps), kind=str(count))

        return draw_items(f"countdown{self.numbers or ''}", seed, n, split, draw)

    def check(self, item: Item, text: str) -> bool:
        *given, target = map(int, item.prompt.removeprefix(PROMPT).split(","))
        table = Counter(given)
        steps = text.strip().split(",")
        if len(steps) != len(given) - 1:
            return False
        for step in steps:
            match = _STEP.fullmatch(step)
            if match is None:
                return False
            left, op, right, result = int(match[1]), match[2], int(match[3]), int(match[4])
            used = Counter((left, right))
            results = {"+": left + right, "-": left - right, "*": left * right, "/": left / right if right else 0}
            if used - table or result < 1 or result != results[op]:
                return False
            table = table - used + Counter((result,))
        return +table == Counter((target,))


def _combine(values: list[_Value], rng: random.Random) -> _Value | None:
    """All values joined by random operations, or None where no operation suits the two values drawn."""
    while len(values) > 1:
        first, second = (values.pop(rng.randrange(len(values))) for _ in range(2))
        a, b = first.number, second.number
        if a < b:
            first, second, a, b = second, first, b, a
        results = {"+": a + b, "-": a - b, "*": a * b if b > 1 else 0, "/": a // b if b > 1 and a % b == 0 else 0}
        ops = [op for op, result in results.items() if 1 <= result <= LARGEST_RESULT]
        if not ops:
            return None
        op = rng.choice(ops)
        values.append(_Value(results[op], op, (first, second)))
    return values[0]


def _write(value: _Value, steps: list[str], rng: random.Random) -> None:
    """Append the equations that make the value, its terms in any order."""
    if value.op in ("+", "-"):
        added, taken = _terms(value)
        rng.shuffle(added)
        rng.shuffle(taken)
        for term in added + taken:
            _write(term, steps, rng)
        total = added[0].number
        for number in (*(term.number for term in added[1:]), *(-term.number for term in taken)):
            steps.append(f"{total}{number:+d}={total + number}")
            total += number
    elif value.op:
        left, right = rng.sample(value.operands, 2) if value.op == "*" else value.operands
        _write(left, steps, rng)
        _write(right, steps, rng)
        steps.append(f"{left.number}{value.op}{right.number}={value.number}")


def _terms(value: _Value) -> tuple[list[_Value], list[_Value]]:
    """The terms of a tree of sums and differences: the added ones and the subtracted ones."""
    if value.op not in ("+", "-"):
        return [value], []
    (added, taken), (right, opposite) = map(_terms, value.operands)
    return (added + opposite, taken + right) if value.op == "-" else (added + right, taken + opposite)
