"""The installed policies as users see them: name, parameters, one sentence, or why a plug-in cannot be imported."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from unmask.errors import UnmaskError
from unmask.options import described
from unmask.policies.base import describe, names, registry
from unmask.policies.presets import preset


def installed() -> list[dict[str, Any]]:
    """Every policy with its parameters and their defaults, what it needs, and what it does."""
    return [_row(name) for name in names()]


def forms(model: str) -> Iterator[dict[str, Any]]:
    """Every policy that can be used by its name alone, for a form: its parameters, and their values for the model."""
    for row in installed():
        with contextlib.suppress(UnmaskError):  # a plug-in that cannot be imported, or that needs a parameter
            chosen = preset(row["name"], model)
            parameters = described(chosen) if is_dataclass(chosen) else []
            yield row | {"parameters": parameters, "preset": describe(chosen)}


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
