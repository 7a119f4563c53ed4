"""The engine's own loop, watched from outside: how long each forward pass took, and how large it was.

A pass is everything from one look at the canvas to the next: forward, proposal, policy, commit, and the host's part.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from unmask.bench.load import Load
from unmask.bench.measure import now
from unmask.bench.roofline import Ceilings, Floor, ModelCall, floor
from unmask.cache.storage import StoragePool
from unmask.engine.batch import Call
from unmask.engine.decode import decode
from unmask.engine.plan import quantization_of
from unmask.engine.runner import Runner, runner_for
from unmask.engine.scheduler import Scheduler
from unmask.engine.timed import TimedRunner
from unmask.engine.window import Pass
from unmask.models.base import MaskedLM
from unmask.models.transformer import Transformer
from unmask.types import Timing

KINDS = {"none": "whole canvas", "prefix": "block and suffix", "dual": "block only", "exact": "block only"}
REFRESH = "refresh"
MIXED = "mixed"


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
        yield MeasuredPass(
            kind=kind,
            blocks=blocks,
            ahead=min(canvas.block_index for canvas in canvases),
            calls=calls,
            seconds=ended - began,
            timing=None if clock is None else clock.last,
        )


def floor_of(model: MaskedLM, found: MeasuredPass, ceilings: Ceilings | None) -> Floor | None:
    """The floor of a pass's forwards; None without ceilings, and for a model that is not a transformer of ours.

    What a policy asks for beyond the logits of its block (attention maps, say) is not counted.
    """
    if ceilings is None or not isinstance(model, Transformer):
        return None
    quantized = quantization_of(model) is not None
    return floor(model.shape, found.calls, model.dtype.itemsize, ceilings, quantized=quantized)
