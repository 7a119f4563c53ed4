"""The parameters with which each policy was published, per checkpoint and task, and how names become policies.

The four columns are GSM8K, MATH, HumanEval and MBPP; a single value holds for all of them. Mean-field on Dream takes
the default of the paper's sensitivity study, since the setting of its main table is not stated.

`resolve` and `resolve_settings` fill in what a caller leaves open, the same way for Python, the command line, recipes
and HTTP. `installed` and `forms` list the policies as users see them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from unmask.errors import UnknownName, UnmaskError
from unmask.options import described
from unmask.policies.base import WHOLE_CANVAS, Policy, describe, get, name_of, names, needs_of, registry
from unmask.settings import Settings

DEFAULT_POLICY = "mean_field"
DEFAULTS = {"max_tokens": 256, "block_size": 32, "cache": "none"}

TASKS = {"gsm8k": 0, "math": 1, "math500": 1, "humaneval": 2, "mbpp": 3}

# Family -> words by which it is known in a checkpoint's name. The embedded models belong to LLaDA's family.
FAMILIES = {"llada": r"llada|^(toy|tiny)$", "dream": r"dream|diffucoder", "sdar": r"sdar|trado"}
# Checkpoints of a family that have rows of their own, by the word in their names.
CHECKPOINTS = {"llada": "1.5", "dream": "base"}

# Policy -> family or checkpoint -> parameters and settings, which share no name, where they are not the defaults.
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "mean_field": {"llada": {"block_size": 20}, "dream": {"threshold": 0.95, "block_size": 20}},
    "random": {"dream": {"schedule": "dream"}},
    "entropy": {"dream": {"schedule": "dream"}},
    "margin": {"dream": {"schedule": "dream"}},
    "klass": {
        "llada": {"confidence": (0.6, 0.6, 0.9, 0.7), "kl": (0.015, 0.01, 0.01, 0.01), "block_size": 64},
        "dream": {"confidence": (0.9, 0.9, 0.8, 0.9), "kl": (0.001, 0.005, 0.001, 0.001), "convention": "dream"}
        | {"block_size": 256, "temperature": 0.2, "top_p": 0.95},
    },
    "local_leap": {"dream": {"relaxed_threshold": 0.8}},
    "dapd": {"llada": {"tau_max": (0.05, 0.05, 0.15, 0.15)}, "dream": {"tau_max": (0.05, 0.05, 0.15, 0.15)}},
    "wino": {"llada": {"draft_threshold": (0.6, 0.7, 0.7, 0.8)}},
    "dawn": {
        "llada": {"tau_low": (0.75, 0.75, 0.8, 0.7)},
        "llada-1.5": {"tau_low": (0.75, 0.75, 0.8, 0.75)},
        "dream": {"tau_sink": 0.03, "tau_edge": 0.1, "tau_induce": 0.75, "tau_low": 0.8},
        "dream-base": {"tau_sink": 0.03, "tau_edge": 0.05, "tau_induce": 0.75, "tau_low": (0.75, 0.8, 0.8, 0.8)},
    },
}


def resolve(
    policy: str | Policy | None, model: str, *, task: str | None = None, parameters: Mapping[str, Any] | None = None
) -> Policy:
    """The policy that a caller means: a name stands for its preset, None for the default, an object for itself.

    `parameters` change fields of it; `model` and `task` choose the row of the preset.
    """
    if policy is None or isinstance(policy, str):
        policy = preset(DEFAULT_POLICY if policy is None else policy, model, task)
    if isinstance(policy, type) or not callable(getattr(policy, "select", None)):
        raise UnmaskError(f"policy must be a name or a policy object, got {policy!r}")
    return get(**describe(policy) | dict(parameters)) if parameters else policy


def resolve_settings(
    policy: Policy,
    model: str,
    given: Mapping[str, Any],
    *,
    task: str | None = None,
    recommended: Mapping[str, Any] | None = None,
) -> Settings:
    """Settings with nothing left open: a `given` value, else the `recommended` one, the preset's, or our default.

    `recommended` comes from the task or the checkpoint. Its cache is left out for a policy that cannot use one. A value
    of None counts as not given.
    """
    own = preset_settings(name_of(policy), model, task) if name_of(policy) in names() else {}
    chosen = {key: value for key, value in given.items() if value is not None}
    known = {key: value for key, value in (recommended or {}).items() if value is not None}
    if needs_of(policy) & WHOLE_CANVAS:
        known.pop("cache", None)
    return Settings.from_dict(DEFAULTS | own | known | chosen)


def preset(name: str, model: str, task: str | None = None) -> Policy:
    """The policy as published for that checkpoint (a name, a path or a family) and task, GSM8K when none is given.

    A policy for which nothing was published gets its defaults.
    """
    row = _row(name, model, task)
    return get(name, **{key: value for key, value in row.items() if key not in Settings.__slots__})


def preset_settings(name: str, model: str, task: str | None = None) -> dict[str, Any]:
    """The fields of `Settings` that belong to the preset of that name."""
    registry.find(name)
    return {key: value for key, value in _row(name, model, task).items() if key in Settings.__slots__}


def _row(name: str, model: str, task: str | None) -> dict[str, Any]:
    task = (task or "gsm8k").lower()
    if task not in TASKS:
        raise UnknownName("task of a preset", task, TASKS)
    family, checkpoint = _family_and_checkpoint(model)
    rows = PRESETS.get(name, {})
    row = rows.get(checkpoint, rows.get(family, {}))
    return {key: value[TASKS[task]] if isinstance(value, tuple) else value for key, value in row.items()}


def _family_and_checkpoint(model: str) -> tuple[str, str]:
    """The family, and the name of the checkpoint's row; the last part of a path that names a family decides."""
    for part in reversed(re.split(r"[/\\]+", model.lower())):
        for family, words in FAMILIES.items():
            if re.search(words, part):
                checkpoint = CHECKPOINTS.get(family)
                return family, f"{family}-{checkpoint}" if checkpoint and checkpoint in part else family
    raise UnmaskError(f"no presets for model {model!r}; its name must tell the family: {', '.join(FAMILIES)}")


def installed() -> list[dict[str, Any]]:
    """Every policy with its parameters and their defaults, what it needs, and what it does."""
    return [_listed(name) for name in names()]


def forms(model: str) -> Iterator[dict[str, Any]]:
    """Every policy that can be used by its name alone, for a form: its parameters, and their values for the model."""
    for row in installed():
        with contextlib.suppress(UnmaskError):  # a plug-in that cannot be imported, or that needs a parameter
            chosen = preset(row["name"], model)
            parameters = described(chosen) if is_dataclass(chosen) else []
            yield row | {"parameters": parameters, "preset": describe(chosen)}


def _listed(name: str) -> dict[str, Any]:
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
