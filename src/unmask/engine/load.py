"""`unmask.load`: from a name to something that generates."""

from __future__ import annotations

import torch

from unmask.engine.generator import Generator
from unmask.models.loading import load_model


def load(
    path_or_name: str,
    *,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
    quantize: str | None = None,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | None = None,
) -> Generator:
    """A generator for a checkpoint folder, a hub name, or a model that the package carries ('toy')."""
    return Generator(
        load_model(
            path_or_name,
            device=device,
            dtype=dtype,
            quantize=quantize,
            revision=revision,
            token=token,
            cache_dir=cache_dir,
        )
    )
