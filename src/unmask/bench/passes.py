"""The engine's own loop, watched from outside: how long each forward pass took, and how large it was.

A pass is everything from one look at the canvas to the next: forward, proposal, policy, commit, and the host's part.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from unmask.bench.measure import now
from unmask.bench.roofline import Call, Ceilings, Floor, floor
from unmask.bench.workload import Request
from unmask.cache.kv import StoragePool
from unmask.engine import reuse
from unmask.engine.canvas import Canvas
from unmask.engine.clock import Clock
from unmask.engine.decode import decode
from unmask.engine.request import quantization_of
from unmask.models.base import MaskedLM, expect, packs
from unmask.models.transformer import Transformer
from unmask.settings import Settings
from unmask.types import StepEvent

KINDS = {"none": "whole canvas", "prefix": "block and suffix", "dual": "block only"}
REFRESH = "refresh"
MIXED = "mixed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """One forward pass over the live rows; where its time went is 0 unless it was asked for."""

    kind: str
    blocks: frozenset[int]  # in which the rows are; one when they go in step
    ahead: int  # the earliest block that is not complete after it
    calls: tuple[Call, ...]  # of the model: two when some rows refresh and others do not, and it does not pack them
    seconds: float
    model_s: float = 0.0
    policy_s: float = 0.0

    @property
    def rest_s(self) -> float:
        return self.seconds - self.model_s - self.policy_s


def events_of(
    model: MaskedLM, canvases: list[Canvas], request: Request, pool: StoragePool, clock: Clock | None = None
) -> Iterator[StepEvent]:
    """What the engine's loop tells while it fills the canvases; what it captures stays in `pool` for the next time."""
    return decode(model, canvases, request.policy, request.settings, clock=clock, pool=pool)


def announce(model: MaskedLM, request: Request) -> None:
    """Have the model plan for a request that comes again and again, if its prompts are all of one length."""
    if len(set(request.prompt_lengths)) == 1 and not request.new_lengths:
        expect(model, request.batch, request.prompt_tokens + request.max_tokens)


def run_passes(model: MaskedLM, request: Request, pool: StoragePool, *, clocked: bool) -> Iterator[Pass]:
    """Decode, and tell of every pass when it is over; the first includes setting up the loop."""
    canvases = request.canvases(model.spec)
    clock = Clock(model.device, len(canvases))
    events = events_of(model, canvases, request, pool, clock if clocked else None)
    # The loop tells of a pass when the host has read its tokens. By then the next one may be under way on the device:
    # to wait for that, too, would count it twice.
    ended = now(model.device)
    while live := [canvas for canvas in canvases if not canvas.finished]:
        blocks = frozenset(canvas.block_index for canvas in live)
        kind, calls = _size_of(live, request.settings, shifted=model.spec.shifted, at_once=packs(model))
        model_s, policy_s = sum(clock.model), sum(clock.policy)
        began = ended
        for _ in live:
            next(events)
        ended = time.perf_counter()
        yield Pass(
            kind=kind,
            blocks=blocks,
            ahead=min(canvas.block_index for canvas in canvases),
            calls=calls,
            seconds=ended - began,
            model_s=sum(clock.model) - model_s,
            policy_s=sum(clock.policy) - policy_s,
        )


def watched_runs(device: torch.device, repeats: int) -> list[bool]:
    """For each run, whether the clock looks into its passes.

    Reading the clock makes the host wait for the device, so times of whole passes come from runs without it. A CPU has
    nothing to wait for: there one run tells both.
    """
    return [True] * repeats if device.type == "cpu" else [False] * repeats + [True] * repeats


def floor_of(model: MaskedLM, found: Pass, ceilings: Ceilings) -> Floor | None:
    """The floor of a pass's forwards; None for a model that is not a transformer of ours.

    What a policy asks for beyond the logits of its block (attention maps, say) is not counted.
    """
    if not isinstance(model, Transformer):
        return None
    quantized = quantization_of(model) is not None
    return floor(model.shape, found.calls, model.dtype.itemsize, ceilings, quantized=quantized)


def _size_of(live: list[Canvas], settings: Settings, *, shifted: bool, at_once: bool) -> tuple[str, tuple[Call, ...]]:
    """What the next pass over these canvases asks of the model."""
    widest = max(end - start for start, end in (canvas.block for canvas in live))
    computed: dict[bool, list[int]] = {True: [], False: []}  # of rows that refresh, and of the others
    seen: dict[bool, list[int]] = {True: [], False: []}
    for canvas in live:
        start, end = 0, len(canvas.tokens)
        refreshes = reuse.is_refresh(canvas, settings)
        if not refreshes:
            begins = canvas.block_step == 0
            start, end = reuse.recomputed_span(canvas, settings, shifted=shifted, begins=begins)
        computed[refreshes].append(end - start)
        seen[refreshes].append(len(canvas.tokens))
    calls = [
        Call(positions=tuple(computed[kind]), keys=tuple(seen[kind]), predicted=widest)
        for kind in computed
        if computed[kind]
    ]
    if len(calls) == 1:
        return REFRESH if computed[True] and settings.cache != "none" else KINDS[settings.cache], tuple(calls)
    first, second = calls
    both = Call(positions=first.positions + second.positions, keys=first.keys + second.keys, predicted=widest)
    return MIXED, (both,) if at_once else (first, second)
