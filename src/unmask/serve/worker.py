"""The one thread that owns the model: it decodes who waits, and tells each client's side what has become of its texts.

Batching is the engine's (`Generator.flow`); here are the line before it, its limit, and what happens when work fails or
the server is told to stop. Knows nothing of HTTP but the errors that clients hear.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from unmask.engine.flow import Request
from unmask.engine.generator import Generator
from unmask.errors import UnmaskError
from unmask.serve.errors import ApiError, closing, failed, queue_full
from unmask.serve.metrics import Metrics
from unmask.types import Output, StreamEvent

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Ticket:
    """The texts of one HTTP request, and what the engine says of them; belongs to the event loop it was made in."""

    requests: Sequence[Request]
    began: float = field(default_factory=time.perf_counter)
    has_text: bool = False  # the engine thread's own note
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _news: asyncio.Queue[tuple[int, StreamEvent] | ApiError] = field(default_factory=asyncio.Queue)

    def tell(self, news: tuple[int, StreamEvent] | ApiError) -> None:
        """Pass on an event and the number of its text, or the error that ends them all; from any thread."""
        with contextlib.suppress(RuntimeError):  # a loop that is closed has nobody left to hear it
            self._loop.call_soon_threadsafe(self._news.put_nowait, news)

    async def events(self) -> AsyncIterator[tuple[int, StreamEvent]]:
        """Every event with the number of its text, until each has its output; raises when the work failed."""
        left = len(self.requests)
        while left:
            news = await self._news.get()
            if isinstance(news, ApiError):
                raise news
            left -= news[1].output is not None
            yield news

    async def outputs(self) -> list[Output]:
        """The outputs in the order of the requests."""
        found = {index: event.output async for index, event in self.events() if event.output is not None}
        return [found[index] for index in range(len(found))]

    def abandon(self) -> None:
        """Have the engine drop what is left of it."""
        for request in self.requests:
            request.abandon()


class Worker:
    """Takes tickets from event loops and serves them in a thread, first come, first served."""

    def __init__(self, llm: Generator, *, rows: int, max_queue: int, metrics: Metrics | None = None) -> None:
        self.llm, self.rows, self.max_queue = llm, rows, max_queue
        self.metrics = metrics or Metrics()
        self.metrics.waiting.set_function(self.waiting)
        self._line: deque[Request] = deque()
        self._open: dict[int, tuple[Ticket, int]] = {}  # by the id of the request: its ticket, its number there
        self._work = threading.Condition()  # guards the two above, except that the engine takes from the line
        self._refusing = self._stopped = False
        self._thread: threading.Thread | None = None

    def start(self, prepare: Callable[[], None] = lambda: None) -> None:
        """Start the thread, and return when it has prepared itself; an error in that is raised here.

        Whatever the device keeps for each thread must be prepared in the thread that decodes.
        """
        prepared = threading.Event()
        errors: list[BaseException] = []

        def run() -> None:
            try:
                prepare()
            except BaseException as error:
                errors.append(error)
            finally:
                prepared.set()
            if not errors:
                self._serve()

        self._thread = threading.Thread(target=run, name="unmask-engine", daemon=True)
        self._thread.start()
        prepared.wait()
        if errors:
            raise errors[0]

    @property
    def accepting(self) -> bool:
        return self._thread is not None and self._thread.is_alive() and not self._refusing

    def waiting(self) -> int:
        """How many texts wait for the engine, those that nobody wants any more left out."""
        return sum(not request.abandoned for request in self._line.copy())

    def submit(self, requests: Sequence[Request]) -> Ticket:
        """Put requests into the line, all or none."""
        if not self.accepting:
            raise closing()
        ticket = Ticket(requests)
        with self._work:
            if self.waiting() + len(requests) > self.max_queue:
                raise queue_full(self.max_queue)
            for number, request in enumerate(requests):
                self._open[id(request)] = ticket, number
            self._line.extend(requests)
            self._work.notify()
        return ticket

    def refuse(self) -> None:
        """Take nothing new; what was taken goes on."""
        self._refusing = True

    def drop_all(self) -> None:
        """End what is left at once: its clients hear that the server is shutting down."""
        self.refuse()
        with self._work:
            tickets = {id(ticket): ticket for ticket, _ in self._open.values()}.values()
        for ticket in tickets:
            ticket.abandon()
            ticket.tell(closing())

    def stop(self, timeout_s: float = 10.0) -> None:
        """Drop what is left and end the thread, at the latest after the pass that is under way."""
        self.drop_all()
        with self._work:
            self._stopped = True
            self._work.notify()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _serve(self) -> None:
        while True:
            with self._work:
                self._work.wait_for(lambda: self._line or self._stopped)
                if not self._line:
                    return
                head = self._line[0]
            try:
                for request, event in self.llm.flow(self._line, rows=self.rows):
                    self._hear(request, event)
            except Exception as error:
                self._fail(error, head)

    def _hear(self, request: Request, event: StreamEvent) -> None:
        self.metrics.heard(event)
        ticket, number = self._open.get(id(request), (None, 0))
        if event.output is not None or request.abandoned:
            with self._work:
                self._open.pop(id(request), None)
        if ticket is None or request.abandoned:
            return
        if event.text_delta and not ticket.has_text:
            ticket.has_text = True
            self.metrics.first_text.observe(time.perf_counter() - ticket.began)
        ticket.tell((number, event))

    def _fail(self, error: Exception, head: Request) -> None:
        """Tell those whose texts were in the batch; the others have lost nothing."""
        log.error("decoding failed: %s", error, exc_info=None if isinstance(error, UnmaskError) else error)
        with self._work:
            if self._line and self._line[0] is head:
                # An engine that fails before it takes anybody would do so for ever.
                self._line.popleft()
            untouched = {id(request) for request in self._line}
            lost = [self._open.pop(key) for key in list(self._open) if key not in untouched]
        for ticket in {id(ticket): ticket for ticket, _ in lost}.values():
            ticket.abandon()
            ticket.tell(failed(error))
