"""Requests, and which one is next: the only way into the loop, for every surface.

First come, first served. The first request waits while every row is taken, or while it needs a cache, no storage in use
has room for it, and the batch may not borrow another. Knows nothing of threads or clients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from unmask.engine.canvas import Canvas
from unmask.engine.plan import Detail, Plan
from unmask.engine.text import Ending, TextStream, output_of, shown
from unmask.errors import UnmaskError
from unmask.policies import remasks
from unmask.trace.record import Trace, pass_line, result_line
from unmask.types import Output, StepEvent, StreamEvent


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """One text to decode, checked and ready to begin. It can be decoded once."""

    canvas: Canvas
    plan: Plan
    ending: Ending | None = None  # what ends the text; None: the canvas is filled, and has no text
    infills: bool = False  # the output has the whole text, not only what continues a prompt
    detail: Detail | None = None  # what its events say beyond the commits
    trace: Trace | None = None  # gets a line for each event; None: events are not recorded
    abandoned: bool = False  # its row leaves after the pass under way, or it never joins; set from any thread
    _text: TextStream | None = field(init=False, default=None)

    def abandon(self) -> None:
        self.abandoned = True

    def ended(self) -> bool:
        """Whether decoding may stop before the canvas is filled, because its finished blocks hold the whole text."""
        # An end-of-text token within a hole does not end the text behind the hole.
        if self.ending is None or not (self.plan.settings.early_stop and self.canvas.continues):
            return False
        return self.ending.cut(self.canvas.prefix(whole_blocks=True))[2]

    def output(self) -> Output:
        """What the finished canvas says."""
        assert self.ending is not None
        return output_of(self.canvas, self.ending, infills=self.infills)

    def token_text(self, token_id: int) -> str | None:
        """How a token reads alone; None where the request has no text."""
        return None if self.ending is None else self.ending.codec.token_text(token_id)

    def hear(self, step: StepEvent) -> Output | None:
        """Record the event of a pass; returns what the canvas says if it is finished."""
        output = self.output() if step.finished and step.error is None else None
        if self.trace is None:
            return output
        self.trace.steps.append(pass_line(0, step, self.token_text))
        if (result := output or step.error) is not None:
            self.trace.results.append(result_line(0, result))
        return None if output is None else replace(output, trace=self.trace)

    def stream(self, step: StepEvent) -> StreamEvent:
        """The event of a pass, with the text that has become certain."""
        assert self.ending is not None
        if self._text is None:  # an infilled text is whole, and has its special tokens
            whole = replace(self.ending, token_ids=(), strings=(), special=True)
            self._text = TextStream(ending=whole if self.infills else self.ending)
        output = self.hear(step)
        prefix = self.canvas.prefix(whole_blocks=remasks(self.plan.policy), given=self.infills)
        if self.infills:
            prefix = shown(self.canvas, prefix, self.ending.codec.special_ids)
        return StreamEvent(text_delta=self._text.feed(prefix, final=output is not None), step=step, output=output)


class Scheduler:
    """The line of waiting requests, and how many rows are decoded at a time."""

    def __init__(self, requests: Iterable[Request] = (), *, rows: int = 8) -> None:
        if rows < 1:
            raise UnmaskError(f"rows must be at least 1, got {rows}")
        self.rows = rows
        self.line: deque[Request] = deque(requests)  # other threads may add to its right end
        self.dropped: deque[Request] = deque()  # abandoned while they waited
        self.running: dict[int, Request] = {}  # by the number of the row, until its last event
        self.passes = 0  # of the batch, begun so far
        self._count = 0

    def take(self, room: int, fits: Callable[[Request], bool]) -> list[tuple[int, Request]]:
        """Requests from the head of the line, at most `room` and up to the first misfit, each with a new number."""
        taken: list[tuple[int, Request]] = []
        while self.line and len(taken) < room:
            head = self.line[0]
            if not isinstance(head, Request):
                raise UnmaskError(f"what waits must be made by `request`, got {type(head).__name__}")
            if head.canvas.passes or head.canvas.finished or head in self.running.values():
                raise UnmaskError("a request waits that is or was decoded; make a new one")
            if head.abandoned:
                self.dropped.append(self.line.popleft())
                continue
            if not fits(head):
                break
            self.running[self._count] = self.line.popleft()
            taken.append((self._count, head))
            self._count += 1
        return taken
