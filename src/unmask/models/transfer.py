"""From the host to a device, without waiting for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def on_device(values: Tensor | list[Any], device: torch.device) -> Tensor:
    """What the host knows; it does not wait until the device, which may be at work, has copied it."""
    found = values if isinstance(values, Tensor) else torch.tensor(values)
    if device.type != "cuda" or found.is_cuda:  # elsewhere a copy for which nobody waits may come too late
        return found.to(device)
    return found.pin_memory().to(device, non_blocking=True)
