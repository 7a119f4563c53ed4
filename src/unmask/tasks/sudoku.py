"""Sudoku, 9x9 with 40 to 55 holes: the model must fill cells that are consistent with each other.

Prompt: `Sudoku: ` and 81 digits in reading order, `0` for a hole. Answer: the 81 digits of a full board. A board may
have more than one completion; any valid one that keeps the givens is right. The split is by the solved grid up to
renaming of digits, so the solution of a test board never occurs in training, whatever its holes.
"""

from __future__ import annotations

import random
from itertools import count
from typing import ClassVar

from unmask.tasks.base import Item, Task, draw_items, tasks

PROMPT = "Sudoku: "
HOLES = (40, 55)
VARIANTS = 16  # boards drawn from one searched grid: a search costs a hundred times a permutation

_CELLS = range(81)
_UNITS = (
    *(tuple(range(9 * r, 9 * r + 9)) for r in range(9)),
    *(tuple(range(c, 81, 9)) for c in range(9)),
    *(tuple(9 * (r + i) + c + j for i in range(3) for j in range(3)) for r in (0, 3, 6) for c in (0, 3, 6)),
)
_PEERS = tuple(tuple({p for unit in _UNITS if cell in unit for p in unit} - {cell}) for cell in _CELLS)
_DIGITS = set("123456789")


@tasks.register("sudoku")
class Sudoku(Task):
    """Boards that are solvable by construction: holes punched into a solved grid."""

    prefix: ClassVar[str] = PROMPT
    max_tokens: ClassVar[int] = 82  # 81 digits and the end of text, in one block
    block_size: ClassVar[int] = 82

    def generate(self, seed: int, n: int, split: str = "test") -> list[Item]:
        grid, uses = list[int](), count()

        def draw(rng: random.Random) -> tuple[str, Item]:
            if next(uses) % VARIANTS == 0:
                grid[:] = solved_grid(rng)
            board = shuffled(grid, rng)
            holes = set(rng.sample(_CELLS, rng.randint(*HOLES)))
            givens = "".join("0" if cell in holes else str(board[cell]) for cell in _CELLS)
            answer = "".join(map(str, board))
            return relabelled(board), Item(prompt=PROMPT + givens, answer=answer, kind=str(len(holes)))

        return draw_items("sudoku", seed, n, split, draw)

    def check(self, item: Item, text: str) -> bool:
        board = "".join(text.split())
        givens = item.prompt.removeprefix(PROMPT)
        if len(board) != 81 or any(given not in ("0", cell) for given, cell in zip(givens, board, strict=True)):
            return False
        return all({board[cell] for cell in unit} == _DIGITS for unit in _UNITS)


def solved_grid(rng: random.Random) -> list[int]:
    """A random full grid, by search that always fills the cell with the fewest candidates."""
    grid = [0] * 81
    for box in (0, 30, 60):  # the boxes of the diagonal do not see each other
        for place, digit in enumerate(rng.sample(range(1, 10), 9)):
            grid[box + 9 * (place // 3) + place % 3] = digit
    empty = [cell for cell in rng.sample(_CELLS, 81) if not grid[cell]]
    options = {cell: set(range(1, 10)) - {grid[peer] for peer in _PEERS[cell]} for cell in empty}
    _fill(grid, options, rng)
    return grid


def _fill(grid: list[int], options: dict[int, set[int]], rng: random.Random) -> bool:
    if not options:
        return True
    cell = min(options, key=lambda c: len(options[c]))
    candidates = options.pop(cell)
    for digit in rng.sample(sorted(candidates), len(candidates)):
        touched = [peer for peer in _PEERS[cell] if peer in options and digit in options[peer]]
        for peer in touched:
            options[peer].discard(digit)
        grid[cell] = digit
        if all(options[peer] for peer in touched) and _fill(grid, options, rng):
            return True
        for peer in touched:
            options[peer].add(digit)
    grid[cell] = 0
    options[cell] = candidates
    return False


def shuffled(grid: list[int], rng: random.Random) -> list[int]:
    """The grid under a random symmetry of Sudoku: digits renamed, lines and bands permuted, transposed."""
    rows, columns = (
        [3 * band + line for band in rng.sample(range(3), 3) for line in rng.sample(range(3), 3)] for _ in "rc"
    )
    names = [0, *rng.sample(range(1, 10), 9)]
    down, right = (1, 9) if rng.random() < 0.5 else (9, 1)
    return [names[grid[down * r + right * c]] for r in rows for c in columns]


def relabelled(board: list[int]) -> str:
    """The board with its digits renamed so that the first row reads 123456789."""
    names = {digit: str(place) for place, digit in enumerate(board[:9], start=1)}
    return "".join(names[digit] for digit in board)
