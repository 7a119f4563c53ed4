"""The tiny suite: six task families with seeded generators and exact checkers. Plain Python, no torch."""

from __future__ import annotations

from typing import Any

from unmask.tasks.base import Item, Task, tasks
from unmask.tasks.countdown import Countdown
from unmask.tasks.gaps import CodeGaps, NumberGaps
from unmask.tasks.list_functions import ListFunctions
from unmask.tasks.sudoku import Sudoku
from unmask.tasks.word_problems import WordProblems

__all__ = ["CodeGaps", "Countdown", "Item", "ListFunctions", "NumberGaps", "Sudoku", "Task", "WordProblems"]
__all__ += ["get", "names"]


def get(name: str, **params: Any) -> Task:
    """The task of that name, e.g. `get("countdown", numbers=4)`."""
    return tasks.build(name, params)


def names() -> list[str]:
    """The tasks that are installed."""
    return tasks.names()
