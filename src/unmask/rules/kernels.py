"""Whether Triton's kernels take the place of plain torch: for logits on a CUDA device that are not float64, if Triton
is installed. They give the same figures within rounding. The environment variable UNMASK_KERNELS=0 turns them off.
"""

from __future__ import annotations

import importlib.util
import os
from functools import cache

import torch
from torch import Tensor

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def kernels_serve(logits: Tensor) -> bool:
    """Whether kernels can compute something of these logits, and are wanted."""
    wanted = logits.is_cuda and logits.dtype in _DTYPES and os.environ.get("UNMASK_KERNELS") != "0"
    return wanted and logits.numel() > 0 and _triton_is_there()


@cache
def _triton_is_there() -> bool:
    return importlib.util.find_spec("triton") is not None
