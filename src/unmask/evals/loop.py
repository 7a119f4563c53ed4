"""The item loop of every task: questions are cut into batches, an executor answers them, answers are kept and scored.

The batches depend on the cell alone, so an interrupted run gives the same answers as an undisturbed one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Protocol, runtime_checkable

from unmask.evals.cell import Generation
from unmask.evals.executor import Batch, Executor, Question
from unmask.evals.store import CellFolder
from unmask.policies import Policy
from unmask.settings import Settings


@runtime_checkable
class EvalTask(Protocol):
    """What a cell asks, and how its answers are scored."""

    @property
    def questions(self) -> Sequence[Question]: ...

    def score(self, rows: Sequence[Generation]) -> dict[int, dict[str, float]]:
        """The scores of each item, by its id."""
        ...


def measure(
    executor: Executor, task: EvalTask, folder: CellFolder, *, on_item: Callable[[int, int], None] = lambda *_: None
) -> None:
    """Answer and score what the cell's folder lacks; `on_item` is called with the items done and the items in all.

    Every batch is on disk before its items are scored.
    """
    asked = {question.id for question in task.questions}
    policy, settings = folder.cell.decoding()
    cut = batches(task.questions, policy=policy, settings=settings, batch_size=folder.cell.batch_size)
    left = [batch for batch in cut if any(question.id not in folder.generations for question in batch.questions)]

    def score(rows: Sequence[Generation]) -> None:
        if rows:
            folder.add_scores(task.score(rows))
        on_item(len(folder.scores.keys() & asked), len(asked))

    score([row for row in folder.generations.values() if row.id in asked and row.id not in folder.scores])
    for answered in executor.map(left):
        # A kill may have cut a batch short on disk: the items on disk stay as they are.
        rows = [row for row in answered if row.id not in folder.generations]
        folder.add(rows)
        score(rows)
    folder.finish()


def batches(questions: Iterable[Question], *, policy: Policy, settings: Settings, batch_size: int) -> Iterator[Batch]:
    """Batches of questions of like length and with the same stop strings.

    The longest come first, so that memory runs out at once or never. Continuations are compared one item at a time.
    """

    def kind(question: Question) -> tuple[bool, tuple[str, ...]]:
        return bool(question.continuations), question.stop

    ordered = sorted(questions, key=lambda question: (*kind(question), -len(question.prompts[0])))
    for (compared, _), group in groupby(ordered, key=kind):
        alike, size = tuple(group), 1 if compared else batch_size
        for first in range(0, len(alike), size):
            part = alike[first : first + size]
            yield Batch(questions=part, policy=policy, settings=settings, batch_size=batch_size)
