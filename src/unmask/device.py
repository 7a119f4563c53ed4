"""What a device can do, and the one place that chooses kernels over plain code.

Plain code runs on every device. Folders called `kernels` and `cuda` hold what only saves time; plain code reaches them
through this module alone and never imports them, so the package works without these folders. Kernels serve on CUDA
devices from capability 8.0 on, if Triton is installed. UNMASK_KERNELS=0 in the environment turns them off, and captured
graphs with them; UNMASK_KERNELS=interpret lets functions use kernels on every device, for Triton's interpreter.

Imports torch and the standard library only, so that another engine can copy it together with rules/, errors.py and
options.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, TypeVar

import torch
from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])

SWITCH = "UNMASK_KERNELS"
# The name of every kernel that a plain function asks for; a test resolves them all.
KERNEL_NAMES: list[str] = []
# What allocators say: of the CPU on Linux and on Windows, of MPS and CUDA's driver, of the C++ library.
_NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "bad_alloc")


def with_kernel(plain: F) -> F:
    """Let a kernel take the place of a plain function, on devices where kernels are on.

    The kernel of `package.module.function` is `package.kernels.module.function`. It takes the same arguments, of which
    the first is a tensor, and answers NotImplemented to arguments that it cannot serve.
    """
    package, _, module = plain.__module__.rpartition(".")
    home, name = f"{package}.kernels.{module}", plain.__name__  # ty: ignore[missing-attribute]
    KERNEL_NAMES.append(f"{home}.{name}")

    @wraps(plain)
    def dispatched(*args: Any, **options: Any) -> Any:
        if kernels_on(args[0].device) or os.environ.get(SWITCH) == "interpret":
            kernels = _module(home)
            found = NotImplemented if kernels is None else getattr(kernels, name)(*args, **options)
            if found is not NotImplemented:
                return found
        return plain(*args, **options)

    return dispatched  # ty: ignore[invalid-return-type]


def fast_module(name: str, device: torch.device) -> ModuleType | None:
    """The module of that name if kernels are on for the device; None: plain code serves."""
    return _module(name) if kernels_on(device) else None


def kernels_on(device: torch.device) -> bool:
    """Whether kernels can run on the device, and are wanted."""
    return device.type == "cuda" and os.environ.get(SWITCH) != "0" and _runs_triton(device)


@cache
def _runs_triton(device: torch.device) -> bool:
    if torch.version.hip is not None or find_spec("triton") is None:
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


@cache
def _module(name: str) -> ModuleType | None:
    """None where the folder of the module has been left out."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and name.startswith(error.name):
            return None
        raise


def widest_float(device: torch.device) -> torch.dtype:
    """float64, except on MPS, which has none.

    A sum in float64 that is rounded once does not depend on how many zeros a wider batch has added.
    """
    return torch.float32 if device.type == "mps" else torch.float64


def on_device(values: Tensor | list[Any], device: torch.device) -> Tensor:
    """Numbers of the host on a device; the host does not wait until a busy device has copied them."""
    found = values if isinstance(values, Tensor) else torch.tensor(values)
    if device.type != "cuda" or found.is_cuda:  # elsewhere a copy that the host does not await may be late
        return found.to(device)
    return found.pin_memory().to(device, non_blocking=True)


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, of a device or of the host. Not every allocator has an error class of its own."""
    said = str(error).lower() if isinstance(error, RuntimeError) else ""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(words in said for words in _NO_MEMORY)


def wait_for(device: torch.device) -> None:
    """Return when the device has done everything asked of it so far."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
