"""What is decoded in a measurement: random prompts of given lengths, in every combination of batch, cache and refresh.

What the rows say does not matter, so random weights in the shape of a checkpoint will do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import torch

from unmask.bench.subject import Subject
from unmask.bench.workload import Workload
from unmask.device import fast_module
from unmask.engine.plan import Plan, plan
from unmask.engine.scheduler import Request
from unmask.errors import UnmaskError
from unmask.models.base import MaskedLM
from unmask.models.checkpoint.memory import check_memory
from unmask.models.transformer import Transformer
from unmask.policies import WHOLE_CANVAS, Fixed, Policy, describe, needs_of
from unmask.settings import Settings

Say = Callable[[str], None]
_NEVER_REFRESHED = ("none", "exact")


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

    def plan(self, model: MaskedLM) -> Plan:
        """The plan of its requests; raises an error of one line if the model cannot decode them."""
        names = ("max_tokens", "block_size", "cache", "refresh", "seed")
        made = plan(model, self.policy, Settings(**{name: getattr(self, name) for name in names}))
        if self.prompt_tokens + self.max_tokens > model.spec.max_length:
            asked = f"{self.prompt_tokens} prompt tokens and {self.max_tokens} to generate"
            raise UnmaskError(f"{asked} are more than the {model.spec.max_length} positions of {model.spec.name}")
        if model.device.type == "cpu":  # a full GPU raises an error; here the system would kill the process
            room = {"what": self.in_words(), "instead": "use a smaller batch or fewer tokens"}
            check_memory(self._least_bytes(model), model.device, **room)
        return made

    def requests(self, model: MaskedLM) -> list[Request]:
        """New requests, with the same prompts at every call."""
        made, spec = self.plan(model), model.spec
        generator = torch.Generator().manual_seed(self.seed)
        ids = torch.randint(spec.vocab_size - 1, (self.batch, self.prompt_tokens), generator=generator)
        ids += ids >= spec.mask_id
        prompts = [prompt[:length] for prompt, length in zip(ids.tolist(), self.prompt_lengths, strict=True)]
        masks = [spec.mask_id] * self.max_tokens
        return [Request(canvas=made.canvas(prompt + masks), plan=made) for prompt in prompts]

    def _least_bytes(self, model: MaskedLM) -> int:
        """The bytes that a pass over whole canvases holds at once: states of a layer or logits, and the cache."""
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
        """The prompt length of every row, the longest first."""
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
        refresh = "" if self.cache in _NEVER_REFRESHED else self.refresh
        return {"prompt": self.prompt_in_words, "batch": self.batch, "cache": self.cache, "refresh": refresh}

    def to_dict(self) -> dict[str, Any]:
        said = {"policy": describe(self.policy), "shortest_prompt": self.prompt_lengths[-1]}
        return {item.name: getattr(self, item.name) for item in fields(self)} | said


class LoadTiming:
    """What every timing of a load has; a subclass adds its figures as attributes."""

    def __init__(self, subject: Subject, load: Load) -> None:
        self.subject, self.load = subject, load

    def in_words(self) -> str:
        return self.subject.in_words()

    def to_dict(self) -> dict[str, Any]:
        own = {name: value for name, value in vars(self).items() if name not in ("subject", "load")}
        return vars(self.subject) | self.load.to_dict() | own


def loads_of(workload: Workload, model: MaskedLM) -> list[Load]:
    """Every combination; raises if the model cannot decode one. A cache that is never refreshed comes once."""
    block_size = workload.block_size or (model.spec.block_size if model.spec.causal else None) or 32
    policy = workload.policy or default_policy(block_size)
    usable = ("none", "exact") if model.spec.causal else ("none", "prefix", "dual")
    loads = [
        Load(
            policy=policy,
            prompt_tokens=prompt,
            max_tokens=workload.max_tokens,
            block_size=block_size,
            batch=batch,
            cache=cache,
            refresh=refresh,
            seed=workload.seed,
            shortest_prompt=workload.shortest_prompt,
        )
        for prompt in workload.prompt_tokens
        for batch in workload.batches
        for cache in workload.caches or (usable[:1] if needs_of(policy) & WHOLE_CANVAS else usable)
        for refresh in (("block",) if cache in _NEVER_REFRESHED else workload.refreshes)
    ]
    for load in loads:
        load.plan(model)
    return loads


def default_policy(block_size: int) -> Policy:
    """A quarter as many passes as a block has positions, however sure the model is.

    So the work is the same for every version of the code and every model, though Dream commits a single position in a
    refresh. A short last block takes as many passes as the others, if it has that many positions.
    """
    return Fixed(passes=max(1, block_size // 4))


def announced(loads: list[Load], model: MaskedLM, on_progress: Say) -> Iterator[Load]:
    """Each load in turn. If its prompts are of one length, the kernels are told that its shape will come often."""
    kernels = fast_module("unmask.models.kernels.passes", model.device)
    for number, load in enumerate(loads, 1):
        on_progress(f"measuring {number} of {len(loads)}: {load.in_words()}")
        if kernels is not None and len(set(load.prompt_lengths)) == 1:
            kernels.announce(model, load.batch, load.prompt_tokens + load.max_tokens)
        yield load
