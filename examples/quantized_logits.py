"""How far weights in 8 bits move the logits of `tiny`, at masked positions of its own answers.

    python examples/quantized_logits.py [ITEMS A TASK]

Prints the mean and the largest absolute difference from float32, and how often the likeliest token changes.
"""

import sys

import torch

import unmask
from unmask import tasks

TASKS = {"countdown": {"numbers": 4}, "word_problems": {}, "list_functions": {}, "sudoku": {}}
FORMATS = {"int8": {"quantize": "int8"}, "fp8": {"quantize": "fp8"}, "bfloat16": {"dtype": "bfloat16"}}


def main(items: int) -> None:
    exact = unmask.load("tiny", dtype="float32")
    others = {name: unmask.load("tiny", **({"dtype": "float32"} | options)) for name, options in FORMATS.items()}
    for name, options in TASKS.items():
        task = tasks.get(name, **options)
        differences, changes = ({other: [] for other in others} for _ in range(2))
        for number, item in enumerate(task.generate(0, items)):
            row, masks = half_masked(exact, task, item.prompt, number)
            wanted = exact.forward(row)[0, masks]
            for other, llm in others.items():
                found = llm.forward(row)[0, masks]
                differences[other].append((found - wanted).abs().flatten())
                changes[other].append(found.argmax(-1) != wanted.argmax(-1))
        for other in others:
            apart, changed = torch.cat(differences[other]), torch.cat(changes[other]).float()
            figures = (
                f"mean {apart.mean():.3f}, largest {apart.max():.2f}, likeliest token changed {changed.mean():.2%}"
            )
            print(f"{name:15} {other:9} {figures} ({len(changed)} positions)")


def half_masked(llm: unmask.Generator, task: tasks.Task, prompt: str, seed: int) -> tuple[list[int], list[int]]:
    """The prompt and the model's answer, of which a random part, a fifth of it or more, is masked; and where."""
    output = llm.generate(prompt, max_tokens=task.max_tokens, block_size=task.block_size)
    row = [*llm.codec.encode(prompt), *output.canvas_ids]
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.rand(len(output.canvas_ids), generator=generator) < 0.2 + 0.8 * torch.rand(1, generator=generator)
    hidden[0] = True
    first = len(row) - len(output.canvas_ids)
    masks = [first + place for place in hidden.nonzero().flatten().tolist()]
    return [llm.spec.mask_id if place in set(masks) else token for place, token in enumerate(row)], masks


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
