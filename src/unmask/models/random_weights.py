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
from unmask.models.checkpoint.config import Config
from unmask.models.checkpoint.loading import ready
from unmask.models.checkpoint.memory import check_memory, memory_errors
from unmask.models.checkpoint.tokenizer import TextCodec
from unmask.models.families.find import family_of
from unmask.models.quantized import check_format, fill_quantized, model_bytes, quantized_bytes


def random_model(
    config: Mapping[str, Any],
    *,
    seed: int = 0,
    device: torch.device | None = None,
    dtype: torch.dtype = torch.float32,
    std: float = 0.02,
    name: str = "random weights",
    quantize: str | None = None,
) -> MaskedLM:
    """A model of that config: normal weights and biases of deviation `std`, norms of one.

    Quantised, its weights are those of the model that is not, rounded.
    """
    device = device or torch.device("cpu")
    check_format(quantize, device)
    checked = Config(config, "config")
    family = family_of(checked)
    spec = family.spec(checked, TextCodec(Tokenizer(BPE())), name)
    with torch.device("meta"):
        model = family.build(checked, spec).to(dtype)
    needed = model_bytes(model, dtype) if quantize is None else quantized_bytes(model, dtype)
    check_memory(needed, device, what=spec.name)
    generator = torch.Generator(device=device).manual_seed(seed)
    drawn = set()

    def draw() -> None:
        for name, parameter in model.named_parameters():
            if parameter.is_meta or name in drawn:
                continue
            drawn.add(name)
            if "norm" in name:
                parameter.fill_(1.0)
            else:
                parameter.normal_(std=std, generator=generator)

    with memory_errors(needed, device, what=spec.name), torch.no_grad():
        if quantize is None:
            model = model.to_empty(device=device)
            draw()
        else:
            fill_quantized(model, quantize, device, draw)
    return ready(model)
