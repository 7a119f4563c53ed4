"""What only saves time: the same operations in Triton, and passes captured as CUDA graphs. Removable; see device.py.

A module has its kernels first, then the functions that allocate memory and launch. Shapes depend on the host's numbers,
memory comes from torch, and nothing waits for the device, so a CUDA graph can capture every function.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def launch(kernel: Any, grid: tuple[int, ...], first: Tensor, *others: Any, **options: Any) -> None:
    """Run a Triton kernel on the device of its first argument. An empty grid is no work."""
    for tensor in (first, *others):  # kernels know no strides
        assert not isinstance(tensor, Tensor) or tensor.is_contiguous(), f"{tensor.shape} is not contiguous"
    if 0 not in grid:
        with torch.cuda.device_of(first):
            kernel[grid](first, *others, **options)
