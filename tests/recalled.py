"""Test equipment: a function that is called again stands for a CUDA graph, on any device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Recalled:
    """Calls the function again, on the inputs that a graph owns and into the same outputs."""

    def __init__(self, run: Callable[..., tuple[Tensor, ...]], inputs: list[Tensor], pool: Any) -> None:
        self.run, self.inputs, self.pool = run, inputs, pool or object()
        # A capture computes nothing.
        self.outputs = tuple(torch.full_like(value, -1) for value in run(*inputs))

    def replay(self) -> None:
        for own, value in zip(self.outputs, self.run(*self.inputs), strict=True):
            own.copy_(value)
