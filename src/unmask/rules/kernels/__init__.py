"""What only saves time: the same functions in Triton. The package works without this folder; see device.py."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def serves(values: Tensor) -> bool:
    """Whether a kernel computes with such numbers; float64 and tensors without elements are left to plain code."""
    return values.dtype in (torch.bfloat16, torch.float16, torch.float32) and values.numel() > 0


def next_power(number: int) -> int:
    """The next power of two: a tensor in a kernel has no other size."""
    return 1 << max(0, number - 1).bit_length()


def run_here(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    """Run a Triton kernel on the current device. To a type checker, its own call has other parameters."""
    kernel[grid](*arguments, **options)
