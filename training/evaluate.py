"""Accuracy of `tiny` on fresh test items, all items of a task decoded side by side on one GPU.

`python training/evaluate.py runs/tiny/tiny --items 500` prints, for each task, setting and policy, the accuracy with
its Wilson interval and the mean number of forward passes. The policies are the package's own, in a plain block loop.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from network import Network, attend_packed
from safetensors.torch import load_file
from tokenizer import EOS, MASK
from tokenizers import Tokenizer
from torch import Tensor

from unmask import policies, tasks
from unmask.types import StepView

SEED = 1_000_003  # test items come from the test side of the split, whatever the seed
QUICK_ITEMS = 128


class Canvas:
    """Prompts and masked responses of one task, end to end; `response` holds the places of each row's response."""

    def __init__(self, prompts: list[list[int]], max_tokens: int, mask: int, device: torch.device) -> None:
        rows = [prompt + [mask] * max_tokens for prompt in prompts]
        ends = torch.tensor([len(row) for row in rows]).cumsum(0)
        self.tokens = torch.tensor([token for row in rows for token in row], device=device)
        self.positions = torch.cat([torch.arange(len(row)) for row in rows]).to(device)
        self.bounds = torch.cat([torch.zeros(1, dtype=torch.long), ends]).int().to(device)
        self.longest = max(len(row) for row in rows)
        self.response = (ends[:, None] - max_tokens + torch.arange(max_tokens)).to(device)


def decode(network: Network, canvas: Canvas, policy: Any, mask: int, block_size: int) -> Tensor:
    """Fill the canvas block by block; the number of forward passes that each row needed."""
    attend = attend_packed(canvas.bounds, canvas.longest)
    passes = torch.zeros(len(canvas.response), dtype=torch.long, device=canvas.tokens.device)
    state = None
    for block in canvas.response.split(block_size, dim=1):
        step = torch.zeros_like(passes)
        while (masked := canvas.tokens[block] == mask).any():
            logits = network(canvas.tokens, canvas.positions, attend, block.flatten()).float().unflatten(0, block.shape)
            logits[..., mask] = -torch.inf
            left, total = (
                (canvas.tokens[canvas.response] == mask).sum(1),
                torch.full_like(passes, canvas.response.shape[1]),
            )
            view = StepView(logits=logits, masked=masked, start=block[:, 0], step=step, remaining=left, total=total)
            decision, state = policy.select(view, state)
            commit = policies.with_progress(decision, masked)
            canvas.tokens[block[commit]] = view.proposed[commit]
            passes += masked.any(1)
            step += 1
    return passes


def measure(
    network: Network, tokenizer: Tokenizer, task: Any, items: list[Any], policy: Any, max_tokens: int, block_size: int
) -> dict[str, Any]:
    """Which of the items are solved, and the mean number of passes."""
    device = next(network.parameters()).device
    eos, mask = tokenizer.token_to_id(EOS), tokenizer.token_to_id(MASK)
    canvas = Canvas([tokenizer.encode(item.prompt).ids for item in items], max_tokens, mask, device)
    passes = decode(network, canvas, policy, mask, block_size)
    rows = canvas.tokens[canvas.response].tolist()
    texts = [tokenizer.decode(row[: row.index(eos)] if eos in row else row) for row in rows]
    right = task.check_many(items, texts)
    return {"right": sum(right), "items": len(items), "passes": round(passes.float().mean().item(), 1), "texts": texts}


def families() -> list[tuple[str, Any]]:
    """The rows of the accuracy table."""
    named = [(name, tasks.get(name)) for name in ("sudoku", "word_problems", "list_functions")]
    return named + [(f"countdown-{numbers}", tasks.get("countdown", numbers=numbers)) for numbers in (3, 4)]


def quick_look(network: Network, tokenizer: Tokenizer, device: torch.device) -> dict[str, float]:
    """A rough accuracy for each task while training goes on, with many tokens a pass."""
    if device.type != "cuda":
        return {}
    policy = policies.get("threshold", threshold=0.9)
    found = {}
    for name, task in families():
        items = task.generate(SEED + 1, QUICK_ITEMS)
        result = measure(network, tokenizer, task, items, policy, task.max_tokens, task.block_size)
        found[name] = round(result["right"] / QUICK_ITEMS, 3)
    return found


def wilson(right: int, items: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a rate."""
    rate, scale = right / items, 1 + z * z / items
    middle = (rate + z * z / (2 * items)) / scale
    half = z * (rate * (1 - rate) / items + z * z / (4 * items * items)) ** 0.5 / scale
    return middle - half, middle + half


def load(folder: Path, device: torch.device) -> tuple[Network, Tokenizer]:
    config = json.loads((folder / "config.json").read_text())
    network = Network(config).to(device)
    weights = load_file(folder / "model.safetensors", device=str(device))
    network.load_state_dict({name.removeprefix("model."): weight.float() for name, weight in weights.items()})
    return network, Tokenizer.from_file(str(folder / "tokenizer.json"))


SETTINGS = {  # beside the documented one: (max_tokens, block_size)
    "sudoku": [(82, 20), (82, 32), (256, 32)],
    "word_problems": [(128, 20), (128, 128), (256, 32)],
    "list_functions": [(128, 20), (128, 128), (256, 32)],
    "countdown-3": [(48, 20), (48, 32), (256, 32)],
    "countdown-4": [(48, 20), (48, 32), (256, 32)],
}


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--items", type=int, default=500)
    parser.add_argument("--policies", default="fixed", help="names, separated by commas")
    parser.add_argument("--tasks", default="", help="only these rows of the table")
    parser.add_argument("--all-settings", action="store_true", help="other lengths and block sizes too")
    parser.add_argument("--show", type=int, default=0, help="print so many wrong answers")
    args = parser.parse_args()
    network, tokenizer = load(args.checkpoint, torch.device("cuda"))
    # As the package runs it on a GPU: in the checkpoint's own precision.
    with torch.autocast("cuda", torch.float16):
        report(network, tokenizer, args)


def report(network: Network, tokenizer: Tokenizer, args: argparse.Namespace) -> None:
    for name, task in families():
        if args.tasks and name not in args.tasks.split(","):
            continue
        items = task.generate(SEED, args.items)
        settings = [(task.max_tokens, task.block_size), *(SETTINGS[name] if args.all_settings else [])]
        for policy in args.policies.split(","):
            for max_tokens, block_size in settings:
                result = measure(network, tokenizer, task, items, policies.get(policy), max_tokens, block_size)
                low, high = wilson(result["right"], result["items"])
                row = {"task": name, "max_tokens": max_tokens, "block_size": block_size, "policy": policy}
                row |= {"accuracy": round(100 * result["right"] / result["items"], 2)}
                row |= {"low": round(100 * low, 2), "high": round(100 * high, 2), "passes": result["passes"]}
                sys.stdout.write(json.dumps(row | {"items": result["items"]}) + "\n")
                sys.stdout.flush()
        wrong = (
            [(i, t) for i, t in zip(items, result["texts"], strict=True) if not task.check(i, t)] if args.show else []
        )
        for item, text in wrong[: args.show]:
            sys.stdout.write(f"  {item.prompt!r}\n    {text!r}\n    {item.answer!r}\n")


if __name__ == "__main__":
    main()
