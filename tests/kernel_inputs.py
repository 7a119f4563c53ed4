"""Inputs for kernels in Triton's interpreter.

Triton decides when it is imported whether it interprets, and a run of tests may have imported it already. So the
kernels run in a process of their own: see the fixture `interpreted`. The interpreter truncates bfloat16 where devices
round, and multiplies its bits in products, so this dtype is left to the tests on a device. float16 shows where results
are rounded.
"""

import torch

from unmask.models.layers import Rotary

DTYPES = (torch.float32, torch.float16)
EXACT = {"rtol": 2e-6, "atol": 2e-6}


def draw(*shape, seed=0, dtype=torch.float32, spread=1.0):
    return (spread * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def rotary_table(d, length):
    return Rotary(d, 10_000.0)(length, device=torch.device("cpu"))
