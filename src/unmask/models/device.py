"""The device that a model is on: choosing it, and its maker's name for it."""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from unmask.errors import UnmaskError


def choose_device(device: str | torch.device | None) -> torch.device:
    """The device asked for, if it is there; by default CUDA, else MPS, else the CPU."""
    if device is None:
        best = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device(best)
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise UnmaskError(f"unknown device {device!r}; use 'cpu', 'cuda', 'cuda:N' or 'mps'") from error
    available = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if chosen.type not in available:
        raise UnmaskError(f"unknown device {device!r}; use 'cpu', 'cuda', 'cuda:N' or 'mps'")
    if (chosen.index or 0) >= available[chosen.type]:
        count = available[chosen.type]
        raise UnmaskError(f"device {str(device)!r} is not there: torch {torch.__version__} sees {count} of that type")
    return chosen


def device_name(device: torch.device) -> str:
    """The device in the words of its maker, or the processor's kind."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return model or platform.processor() or platform.machine()
