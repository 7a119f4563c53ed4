"""What a call asked for, with every default filled in: the policy, the settings, how long, in which blocks."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch

from unmask import __version__, policies
from unmask.engine.sampling import noise_dtype
from unmask.engine.text import Ending
from unmask.errors import UnknownName, UnmaskError
from unmask.models.base import MaskedLM, ModelSpec
from unmask.models.tokenizer import TextCodec
from unmask.policies import Policy, name_of, needs_of
from unmask.settings import Settings
from unmask.trace.record import SCHEMA

# What only passes over whole canvases give.
WITHOUT_CACHE = frozenset({"sequence_logits", "attention", "shadow"})
_OF_BATCHES = ("trace", "batch_size", "timed", "on_step", "on_output")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A resolved request: nothing in it is left to default."""

    policy: Policy
    settings: Settings
    max_tokens: int
    block_size: int

    def ending(self, spec: ModelSpec, codec: TextCodec) -> Ending:
        """Where its texts end."""
        ids = spec.end_ids | frozenset(self.settings.stop_token_ids)
        return Ending(token_ids=ids, strings=self.settings.stop, codec=codec)

    def header(self, model: MaskedLM) -> dict[str, Any]:
        """What a trace says about how it came to be."""
        noise = noise_dtype(model.device)
        header: dict[str, Any] = {
            "schema": SCHEMA,
            "model": model.spec.name,
            "policy": policies.describe(self.policy),
            "settings": self.settings.to_dict(),
            "device": str(model.device),
            "dtype": _plain(model.dtype),
            "versions": {"unmask": __version__, "torch": str(torch.__version__)},
        }
        if (quantize := quantization_of(model)) is not None:
            header["quantize"] = quantize
        if noise != torch.float64:
            header["notes"] = [
                f"{model.device.type} has no float64: what the public code does in it was done in {_plain(noise)}"
            ]
        return header


def plan(spec: ModelSpec, policy: str | Policy | None, settings: Settings | None, shorthand: dict[str, Any]) -> Plan:
    """Fill in the defaults: those of the caller, then the checkpoint's, then the policy's, then ours."""
    family = preset_name(spec)
    given = _merged(settings, shorthand).to_dict()
    policy = policies.resolve(policy, family)
    checkpoint = {"max_tokens": spec.max_tokens, "block_size": spec.block_size}
    settings = policies.resolve_settings(policy, family, given, recommended=checkpoint)
    assert settings.max_tokens is not None
    assert settings.block_size is not None
    return Plan(policy=policy, settings=settings, max_tokens=settings.max_tokens, block_size=settings.block_size)


def check_compatible(policy: Policy, model: MaskedLM, settings: Settings) -> None:
    """Refuse, in one line, a combination that has no meaning."""
    name, needs = name_of(policy), needs_of(policy)
    if taken := sorted({item.name for item in fields(Settings)} & set(policies.describe(policy)) - {"name"}):
        raise UnmaskError(f"the policy {name} has a parameter {taken[0]!r}, which is the name of a setting")
    beyond = ", ".join(sorted(needs & WITHOUT_CACHE))
    if settings.cache != "none" and beyond:
        raise UnmaskError(f"the policy {name} needs {beyond} and cannot run with cache={settings.cache!r}")
    if "shadow" in needs and model.spec.shifted:
        raise UnmaskError(f"the policy {name} is not defined for {model.spec.family} models, whose head is shifted")


def preset_name(spec: ModelSpec) -> str:
    """The name under which presets know the checkpoint: its own if it tells the family, else the family's."""
    own = spec.name.lower()
    others = {"llada", "dream"} - {spec.convention}
    return spec.name if spec.convention in own and not any(other in own for other in others) else spec.convention


def quantization_of(model: MaskedLM) -> str | None:
    """In which 8-bit format the weights of the model's blocks are kept; None: in the model's dtype."""
    return getattr(model, "quantized", None)


def _merged(settings: Settings | None, shorthand: dict[str, Any]) -> Settings:
    if settings is not None and not isinstance(settings, Settings):
        raise UnmaskError(
            f"settings must be a Settings object, got {type(settings).__name__}; or give its fields as keywords"
        )
    known = {item.name: item.default for item in fields(Settings)}
    for key in shorthand:
        if key in _OF_BATCHES:
            raise UnmaskError(f"{key} is for generate, chat and infill only")
        if key not in known:
            owner = policies.owner_of(key)
            if owner is not None:
                way = f"pass policy=policies.get({owner!r}, {key}=...)"
                raise UnmaskError(f"{key} is a parameter of policies such as {owner}, not a setting: {way}")
            raise UnknownName("setting", key, known)
        if settings is not None and getattr(settings, key) != known[key]:
            raise UnmaskError(f"{key} is given twice: in settings and as a keyword")
    return (settings or Settings()).with_(**shorthand)


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
