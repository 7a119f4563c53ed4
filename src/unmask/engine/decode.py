"""The block loop: forward pass, decision, commit, event; until every request is decoded.

Deals in token ids only, never text. Rows are independent: each has its own blocks, steps, noise and end, joins when a
row is free, and leaves when its canvas is full. `batch.py` says which rows share a model call and which are decided
together; a runner says how passes are run.
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
    """Decode the requests that wait, and those that come meanwhile; one event per forward pass and row."""
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
    for call in batch.calls:  # rows that one model call serves
        done = runner.forward(call)
        for group, first, end in call.places():  # rows that one policy decides together
            decided.append(runner.decide(group, done.rows(group, first, end)))
    batch.seal(scheduler)
    results = runner.read(batch, decided)
    events = [event for one, found in zip(decided, results, strict=True) for event in _record(one, found, batch)]
    batch.retire()
    if not runner.pending:  # no row joins a pass that has begun
        batch.admit(scheduler)
    runner.begin(batch)
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
