"""`unmask.load`: from a name to a Generator."""

from __future__ import annotations

from collections.abc import Callable

import torch

from unmask.engine.generator import Generator
from unmask.models.checkpoint.loading import load_model


def load(
    path_or_name: str,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    quantize: str | None = None,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | None = None,
    on_bytes: Callable[[int, int], None] = lambda done, total: None,
) -> Generator:
    """A generator for a checkpoint folder, a hub name, or a model that the package carries ('tiny', 'toy').

    Args:
        path_or_name: The folder, the name on the hub, 'tiny' or 'toy'.
        device: 'cuda', 'mps' or 'cpu'; default CUDA if there is one, else MPS, else the CPU.
        dtype: 'float32', 'bfloat16' or 'float16'; default float32 on CPU and MPS, the checkpoint's own on CUDA.
        quantize: 'fp8' or 'int8' keeps the weights of the blocks in 8 bits with one scale for each output; embedding,
            head and all computation stay in the dtype. Half the memory of bfloat16; faster on CUDA only.
        revision: Branch, tag or commit on the hub; default its main branch.
        token: Access token of the hub; default the one that this machine has stored.
        cache_dir: Folder for downloads; default the hub's own.
        on_bytes: Called after each tensor with the bytes of weights that were read, and how many there are.
    """
    hub = {"revision": revision, "token": token, "cache_dir": cache_dir}
    return Generator(load_model(path_or_name, device=device, dtype=dtype, quantize=quantize, on_bytes=on_bytes, **hub))
