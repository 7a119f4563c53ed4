"""What is decoded in a measurement: random prompts of given lengths, in every combination of batch, cache and refresh.

What the rows say does not matter, so random weights in the shape of a checkpoint will do. `run_passes` decodes a load
by the engine's own loop and watches from outside how long each forward pass took, and how large it was. A pass is
everything from one look at the canvas to the next: forward, proposal, policy, commit, and the host's part.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from unmask.bench.measure import Measurement, now
from unmask.bench.roofline import ModelCall
from unmask.bench.subject import Subject
from unmask.bench.workload import Workload
from unmask.cache.storage import StoragePool
from unmask.device import fast_module
from unmask.engine.batch import Call
from unmask.engine.decode import decode
from unmask.engine.plan import Plan, plan
from unmask.engine.prompts import check_length
from unmask.engine.runner import Runner, runner_for
from unmask.engine.scheduler import Request, Scheduler
from unmask.engine.timed import TimedRunner
from unmask.engine.window import Pass
from unmask.models.base import MaskedLM
from unmask.models.device import check_memory
from unmask.models.transformer import Transformer
from unmask.policies import WHOLE_CANVAS, Fixed, Policy, describe, needs_of
from unmask.settings import Settings
from unmask.types import Timing

Say = Callable[[str], None]
_NEVER_REFRESHED = ("none", "exact")
KINDS = {"none": "whole canvas", "prefix": "block and suffix", "dual": "block only", "exact": "block only"}
REFRESH = "refresh"
MIXED = "mixed"


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
        check_length(model.spec, self.prompt_tokens, self.max_tokens)
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

    def measured(self, subject: Subject, figures: dict[str, Any], row: dict[str, Any]) -> Measurement:
        """The figures and the line of a table, beside what was measured and its sizes."""
        sizes = asdict(self) | {"policy": describe(self.policy), "shortest_prompt": self.prompt_lengths[-1]}
        refresh = "" if self.cache in _NEVER_REFRESHED else self.refresh
        shown = {"prompt": self.prompt_in_words, "batch": self.batch, "cache": self.cache, "refresh": refresh}
        return Measurement(title=subject.in_words(), figures=subject.figures() | sizes | figures, rows=[shown | row])


def loads_of(workload: Workload, model: MaskedLM) -> list[Load]:
    """Every combination; raises if the model cannot decode one. A cache that is never refreshed comes once."""
    block_size = workload.block_size or (model.spec.block_size if model.spec.causal else None) or 32
    policy = workload.policy or default_policy(block_size)
    usable = ("none", "exact") if model.spec.causal else ("none", "prefix", "dual")
    alike: dict[str, Any] = {"policy": policy, "block_size": block_size}
    alike |= {name: getattr(workload, name) for name in ("max_tokens", "seed", "shortest_prompt")}
    loads = [
        Load(prompt_tokens=prompt, batch=batch, cache=cache, refresh=refresh, **alike)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPass:
    """One forward pass over the live rows."""

    kind: str
    blocks: frozenset[int]  # the current blocks of the live rows; one if all rows are in the same
    ahead: int  # the earliest block that is not complete after this pass
    calls: tuple[ModelCall, ...]
    seconds: float
    timing: Timing | None = None  # the parts of `seconds`, if they were asked for


class Watch:
    """Notes the size of every model call of a pass, from now on."""

    def __init__(self, runner: Runner) -> None:
        self.calls: list[ModelCall] = []
        self.kinds: set[str] = set()
        self._forward = runner.forward
        runner.forward = self._noted

    def _noted(self, call: Call) -> Pass:
        done, plan = self._forward(call), call.plan()
        predicted = done.window.at.shape[1]
        self.calls.append(ModelCall(positions=tuple(plan.sizes), keys=tuple(plan.seen), predicted=predicted))
        # With an exact cache, the first pass over a block also stores the block before it: that counts as a refresh.
        stores = [row.refresh or (call.kind.cache == "exact" and row.span[0] < block[0])
                  for row, block in zip(plan.rows, done.window.blocks, strict=True)]  # fmt: skip
        self.kinds |= {REFRESH if stored else KINDS[call.kind.cache] for stored in stores}
        return done

    def take(self) -> tuple[str, tuple[ModelCall, ...]]:
        """The kind and the calls of the pass that is over."""
        kind, calls = self.kinds.pop() if len(self.kinds) == 1 else MIXED, tuple(self.calls)
        self.calls, self.kinds = [], set()
        return kind, calls


def run_passes(model: MaskedLM, load: Load, pool: StoragePool, *, timed: bool) -> Iterator[MeasuredPass]:
    """Decode, and yield every pass when it is over; the first includes setting up the loop."""
    requests = load.requests(model)
    canvases = [request.canvas for request in requests]
    clock = TimedRunner(model, pool) if timed else None
    runner = clock or runner_for(model, pool)
    watch = Watch(runner)
    events = decode(Scheduler(requests, rows=len(requests)), runner)
    # The loop yields a pass's events when the host has read its tokens. By then the next pass may be under way on the
    # device: to wait for it here would count it twice.
    ended = now(model.device)
    while live := [canvas for canvas in canvases if not canvas.finished]:
        blocks, began = frozenset(canvas.block_index for canvas in live), ended
        for _ in live:
            next(events)
        ended = time.perf_counter()
        kind, calls = watch.take()
        ahead, timing = min(canvas.block_index for canvas in canvases), None if clock is None else clock.last
        yield MeasuredPass(kind=kind, blocks=blocks, ahead=ahead, calls=calls, seconds=ended - began, timing=timing)
