"""The tiny tasks as cells: items by seed, decoded in batches, checked exactly, written batch by batch.

Which items are decoded together depends on the cell alone, so a run that was interrupted gives what it would have
given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from unmask import tasks
from unmask.evals.cell import Cell, Generation
from unmask.evals.store import CellFolder
from unmask.tasks import Item, Task

if TYPE_CHECKING:
    from unmask.engine.generator import Generator
    from unmask.policies import Policy
    from unmask.settings import Settings
    from unmask.types import Output, StepEvent

DEFAULT_ITEMS = 500
COUNTDOWN_SIZES = (3, 4)


def names() -> list[str]:
    """The tasks, and one name more for each size of countdown."""
    return [*tasks.names(), *(f"countdown-{size}" for size in COUNTDOWN_SIZES)]


def knows(task: str) -> bool:
    return task in names()


def find(name: str) -> Task:
    """The task of that name, which may have a size behind it."""
    base, dash, size = name.rpartition("-")
    return tasks.get(base, numbers=int(size)) if dash and knows(name) else tasks.get(name)


def items_of(cell: Cell) -> list[Item]:
    """The cell's items, the same for every model and policy."""
    return find(cell.task).generate(cell.seed, cell.items)


def run_tiny(
    llm: Generator, folder: CellFolder, *, policy: Policy, settings: Settings, on_item: Callable[[int, int], None]
) -> None:
    """Generate and score what the folder does not hold yet."""
    task, items = find(folder.cell.task), items_of(folder.cell)
    _score(task, items, folder, [number for number in folder.generations if number not in folder.scores])
    for batch in _batches(llm, items, folder.cell.batch_size):
        missing = [number for number in batch if number not in folder.generations]
        if missing:
            found = _decode(llm, [items[number] for number in missing], policy, settings)
            folder.add(
                _generation(llm, number, items[number], *one) for number, one in zip(missing, found, strict=True)
            )
            _score(task, items, folder, missing)
            on_item(len(folder.scores), len(items))


def _batches(llm: Generator, items: list[Item], size: int) -> list[list[int]]:
    """Items of like length together, the longest first: what does not fit into memory shows at once."""
    order = sorted(range(len(items)), key=lambda number: -len(llm.codec.encode(items[number].prompt)))
    return [order[first : first + size] for first in range(0, len(order), size)]


def _decode(llm: Generator, items: list[Item], policy: Policy, settings: Settings) -> list[tuple[Output, int]]:
    """One batch; with each output, the number of passes that renewed a cache."""
    refreshes: Counter[int] = Counter()

    def count(event: StepEvent) -> None:
        refreshes[event.row] += event.refreshed

    prompts = [item.prompt for item in items]
    options = {"policy": policy, "settings": settings, "batch_size": len(prompts), "timed": True, "on_step": count}
    return [(output, refreshes[row]) for row, output in enumerate(llm.generate(prompts, **options))]


def _score(task: Task, items: list[Item], folder: CellFolder, numbers: list[int]) -> None:
    if numbers:
        texts = [folder.generations[number].text for number in numbers]
        right = task.check_many([items[number] for number in numbers], texts)
        folder.add_scores({number: {"correct": float(ok)} for number, ok in zip(numbers, right, strict=True)})


def _generation(llm: Generator, number: int, item: Item, output: Output, refreshes: int) -> Generation:
    timing = output.timing
    assert timing is not None
    seconds = {"model": timing.model_s, "policy": timing.policy_s, "rest": timing.rest_s}
    return Generation(
        id=number,
        prompt=item.prompt,
        text=output.text,
        token_ids=output.canvas_ids,
        tokens_reference=sum(token != llm.spec.eos_id for token in output.canvas_ids),
        tokens_answer=output.usage.completion_tokens,
        passes=output.usage.forward_passes,
        seconds={part: round(spent, 6) for part, spent in seconds.items()},
        refreshes=refreshes,
        note={"kind": item.kind},
    )
