"""The tiny tasks: items drawn from a seed, each checked exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unmask import tasks
from unmask.engine.prompts import encode_prompt
from unmask.evals.cell import Cell, Generation, ModelInfo
from unmask.evals.executor import Question, TextModel
from unmask.tasks import Item, Task

ITEMS = 500
BATCH, BATCH_ON_CUDA = 32, 512  # rows that keep the device busy
SIZES = {"countdown-3": 3, "countdown-4": 4}  # of one task, each by a name of its own


def names() -> list[str]:
    return [*tasks.names(), *SIZES]


def find(name: str) -> Task:
    return tasks.get("countdown", numbers=SIZES[name]) if name in SIZES else tasks.get(name)


def describe_tiny(task: str, model: ModelInfo) -> dict[str, Any]:
    """The fields of a cell that depend on the task, with the documented lengths among the settings."""
    found = find(task)
    lengths = {"max_tokens": found.max_tokens, "block_size": found.block_size}
    return {"items": ITEMS, "batch_size": BATCH_ON_CUDA if model.device == "cuda" else BATCH, "settings": lengths}


class TinyTask:
    """The items of a cell, the same for every model and policy, asked as they are."""

    def __init__(self, cell: Cell, model: TextModel) -> None:
        self._task = find(cell.task)
        self._items = self._task.generate(cell.seed, cell.items)
        self.questions = []
        for number, item in enumerate(self._items):
            prompt, filled_from = encode_prompt(model.spec, model.codec, item.prompt), None
            if item.gaps:
                filled_from = len(prompt)
                prompt = [*prompt, *_with_gaps(item, model), model.spec.eos_id]
            about: dict[str, Any] = {"text": item.prompt, "filled_from": filled_from, "note": {"kind": item.kind}}
            self.questions.append(Question(id=number, prompts=(prompt,), **about))

    def score(self, rows: Sequence[Generation]) -> dict[int, dict[str, float]]:
        right = self._task.check_many([self._items[row.id] for row in rows], [row.text for row in rows])
        return {row.id: {"correct": float(ok)} for row, ok in zip(rows, right, strict=True)}


def _with_gaps(item: Item, model: TextModel) -> list[int]:
    """The tokens of the answer, with a mask for each that touches a gap."""
    ids, end = model.codec.encode(item.answer, special=False), 0
    for place, token in enumerate(ids):
        start, end = end, end + len(model.codec.token_text(token))
        if any(start < gap_end and gap_start < end for gap_start, gap_end in item.gaps):
            ids[place] = model.spec.mask_id
    return ids
