"""Decoding for masked diffusion language models: commit many tokens per forward pass, safely.

The public names; each is imported when it is first used, since torch takes seconds to import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unmask import integrations, policies, remote, rules, tasks, types
    from unmask.engine.generator import Generator
    from unmask.engine.load import load
    from unmask.engine.plan import Detail
    from unmask.errors import UnmaskError
    from unmask.settings import Settings
    from unmask.trace.record import Trace
    from unmask.types import Decision, Output, StepEvent, StepView, StreamEvent, Usage

__all__ = ["Decision", "Detail", "Generator", "Output", "Settings", "StepEvent", "StepView", "StreamEvent", "Trace"]
__all__ += ["UnmaskError", "Usage", "integrations", "load", "policies", "remote", "rules", "tasks", "types"]
__version__ = "0.1.0"

_HOMES = {
    "Detail": "unmask.engine.plan",
    "Generator": "unmask.engine.generator",
    "Settings": "unmask.settings",
    "Trace": "unmask.trace.record",
    "UnmaskError": "unmask.errors",
    "load": "unmask.engine.load",
}
_MODULES = ("integrations", "policies", "remote", "rules", "tasks", "types")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"unmask.{name}")
    if name in __all__:
        return getattr(import_module(_HOMES.get(name, "unmask.types")), name)
    raise AttributeError(f"module 'unmask' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
