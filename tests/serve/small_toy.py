"""The toy model with little room, so that no request is long work; for a server in a process of its own."""

from dataclasses import replace

import torch

from unmask.models.base import LoadedModel
from unmask.models.toy import load_toy


def load() -> LoadedModel:
    loaded = load_toy(device=torch.device("cpu"), dtype=torch.float32)
    loaded.model.spec = replace(loaded.model.spec, max_length=96)
    return loaded
