"""The plan of a request: the options that the caller gave, with every default filled in and everything checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch

from unmask import __version__, policies
from unmask.cache.kinds import Cache, cache_for
from unmask.device import widest_float
from unmask.engine.canvas import Canvas
from unmask.engine.text import Ending
from unmask.errors import UnknownName, UnmaskError
from unmask.models.base import MaskedLM, ModelSpec, capabilities_of
from unmask.models.checkpoint.tokenizer import TextCodec
from unmask.options import check_bounds, parameter
from unmask.policies import WHOLE_CANVAS, Policy, is_pure, name_of, needs_of, remasks
from unmask.policies.presets import FAMILIES
from unmask.settings import Settings
from unmask.trace.record import SCHEMA

OF_BATCHES = ("batch_size", "timed", "on_step", "on_output")
# Settings that each row has for itself: requests that differ only in these may be decided together.
_OWN = ("max_tokens", "block_size", "sliding", "seed", "cache", "refresh", "cfg_scale")
_OWN += ("stop", "stop_token_ids", "early_stop")


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """What events should tell beyond the commits; each costs time.

    Attributes:
        candidates: Likeliest tokens of every open position.
        overlap: Whether the overlap matrix is told, for policies that have one.
    """

    candidates: int = parameter(5, least=0)
    overlap: bool = False

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallKind:
    """What must be equal for rows to share a model call."""

    cache: str
    guided: bool
    whole: bool  # logits of every position, not of the block alone
    shadow: bool
    attention_layers: range | None
    drift: float | None  # tolerated before a refresh; None: drift does not count
    block_size: int | None  # of a block-causal model, whose attention depends on it
    verify: int  # guesses predicted beside each row


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The options of a request, resolved: nothing is left to default."""

    policy: Policy
    settings: Settings
    spec: ModelSpec

    @property
    def max_tokens(self) -> int:
        assert self.settings.max_tokens is not None
        return self.settings.max_tokens

    @property
    def block_size(self) -> int:
        assert self.settings.block_size is not None
        return self.settings.block_size

    @cached_property
    def cache(self) -> Cache:
        return cache_for(self.settings, shifted=self.spec.shifted)

    @cached_property
    def needs(self) -> frozenset[str]:
        return needs_of(self.policy)

    @cached_property
    def call_kind(self) -> CallKind:
        """Requests of one kind share model calls."""
        layers: Any = getattr(self.policy, "attention_layers", None)
        return CallKind(
            cache=self.cache.kind,
            guided=self.settings.cfg_scale > 0.0,
            whole="sequence_logits" in self.needs,
            shadow="shadow" in self.needs,
            attention_layers=layers(self.spec.n_layers) if "attention" in self.needs else None,
            drift=self.settings.refresh_rule()[1] if self.cache.kind in ("prefix", "dual") else None,
            block_size=self.block_size if self.spec.causal else None,
            verify=self.settings.verify,
        )

    @cached_property
    def decision_settings(self) -> Settings:
        """The settings on which a decision depends, all others at their defaults."""
        return replace(self.settings, **{item.name: item.default for item in fields(Settings) if item.name in _OWN})

    def canvas(self, tokens: list[int]) -> Canvas:
        """A canvas of these tokens, masks included, to be filled by this plan."""
        sizes: dict[str, Any] = {"block_size": self.block_size, "sliding": self.settings.sliding}
        return Canvas(tokens=tokens, mask_id=self.spec.mask_id, aligned=self.spec.causal, **sizes)

    def ending(self, codec: TextCodec) -> Ending:
        """What ends the text of a request with this plan."""
        ids = self.spec.end_ids | frozenset(self.settings.stop_token_ids)
        return Ending(token_ids=ids, strings=self.settings.stop, codec=codec)

    def header(self, model: MaskedLM) -> dict[str, Any]:
        """What a trace says about how it was made."""
        header: dict[str, Any] = {
            "schema": SCHEMA,
            "model": model.spec.name,
            "mask_id": model.spec.mask_id,
            "policy": policies.describe(self.policy),
            "settings": self.settings.to_dict(),
            "device": str(model.device),
            "dtype": _plain(model.dtype),
            "versions": {"unmask": __version__, "torch": str(torch.__version__)},
        }
        if (quantize := quantization_of(model)) is not None:
            header["quantize"] = quantize
        if (widest := widest_float(model.device)) != torch.float64:
            instead = f"what the public code does in it was done in {_plain(widest)}"
            header["notes"] = [f"{model.device.type} has no float64: {instead}"]
        return header


def plan(
    model: MaskedLM, policy: str | Policy | None, settings: Settings | None, shorthand: Mapping[str, Any] | None = None
) -> Plan:
    """Fill in what the caller leaves open, and refuse in one line what has no meaning."""
    spec, family = model.spec, preset_name(model.spec)
    given = _merged(settings, shorthand or {}).to_dict()
    policy = policies.resolve(policy, family)
    settings = policies.resolve_settings(policy, family, given, recommended=recommended(spec))
    made = Plan(policy=policy, settings=settings, spec=spec)
    check(made, model)
    return made


def recommended(spec: ModelSpec) -> dict[str, Any]:
    """Settings that go with a checkpoint, where the caller does not say otherwise."""
    lengths = {"max_tokens": spec.max_tokens, "block_size": spec.block_size}
    return lengths | ({"cache": "exact"} if spec.causal else {})


def check(plan: Plan, model: MaskedLM) -> None:
    """Refuse, in one line, a combination that has no meaning."""
    name, spec, settings, able = name_of(plan.policy), plan.spec, plan.settings, capabilities_of(model)
    if taken := sorted({item.name for item in fields(Settings)} & set(policies.describe(plan.policy)) - {"name"}):
        raise UnmaskError(f"the policy {name} has a parameter {taken[0]!r}, which is the name of a setting")
    beyond = ", ".join(sorted(plan.needs & WHOLE_CANVAS))
    if settings.cache != "none" and beyond:
        raise UnmaskError(f"the policy {name} needs {beyond} and cannot run with cache={settings.cache!r}")
    if "shadow" in plan.needs and spec.shifted:
        raise UnmaskError(f"the policy {name} is not defined for {spec.family} models, whose head is shifted")
    for need, can in (("attention", able.attention), ("shadow", able.shadow)):
        if need in plan.needs and not can:
            raise UnmaskError(f"the policy {name} needs {need}, which {spec.name} does not give")
    if settings.cache == "exact" and not spec.causal:
        raise UnmaskError(f"cache='exact' is for block-causal models; {spec.name} sees both ways: use prefix or dual")
    if settings.cache in ("prefix", "dual") and spec.causal:
        raise UnmaskError(f"cache={settings.cache!r} is for models that see both ways; {spec.name} has cache='exact'")
    if plan.call_kind.drift is not None and not able.states:
        raise UnmaskError(f"refresh={settings.refresh!r} needs a model that gives its states; {spec.name} does not")
    _check_verify(plan, name)


def _check_verify(plan: Plan, name: str) -> None:
    """Refuse guesses where a pass depends on more than the tokens of the canvas."""
    settings = plan.settings
    if not settings.verify:
        return
    for field, only in (("cache", "none"), ("temperature", 0.0), ("sliding", 1.0), ("cfg_scale", 0.0)):
        if (value := getattr(settings, field)) != only:
            way_out = f"set {field}={only!r} or verify=0"
            raise UnmaskError(f"verify={settings.verify} does not go with {field}={value!r}: {way_out}")
    if plan.needs or remasks(plan.policy) or not is_pure(plan.policy):
        why = "which decides by more than the logits of one pass over the block"
        raise UnmaskError(f"verify={settings.verify} does not go with the policy {name}, {why}: set verify=0")


def preset_name(spec: ModelSpec) -> str:
    """The name under which presets know the checkpoint: its own if it tells the family, else the family's."""
    own, family = spec.name.lower(), spec.family if spec.family in FAMILIES else spec.convention
    told = {name for name in FAMILIES if name in own}
    return spec.name if told == {family} else family


def quantization_of(model: MaskedLM) -> str | None:
    """In which 8-bit format the weights of the model's blocks are kept; None: in the model's dtype."""
    return getattr(model, "quantized", None)


def _merged(settings: Settings | None, shorthand: Mapping[str, Any]) -> Settings:
    if settings is not None and not isinstance(settings, Settings):
        got = type(settings).__name__
        raise UnmaskError(f"settings must be a Settings object, got {got}; or give its fields as keywords")
    known = {item.name: item.default for item in fields(Settings)}
    for key in shorthand:
        if key in OF_BATCHES:
            raise UnmaskError(f"{key} is for generate, chat and infill only")
        if key not in known and (owner := policies.owner_of(key)) is not None:
            way = f"pass policy=policies.get({owner!r}, {key}=...)"
            raise UnmaskError(f"{key} is a parameter of policies such as {owner}, not a setting: {way}")
        if key not in known:
            raise UnknownName("setting", key, known)
        if settings is not None and getattr(settings, key) != known[key]:
            raise UnmaskError(f"{key} is given twice: in settings and as a keyword")
    return (settings or Settings()).with_(**shorthand)


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
