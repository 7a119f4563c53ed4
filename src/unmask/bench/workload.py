"""What is decoded in a measurement: random prompts of given lengths, in every combination of batch, cache and refresh.

What the rows say is of no interest, so that a checkpoint is needed no more than its shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from unmask.bench.measure import check_room
from unmask.engine.canvas import Canvas
from unmask.engine.plan import Plan, plan
from unmask.engine.scheduler import Request
from unmask.errors import UnmaskError
from unmask.models.base import MaskedLM, ModelSpec
from unmask.models.transformer import Transformer
from unmask.policies import WHOLE_CANVAS, Fixed, Policy, describe, needs_of
from unmask.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """`batch` random prompts, each continued by `max_tokens`.

    They are of one length, or, with `shortest_prompt`, of lengths evenly spread from that one to `prompt_tokens`.
    """

    policy: Policy
    prompt_tokens: int
    max_tokens: int
    block_size: int
    batch: int = 1
    cache: str = "none"
    refresh: str = "block"
    seed: int = 0
    shortest_prompt: int | None = None

    def __post_init__(self) -> None:
        for name in ("prompt_tokens", "batch"):
            if getattr(self, name) < 1:
                raise UnmaskError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.shortest_prompt is not None and not 1 <= self.shortest_prompt <= self.prompt_tokens:
            raise UnmaskError(
                f"the shortest prompt must have 1 to {self.prompt_tokens} tokens, got {self.shortest_prompt}"
            )
        self.settings()  # raises what is wrong with them

    def settings(self) -> Settings:
        names = ("max_tokens", "block_size", "cache", "refresh", "seed")
        return Settings(**{name: getattr(self, name) for name in names})

    def plan(self, model: MaskedLM) -> Plan:
        """How it is decoded; refuses, in one line, what the model cannot decode."""
        made = plan(model, self.policy, self.settings())
        if self.prompt_tokens + self.max_tokens > model.spec.max_length:
            most = f"the {model.spec.max_length} positions of {model.spec.name}"
            raise UnmaskError(
                f"{self.prompt_tokens} prompt tokens and {self.max_tokens} to generate are more than {most}"
            )
        if model.device.type == "cpu":  # a GPU that is full raises an error; here the kernel would kill the process
            room = {"what": self.in_words(), "instead": "use a smaller batch or fewer tokens"}
            check_room(self._least_bytes(model), model.device, **room)
        return made

    def requests(self, model: MaskedLM) -> list[Request]:
        """Fresh ones, the same each time."""
        made = self.plan(model)
        return [Request(canvas=canvas, plan=made) for canvas in self._canvases(model.spec)]

    def _canvases(self, spec: ModelSpec) -> list[Canvas]:
        generator = torch.Generator().manual_seed(self.seed)
        ids = torch.randint(spec.vocab_size - 1, (self.batch, self.prompt_tokens), generator=generator)
        ids += ids >= spec.mask_id
        sizes: dict[str, Any] = {"mask_id": spec.mask_id, "block_size": self.block_size, "seed": self.seed}
        prompts = [prompt[:length] for prompt, length in zip(ids.tolist(), self.prompt_lengths, strict=True)]
        return [Canvas.continuing(prompt, self.max_tokens, aligned=spec.causal, **sizes) for prompt in prompts]

    def _least_bytes(self, model: MaskedLM) -> int:
        """What a pass over whole canvases holds at once: states of a layer or logits, and what a cache stores."""
        length, vocabulary = self.max_tokens + (self.shortest_prompt or self.prompt_tokens), model.spec.vocab_size
        if not isinstance(model, Transformer):
            return model.dtype.itemsize * self.batch * length * vocabulary
        shape = model.shape
        states = length * (2 * shape.width + 4 * shape.hidden)
        predicted = length if "sequence_logits" in needs_of(self.policy) else min(self.block_size, self.max_tokens)
        stored = 0 if self.cache == "none" else 2 * shape.n_layers * shape.n_kv_heads * shape.head_width * length
        return model.dtype.itemsize * self.batch * (max(states, predicted * vocabulary) + stored)

    @property
    def prompt_lengths(self) -> list[int]:
        """Of every row, the longest first."""
        spread = self.prompt_tokens - (self.shortest_prompt or self.prompt_tokens)
        return [self.prompt_tokens - round(spread * row / max(1, self.batch - 1)) for row in range(self.batch)]

    @property
    def prompt_in_words(self) -> str:
        shortest = self.prompt_lengths[-1]
        return str(shortest) if shortest == self.prompt_tokens else f"{shortest}-{self.prompt_tokens}"

    def in_words(self) -> str:
        refresh = "" if self.refresh == "block" else f", refresh {self.refresh}"
        return f"prompt {self.prompt_in_words}, batch {self.batch}, cache {self.cache}{refresh}"

    def row(self) -> dict[str, Any]:
        """The sizes as the beginning of a line of a table."""
        refresh = "" if self.cache in ("none", "exact") else self.refresh
        return {"prompt": self.prompt_in_words, "batch": self.batch, "cache": self.cache, "refresh": refresh}

    def to_dict(self) -> dict[str, Any]:
        names = ("prompt_tokens", "max_tokens", "block_size", "batch", "cache", "refresh", "seed")
        own = {name: getattr(self, name) for name in names} | {"shortest_prompt": self.prompt_lengths[-1]}
        return {"policy": describe(self.policy)} | own


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The loads of a measurement."""

    policy: Policy | None = None  # default: see default_policy
    prompt_tokens: Sequence[int] = (256,)
    batches: Sequence[int] = (1,)
    caches: Sequence[str] | None = None  # default: those that the policy and the model can use
    refreshes: Sequence[str] = ("block",)
    max_tokens: int = 256
    block_size: int | None = None  # default: the model's own, if its blocks are part of it, else 32
    repeats: int = 3
    seed: int = 0
    shortest_prompt: int | None = None

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise UnmaskError(f"repeats must be at least 1, got {self.repeats}")
        for refresh in self.refreshes:
            Settings(refresh=refresh)
        self._combinations(32, ("none",))  # raises what is wrong before a model is opened for it

    def loads(self, model: MaskedLM) -> list[Load]:
        """Every combination, if the model can decode it."""
        own = model.spec.block_size if model.spec.causal else None
        found = self._combinations(self.block_size or own or 32, ("none", "exact") if model.spec.causal else _BOTH_WAYS)
        for load in found:
            load.plan(model)
        return found

    def _combinations(self, block_size: int, caches: Sequence[str]) -> list[Load]:
        """Without a cache there is nothing to refresh: it is measured once."""
        policy = self.policy or default_policy(block_size)
        caches = self.caches or (("none",) if needs_of(policy) & WHOLE_CANVAS else caches)
        return [
            Load(
                policy=policy,
                prompt_tokens=prompt,
                max_tokens=self.max_tokens,
                block_size=block_size,
                batch=batch,
                cache=cache,
                refresh=refresh,
                seed=self.seed,
                shortest_prompt=self.shortest_prompt,
            )
            for prompt in self.prompt_tokens
            for batch in self.batches
            for cache in caches
            for refresh in (("block",) if cache in ("none", "exact") else self.refreshes)
        ]


_BOTH_WAYS = ("none", "prefix", "dual")


def default_policy(block_size: int) -> Policy:
    """A quarter as many passes as a block has positions, however many the model is sure of.

    So the work is the same for every code and every model, though Dream commits a single position in a refresh. A short
    last block takes as many passes as the others, if it has so many positions.
    """
    return Fixed(passes=max(1, block_size // 4))
