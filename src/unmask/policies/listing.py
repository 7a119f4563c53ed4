"""The installed policies as users see them: name, parameters, one sentence, or why a plug-in cannot be imported."""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from unmask.errors import UnmaskError
from unmask.policies.base import names, registry


def installed() -> list[dict[str, Any]]:
    """Every policy with its parameters and their defaults, what it needs, and what it does."""
    return [_row(name) for name in names()]


def _row(name: str) -> dict[str, Any]:
    try:
        cls = registry.find(name)
    except UnmaskError as error:
        return {"name": name, "parameters": {}, "needs": [], "about": str(error)}
    parameters = fields(cls) if is_dataclass(cls) else ()
    return {
        "name": name,
        "parameters": {item.name: "(required)" if item.default is MISSING else item.default for item in parameters},
        "needs": sorted(getattr(cls, "needs", ())),
        "about": (cls.__doc__ or "").strip().partition("\n")[0],
    }
