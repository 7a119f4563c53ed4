"""Requests through the loop, event by event: with their texts, with a bar in a notebook; and what failed of them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from unmask.engine.decode import decode
from unmask.engine.runner import Runner
from unmask.engine.scheduler import Request, Scheduler
from unmask.errors import UnmaskError, WorkFailed
from unmask.types import StepEvent, StreamEvent


def failure(errors: dict[int, UnmaskError], count: int) -> UnmaskError:
    """The error to raise when some requests failed; all others were decoded."""
    index, error = min(errors.items())
    if count == 1:
        return error
    more = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
    return WorkFailed(f"prompt {index + 1} of {count}{more}: {error}")


def watched(events: Iterator[StepEvent], prompts: int) -> Iterator[StepEvent]:
    """The same events; in a notebook, with a bar under the cell meanwhile, unless there is a single prompt."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if prompts < 2 or getattr(shell, "kernel", None) is None:
        yield from events
        return
    from IPython.display import HTML, display

    done = 0
    bar: Any = display(HTML(""), display_id=True)
    for passes, event in enumerate(events, start=1):
        if event.finished:
            done += 1
            share = f'<progress value="{done}" max="{prompts}"></progress>'
            bar.update(HTML(f"{share} {done} of {prompts} prompts, {passes} forward passes"))
        yield event
    bar.update(HTML(""))


def events_of(scheduler: Scheduler, runner: Runner) -> Iterator[tuple[Request, StreamEvent]]:
    """Every event with its request; one without a step for each request that was abandoned before it began."""
    for step in decode(scheduler, runner):
        request = scheduler.running.pop(step.row) if step.finished else scheduler.running[step.row]
        yield request, request.stream(step)
        yield from _dropped(scheduler)
    yield from _dropped(scheduler)


def _dropped(scheduler: Scheduler) -> Iterator[tuple[Request, StreamEvent]]:
    while scheduler.dropped:
        yield scheduler.dropped.popleft(), StreamEvent(text_delta="")


def stream_of(request: Request, runner: Runner) -> Iterator[StreamEvent]:
    """The events of a request that is decoded alone; its error is raised."""
    for _, event in events_of(Scheduler([request], rows=1), runner):
        if event.step is not None and event.step.error is not None:
            raise event.step.error
        yield event
