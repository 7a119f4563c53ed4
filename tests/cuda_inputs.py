"""Inputs for kernels on a CUDA device, at the sizes of real models."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from unmask.models.layers import rotary_table

NEEDS_CUDA = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.usefixtures("no_grad"),
]
DTYPES = (torch.bfloat16, torch.float16, torch.float32)
LLADA, DREAM = (32, 32, 128), (28, 4, 128)  # heads, key heads and their width
# Width and feed-forward width.
WIDTHS = {LLADA: (4096, 12_288), DREAM: (3584, 18_944), (7, 1, 64): (448, 1000), (3, 3, 16): (37, 51)}


@contextmanager
def never_waiting() -> Iterator[None]:
    """Waiting for the device is an error."""
    with warnings.catch_warnings(action="ignore"):  # torch warns that this mode is young
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def draw(*shape, seed=0, dtype=torch.bfloat16, spread=1.0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return (spread * torch.randn(*shape, generator=generator, device="cuda")).to(dtype)


def heads_of(qkv, h, g):
    """Queries, keys and values (b, heads, n, d)."""
    return qkv.unflatten(-1, (h + 2 * g, -1)).transpose(1, 2).split([h, g, g], dim=1)


def table(d, length):
    return rotary_table(d, 500_000.0, length, torch.device("cuda"))


def some_positions(b, n, length, *, seed=0):
    """Different ones in every row, which need not be neighbours."""
    return torch.stack(
        [torch.randperm(length, generator=torch.Generator().manual_seed(seed + row))[:n] for row in range(b)]
    ).cuda()
