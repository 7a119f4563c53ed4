"""The block loop: forward, decide, commit, record, retire, admit, until every request is decoded.

The loop deals in token ids; only a request knows when its text has ended. A row is one request while it is decoded: it
has its own blocks, random numbers and end, and joins when there is room. A batch consists of calls, the rows that one
model call serves. A call consists of groups, the rows that one policy decides together. The runner runs passes on the
device, which holds every row's tokens. After each pass the host's canvases are brought up to date.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from unmask.device import out_of_memory
from unmask.engine.batch import Batch
from unmask.engine.runner import GroupResult, Runner
from unmask.engine.scheduler import Scheduler
from unmask.errors import OutOfMemory
from unmask.types import StepEvent


def decode(scheduler: Scheduler, runner: Runner) -> Iterator[StepEvent]:
    """Decode all requests of the scheduler, also requests added meanwhile; yields one event per pass and row."""
    batch, usable = Batch(runner.model.spec, runner.model.device, runner.pool), True
    try:
        batch.admit(scheduler)
        while batch.rows:
            scheduler.passes += 1
            yield from step(batch, scheduler, runner)
    except Exception as error:
        usable = False  # what a failed pass left in storage must not be used again
        if out_of_memory(error):
            way_out = "use a smaller batch or fewer tokens"
            raise OutOfMemory(f"the device ran out of memory while decoding; {way_out}") from error
        raise
    finally:
        batch.close(usable=usable)
        runner.close(usable=usable)


@torch.inference_mode()
def step(batch: Batch, scheduler: Scheduler, runner: Runner) -> list[StepEvent]:
    """One pass over all calls: every live row is predicted once and decided once, or in several turns (verify.py)."""
    decided: list[GroupResult] = []
    for call in batch.calls:
        predicted = runner.forward(call)
        for group, part in call.split(predicted):
            decided.append(runner.decide(group, part))  # the policy decides, the engine commits
    batch.seal(scheduler)  # marks abandoned rows and reserves newcomers: `read` may now launch the next pass
    results = runner.read(batch, decided)  # the host waits for the device
    events = [row.record(turns) for row, turns in results]
    batch.retire()  # takes out rows that are finished, abandoned or have failed
    if not runner.pending:  # no row joins a pass that `read` has launched
        batch.admit(scheduler)
    runner.begin(batch)  # the plain runner does nothing here
    return events
