"""Whether Triton's kernels take the place of plain torch, for rules and models alike.

They do on CUDA devices from capability 8.0 on, if Triton is installed, and give the same figures within rounding. The
environment variable UNMASK_KERNELS=0 turns them off, and with them whatever is captured as CUDA graphs.
"""

from __future__ import annotations

import importlib.util
import os
from functools import cache

import torch
from torch import Tensor

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def kernels_run(device: torch.device) -> bool:
    """Whether kernels can run on the device, and are wanted."""
    return device.type == "cuda" and os.environ.get("UNMASK_KERNELS") != "0" and _can_run(device)


def kernels_serve(values: Tensor) -> bool:
    """Whether kernels can compute something of these numbers, and are wanted."""
    return values.dtype in _DTYPES and values.numel() > 0 and kernels_run(values.device)


@cache
def _can_run(device: torch.device) -> bool:
    if torch.version.hip is not None or importlib.util.find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)
