"""A rough accuracy while training goes on, of the checkpoint as users will load it.

The figures of the model card come from `unmask eval recipes/tiny/main.yaml`, on many more items.
"""

from __future__ import annotations

from pathlib import Path

import torch

import unmask
from unmask import sandbox, tasks

SEED = 1_000_004  # test items come from the test side of the split, whatever the seed
ITEMS = 128
SUITE = {
    "sudoku": ("sudoku", {}),
    "word_problems": ("word_problems", {}),
    "list_functions": ("list_functions", {}),
    "countdown-3": ("countdown", {"numbers": 3}),
    "countdown-4": ("countdown", {"numbers": 4}),
}


def quick_look(checkpoint: Path, device: torch.device) -> dict[str, float | str]:
    """Accuracy on each task with `threshold` .9; programs are run only where there is a sandbox."""
    if device.type != "cuda":
        return {}
    llm = unmask.load(str(checkpoint), device=device.type)
    found: dict[str, float | str] = {}
    for label, (name, params) in SUITE.items():
        task = tasks.get(name, **params)
        items = task.generate(SEED, ITEMS)
        settings = unmask.Settings(max_tokens=task.max_tokens, block_size=task.block_size)
        outputs = llm.generate([item.prompt for item in items], policy="threshold", settings=settings, batch_size=ITEMS)
        try:
            right = task.check_many(items, [output.text for output in outputs])
        except sandbox.NoSandbox:
            found[label] = "not run: no sandbox"
        else:
            found[label] = round(sum(right) / ITEMS, 3)
    return found
