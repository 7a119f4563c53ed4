"""Models with the shape of a checkpoint and random weights: for benchmarks, where only sizes matter, and for tests.

Takes the same config.json keys as a real checkpoint and travels the same code, apart from reading files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE

from unmask.models.base import MaskedLM
from unmask.models.config import Config
from unmask.models.foreign import family_of
from unmask.models.loading import ready
from unmask.models.memory import check_memory, memory_errors
from unmask.models.tokenizer import TextCodec


def random_model(
    config: Mapping[str, Any],
    *,
    seed: int = 0,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
    std: float = 0.02,
    name: str = "random weights",
) -> MaskedLM:
    """A model of that config: normal weights and biases of deviation `std`, norms of one."""
    device = device or torch.device("cpu")
    checked = Config(config, "config")
    family = family_of(checked)
    spec = family.spec(checked, TextCodec(Tokenizer(BPE())), name)
    with torch.device("meta"):
        model = family.build(checked, spec).to(dtype)
    needed = sum(parameter.numel() for parameter in model.parameters()) * dtype.itemsize
    check_memory(needed, device, what=spec.name)
    generator = torch.Generator(device=device).manual_seed(seed)
    with memory_errors(needed, device, what=spec.name), torch.no_grad():
        model = model.to_empty(device=device)
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0)
            else:
                parameter.normal_(std=std, generator=generator)
    return ready(model)
