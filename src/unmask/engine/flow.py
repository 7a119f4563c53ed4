"""Requests that come and go: each joins the batch that is being decoded, and leaves it with its text.

First come, first served. A request that cannot join those under way, because its policy or settings are others or its
canvas is longer than their storage, waits until they are done, and whoever came after it waits as well. Knows nothing
of threads or clients: who serves them keeps the line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from unmask.engine.canvas import Canvas
from unmask.engine.output import continued, is_complete
from unmask.engine.request import Plan
from unmask.engine.text import Ending, TextStream
from unmask.errors import UnmaskError
from unmask.models.tokenizer import TextCodec
from unmask.policies import Policy, remasks
from unmask.settings import Settings
from unmask.types import StepEvent, StreamEvent


@dataclass(slots=True, eq=False)
class Request:
    """One text to decode, checked and ready to begin, once."""

    canvas: Canvas
    plan: Plan
    ending: Ending
    _text: TextStream = field(init=False)
    _kind: tuple[Policy, Settings] = field(init=False)

    def __post_init__(self) -> None:
        self._text = TextStream(ending=self.ending)
        own = {"max_tokens": None, "seed": 0, "stop": (), "stop_token_ids": ()}  # these each row has for itself
        self._kind = self.plan.policy, self.plan.settings.with_(**own)

    @property
    def abandoned(self) -> bool:
        return self.canvas.abandoned

    def abandon(self) -> None:
        """Have it leave the batch after the pass that is under way, or never join one; from any thread."""
        self.canvas.abandoned = True

    def ended(self) -> bool:
        """Whether its text is complete, though its canvas is not."""
        return is_complete(self.canvas, self.ending)

    def heard(self, step: StepEvent) -> StreamEvent:
        """What a pass has made certain of its text."""
        finished = self.canvas.finished
        delta = self._text.feed(self.canvas.prefix(whole_blocks=remasks(self.plan.policy)), final=finished)
        output = continued(self.canvas, self.ending) if finished else None
        return StreamEvent(text_delta=delta, step=step, output=output)

    def joins(self, other: Request) -> bool:
        """Whether it may be decoded in a batch with the other one."""
        return self._kind == other._kind


def flow(
    waiting: deque[Request], decode: Callable[..., Iterator[StepEvent]], *, rows: int, codec: TextCodec
) -> Iterator[tuple[Request, StreamEvent]]:
    """Decode who waits, and who comes meanwhile, at most `rows` at a time; see `Generator.flow`.

    Requests are those of the generator whose tokenizer is `codec`.
    """
    if rows < 1:
        raise UnmaskError(f"rows must be at least 1, got {rows}")
    if not isinstance(waiting, deque):
        raise UnmaskError(f"requests wait in a deque, got {type(waiting).__name__}")
    return _flow(waiting, decode, rows, codec)


def _flow(
    waiting: deque[Request], decode: Callable[..., Iterator[StepEvent]], rows: int, codec: TextCodec
) -> Iterator[tuple[Request, StreamEvent]]:
    while waiting:
        yield from _Batch(waiting, rows, codec).events(decode)


class _Batch:
    """The requests of one kind that are decoded together, until one of another kind is next."""

    def __init__(self, waiting: deque[Request], rows: int, codec: TextCodec) -> None:
        self.waiting, self.rows, self.codec = waiting, rows, codec
        self.running: dict[int, Request] = {}  # by the number of the row
        self.gone: deque[Request] = deque()  # abandoned while they waited
        self.first: Request | None = None
        self.seen = 0

    def events(self, decode: Callable[..., Iterator[StepEvent]]) -> Iterator[tuple[Request, StreamEvent]]:
        canvases = self.arrivals(self.rows, None)
        if self.first is not None:
            options = {"ended": self._ended, "arrivals": self.arrivals, "rows": self.rows}
            for step in decode(canvases, self.first.plan, **options):
                request = self.running[step.row]
                if step.finished:
                    del self.running[step.row]
                yield request, request.heard(step)
                yield from self._farewells()
        yield from self._farewells()

    def arrivals(self, room: int, longest: int | None) -> list[Canvas]:
        """Take who fits from the head of the line."""
        canvases: list[Canvas] = []
        while self.waiting and len(canvases) < room:
            head = self.waiting[0]
            self._check(head)
            if head.abandoned:
                self.gone.append(self.waiting.popleft())
                continue
            if self.first is None:
                self.first = head
            if not head.joins(self.first) or (longest is not None and len(head.canvas.tokens) > longest):
                break
            self.running[self.seen] = self.waiting.popleft()
            self.seen += 1
            canvases.append(head.canvas)
        return canvases

    def _check(self, head: object) -> None:
        """Refuse what would spoil the batch."""
        if not isinstance(head, Request):
            raise UnmaskError(f"what waits must be made by `request`, got {type(head).__name__}")
        if head.ending.codec is not self.codec:
            raise UnmaskError("a request was made by another generator than the one that decodes it")
        if head.canvas.passes or head.canvas.finished or head in self.running.values():
            raise UnmaskError("a request waits that is or was decoded; make a new one")

    def _ended(self, canvas: Canvas) -> bool:
        return next(request for request in self.running.values() if request.canvas is canvas).ended()

    def _farewells(self) -> Iterator[tuple[Request, StreamEvent]]:
        while self.gone:
            yield self.gone.popleft(), StreamEvent(text_delta="")
