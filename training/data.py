"""Endless training data: items of the tiny suite, masked as decoding will see them, packed into batches of one size.

A sequence is prompt, answer and ends of text up to a drawn length; there is no padding between or inside sequences.
Each process draws from seeds of its own, always from the training side of the split.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizer import EOS, MASK
from tokenizers import Tokenizer
from torch.utils.data import IterableDataset, get_worker_info

from unmask import tasks

ITEMS_PER_DRAW = 256


@dataclass(slots=True)
class Sequence:
    """One masked example; `predicted` are places in it whose original `targets` must be guessed."""

    tokens: np.ndarray
    predicted: np.ndarray
    targets: np.ndarray


class PackedBatches(IterableDataset):
    """Batches as dicts of tensors: tokens, positions, bounds of sequences, and what to predict with which weight."""

    def __init__(self, settings: dict[str, Any], tokenizer_path: Path, start: int = 0) -> None:
        self.settings = settings
        self.tokenizer_path = tokenizer_path
        self.start = start  # another number gives other data: a resumed run must not see the old items again

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        worker = get_worker_info()
        number = worker.id if worker else 0
        tokenizer = Tokenizer.from_file(str(self.tokenizer_path))
        rng = np.random.default_rng([self.settings["seed"], self.start, number])
        mixture = self.settings["tasks"]
        sources = [Source(entry, tokenizer, self.settings, rng) for entry in mixture]
        while True:
            yield pack([source.take() for source in sources], mixture, self.settings["batch"])


class Source:
    """Sequences of one task, drawn in chunks of items."""

    def __init__(self, entry: dict[str, Any], tokenizer: Tokenizer, settings: dict[str, Any], rng: np.random.Generator):
        self.task = tasks.get(entry["task"], **entry.get("params", {}))
        self.tokenizer = tokenizer
        self.settings = settings
        self.rng = rng
        self.budget = int(entry["tokens"] * settings["batch"]["tokens"])
        self.eos, self.mask = (tokenizer.token_to_id(token) for token in (EOS, MASK))
        self.waiting: list[tuple[list[int], list[int]]] = []

    def take(self) -> list[Sequence]:
        """As many sequences as fit the task's share of a batch."""
        taken: list[Sequence] = []
        room = self.budget
        while True:
            sequence = self.next()
            if len(sequence.tokens) > room:
                return taken
            room -= len(sequence.tokens)
            taken.append(sequence)

    def next(self) -> Sequence:
        if not self.waiting:
            items = self.task.generate(int(self.rng.integers(2**62)), ITEMS_PER_DRAW, "train")
            prompts = self.tokenizer.encode_batch([item.prompt for item in items])
            answers = self.tokenizer.encode_batch([item.answer for item in items], add_special_tokens=False)
            self.waiting = [(prompt.ids, answer.ids) for prompt, answer in zip(prompts, answers, strict=True)]
        prompt, answer = self.waiting.pop()
        length = self.response_length(len(answer))
        length = min(length, self.settings["batch"]["longest"] - len(prompt))
        tokens = np.full(len(prompt) + length, self.eos, dtype=np.int64)
        tokens[: len(prompt)] = prompt
        tokens[len(prompt) : len(prompt) + len(answer)] = answer
        hidden, predicted = self.masks(len(answer), length)
        places = predicted + len(prompt)
        targets = tokens[places]
        tokens[hidden + len(prompt)] = self.mask
        return Sequence(tokens, places, targets)

    def response_length(self, answer: int) -> int:
        rules, draw = self.settings["response"], self.rng.random()
        shortest = answer + 1
        if draw < rules["tight"]:
            return shortest + int(self.rng.integers(0, 9))
        most = self.task.max_tokens if draw < rules["tight"] + rules["documented"] else rules["longest"]
        return int(self.rng.integers(shortest, max(shortest, most) + 1))

    def masks(self, answer: int, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Places of the response that are masked, and those among them that are predicted."""
        rules, rng = self.settings["masking"], self.rng
        if rng.random() < rules["blocks"]:
            size = int(rng.choice(rules["block_sizes"]))
            start = size * int(rng.integers(0, answer // size + 1))
            end = min(start + size, length)
            chosen = start + rng.permutation(end - start)[: rng.integers(1, end - start + 1)]
            return np.concatenate([chosen, np.arange(end, length)]), chosen
        if rng.random() < rules["tail_known"]:
            length = min(length, answer + 1 + int(rng.integers(0, 4)))
        count = length if rng.random() < rules["all_masked"] else int(rng.integers(1, length + 1))
        chosen = rng.permutation(length)[:count]
        return chosen, chosen


def pack(groups: list[list[Sequence]], mixture: list[dict[str, Any]], sizes: dict[str, int]) -> dict[str, torch.Tensor]:
    """One batch. A task's weight is spread evenly over its sequences, a sequence's over what it predicts."""
    tokens = np.zeros(sizes["tokens"], dtype=np.int64)
    positions = np.zeros(sizes["tokens"], dtype=np.int64)
    bounds = np.full(sizes["sequences"] + 1, sizes["tokens"], dtype=np.int32)
    places, targets, owners = (np.zeros(sizes["predicted"], dtype=np.int64) for _ in range(3))
    weights = np.zeros(sizes["predicted"], dtype=np.float32)
    at = predicted = number = 0
    bounds[0] = 0
    for owner, (group, entry) in enumerate(zip(groups, mixture, strict=True)):
        for sequence in group:
            size, count = len(sequence.tokens), len(sequence.predicted)
            if predicted + count > sizes["predicted"] or number + 1 >= sizes["sequences"]:
                break
            tokens[at : at + size] = sequence.tokens
            positions[at : at + size] = np.arange(size)
            span = slice(predicted, predicted + count)
            places[span] = sequence.predicted + at
            targets[span] = sequence.targets
            owners[span] = owner
            weights[span] = entry["loss"] / (len(group) * count)
            at, predicted, number = at + size, predicted + count, number + 1
            bounds[number] = at
    # What is left over becomes sequences of its own that nothing is predicted in; none may exceed the longest.
    while at < sizes["tokens"] and number < sizes["sequences"] - 1:
        size = min(sizes["longest"], sizes["tokens"] - at)
        positions[at : at + size] = np.arange(size)
        at, number = at + size, number + 1
        bounds[number] = at
    arrays = {"tokens": tokens, "positions": positions, "bounds": bounds, "places": places}
    arrays |= {"targets": targets, "weights": weights, "owners": owners}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
