"""Test equipment: a function that is called again stands for a CUDA graph, on any device."""

from __future__ import annotations

from collections.abc import Callable
from inspect import getclosurevars, isfunction
from typing import Any

import torch
from torch import Tensor


class Recalled:
    """Calls the function again, on the inputs that a graph owns and into the same outputs."""

    def __init__(self, run: Callable[..., tuple[Tensor, ...]], inputs: list[Tensor], pool: Any) -> None:
        assert not _tensors(run), "a graph reads its inputs, and what outlives the call that recorded it"
        self.run, self.inputs, self.pool = run, inputs, pool or object()
        # A capture computes nothing.
        self.outputs = tuple(torch.full_like(value, -1) for value in run(*inputs))

    def replay(self) -> None:
        for own, value in zip(self.outputs, self.run(*self.inputs), strict=True):
            own.copy_(value)


def _tensors(function: Callable[..., Any]) -> list[str]:
    """The names of tensors that a function takes from where it was made."""
    found = getclosurevars(function).nonlocals if isfunction(function) else {}
    inner = [name for value in found.values() if isfunction(value) for name in _tensors(value)]
    return inner + [name for name, value in found.items() if isinstance(value, Tensor)]
