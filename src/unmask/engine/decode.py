"""The block loop: forward pass, decision, commit, event, until every request is decoded.

The loop deals in token ids only, never text. A row is one request while it is decoded: it has its own blocks, steps,
noise and end, joins when there is room, and leaves when its canvas is full. The batch knows which rows share a model
call, and which rows of a call one policy decides together. The runner knows how a pass is run on the device.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from unmask.engine.batch import Batch
from unmask.engine.commit import PassResult
from unmask.engine.runner import Decided, Runner
from unmask.engine.scheduler import Scheduler
from unmask.errors import OutOfMemory
from unmask.types import StepEvent


def decode(scheduler: Scheduler, runner: Runner) -> Iterator[StepEvent]:
    """Decode all requests of the scheduler, also requests added meanwhile; one event per forward pass and row."""
    batch, usable = Batch(runner.model.spec, runner.model.device, runner.pool), True
    try:
        batch.admit(scheduler)
        while batch.rows:
            yield from step(batch, scheduler, runner)
    except Exception as error:
        usable = False  # what a failed pass left in storage must not be used again
        if isinstance(error, torch.OutOfMemoryError):
            way_out = "use a smaller batch or fewer tokens"
            raise OutOfMemory(f"the device ran out of memory while decoding; {way_out}") from error
        raise
    finally:
        batch.close(usable=usable)
        runner.close(usable=usable)


@torch.inference_mode()
def step(batch: Batch, scheduler: Scheduler, runner: Runner) -> list[StepEvent]:
    """One forward pass over the live rows."""
    decided: list[Decided] = []
    for call in batch.calls:  # the rows that one model call serves
        done = runner.forward(call)
        for group, part in done.split(call.groups):  # the rows that one policy decides together
            decided.append(runner.decide(group, part))  # view, select, guarantees, commit: all on the device
    batch.seal(scheduler)  # which rows leave after this pass, and which requests wait for a free row
    results = runner.read(batch, decided)  # the one time that the host waits for the device
    events = [event for one, found in zip(decided, results, strict=True) for event in _record(one, found, batch)]
    batch.retire()  # rows that are full or have failed
    if not runner.pending:  # no row joins a pass that has begun
        batch.admit(scheduler)
    runner.begin(batch)  # the plain runner does nothing here
    return events


def _record(decided: Decided, results: list[PassResult], batch: Batch) -> list[StepEvent]:
    """Note on the canvases of a group what the pass did."""
    events = [
        row.record(result, eos_id=batch.spec.eos_id, refreshed=refreshed)
        for row, result, refreshed in zip(decided.group.rows, results, decided.refreshed, strict=True)
    ]
    if decided.numbers is None:
        return events
    return [decided.numbers.attach(event, row) for row, event in enumerate(events)]
