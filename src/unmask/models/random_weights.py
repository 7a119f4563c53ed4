"""Models with the shape of a checkpoint and random weights: for benchmarks, where only sizes matter, and for tests.

Takes the config.json keys of a real checkpoint and runs the same code, apart from reading files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from torch import Tensor

from unmask.models.base import MaskedLM
from unmask.models.checkpoint.config import Config
from unmask.models.checkpoint.loading import materialize
from unmask.models.checkpoint.tokenizer import TextCodec
from unmask.models.families import family_of
from unmask.models.quantized import check_format


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

    A quantised model has the same weights, rounded.
    """
    device = device or torch.device("cpu")
    check_format(quantize, device)
    checked = Config(config, "config")
    family = family_of(checked)
    spec = family.spec(checked, TextCodec(Tokenizer(BPE())), name)
    with torch.device("meta"):
        model = family.build(checked, spec).to(dtype)
    generator = torch.Generator(device=device).manual_seed(seed)

    def draw(parameters: Mapping[str, Tensor]) -> None:
        for name, parameter in parameters.items():
            if "norm" in name:
                parameter.fill_(1.0)
            else:
                parameter.normal_(std=std, generator=generator)

    return materialize(model, name, device, quantize, tensors=lambda: dict(model.named_parameters()), fill=draw)
