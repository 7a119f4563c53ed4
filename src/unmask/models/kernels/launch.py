"""What the launches of all kernels have in common."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def launch(kernel: Any, grid: tuple[int, ...], first: Tensor, *others: Any, **options: Any) -> None:
    """Run a Triton kernel on the device of its first argument. An empty grid is no work."""
    if 0 not in grid:
        with torch.cuda.device_of(first):
            kernel[grid](first, *others, **options)


def check_contiguous(**tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous, got strides {tensor.stride()} of shape {tuple(tensor.shape)}")
