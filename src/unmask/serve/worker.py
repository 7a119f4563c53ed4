"""The one thread that owns the model: it decodes the texts that wait, and reports to the tickets of their requests.

The engine batches. This module limits the engine's line, and decides what happens when work fails or the server stops.
Knows nothing of HTTP but the errors that clients get.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from unmask.engine.generator import Generator
from unmask.engine.scheduler import Request, Scheduler
from unmask.errors import UnmaskError
from unmask.serve.errors import ApiError, closing, failed
from unmask.serve.metrics import Metrics
from unmask.types import StreamEvent

log = logging.getLogger(__name__)

MOST_UNREAD = 2**15  # events of one request that its client has not read yet


@dataclass(slots=True, eq=False)
class Ticket:
    """The texts of one HTTP request, and the engine's news of them; belongs to the event loop that it was made in."""

    requests: Sequence[Request]
    streamed: bool = True  # else it gets outputs and errors only: each piece of news wakes the event loop
    began: float = field(default_factory=time.perf_counter)
    has_text: bool = False  # this and the next are used by the engine's thread only
    put_back: bool = False  # into the line, after a failure that another ticket may have caused
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _news: asyncio.Queue[tuple[Request, StreamEvent] | ApiError] = field(default_factory=asyncio.Queue)

    def tell(self, news: tuple[Request, StreamEvent] | ApiError) -> None:
        """Pass on an event of a text, or the error that ends them all; from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, and with it the connection
            self._loop.call_soon_threadsafe(self._news.put_nowait, news)

    async def next(self) -> tuple[Request, StreamEvent]:
        """The next event of a text; raises the error that ends them all."""
        news = await self._news.get()
        if isinstance(news, ApiError):
            raise news
        return news

    @property
    def unread(self) -> int:
        return self._news.qsize()

    def abandon(self, error: ApiError | None = None) -> None:
        """Have the engine drop the texts that are left, and pass on the error that is the reason, if there is one."""
        for request in self.requests:
            request.abandon()
        if error is not None:
            self.tell(error)


class Worker:
    """Takes tickets from event loops and serves them in a thread, first come, first served."""

    def __init__(self, llm: Generator, *, rows: int, max_queue: int) -> None:
        self.llm, self.max_queue = llm, max_queue
        self.metrics = Metrics()
        self.metrics.waiting.set_function(self.waiting)
        self.metrics.stalled.set_function(self.stalled_s)
        self.broken = False  # the model cannot be run any more
        self.on_broken: Callable[[], None] = lambda: None
        self._scheduler = Scheduler(rows=rows)
        self._line = self._scheduler.line
        self._open: dict[Request, Ticket] = {}  # not answered yet
        self._work = threading.Condition()  # guards the two above, except that the engine takes from the line
        self._refusing = self._stopped = False
        self._thread: threading.Thread | None = None
        self._prepared: Future[None] = Future()
        self._moved: float | None = None  # when a pass was last finished, or work began; None: there is no work

    def start(self, prepare: Callable[[], None] = lambda: None) -> None:
        """Start the thread, and return when it has run `prepare`, whose error is raised here.

        A device keeps some state for each thread, so the thread that decodes must prepare it.
        """
        self._thread = threading.Thread(target=self._run, args=(prepare,), name="unmask-engine", daemon=True)
        self._thread.start()
        self._prepared.result()

    @property
    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive() and not self.broken

    @property
    def accepting(self) -> bool:
        return self.alive and not self._refusing

    def stalled_s(self) -> float:
        """For how long the engine has had work without finishing a pass."""
        moved = self._moved
        return 0.0 if moved is None else time.monotonic() - moved

    def stuck(self, limit_s: float) -> str | None:
        """What there is to say of an engine that has had work for longer than that without finishing a pass."""
        return f"no pass was finished for {limit_s:g} s, though there is work" if self.stalled_s() > limit_s else None

    def waiting(self) -> int:
        """How many texts wait for the engine; a text whose client has left does not count."""
        with self._work:
            return sum(not request.abandoned for request in self._line.copy())

    def check_room(self, status: int = 429) -> None:
        """Raise if no request is taken now; `status` says that the line is full.

        While there is room for one text there is room for a request of several: else requests of one text would take
        every place that becomes free, and a larger one would be refused for ever.
        """
        if not self.accepting:
            raise closing()
        if self.waiting() >= self.max_queue:
            message = f"the queue of {self.max_queue} is full; come again in a moment"
            raise ApiError(status, message, code="queue_full", headers={"Retry-After": "1"})

    def submit(self, requests: Sequence[Request], *, streamed: bool = True) -> Ticket:
        """Put requests into the line, all or none."""
        ticket = Ticket(requests, streamed)
        with self._work:
            self.check_room()
            self._open |= dict.fromkeys(requests, ticket)
            self._line.extend(requests)
            self._work.notify()
        return ticket

    def refuse(self) -> None:
        """Take no new work; the work under way goes on."""
        self._refusing = True

    def under_way(self) -> int:
        """How many tickets are not answered yet; a ticket whose client has left does not count."""
        with self._work:
            return len({ticket for request, ticket in self._open.items() if not request.abandoned})

    def drop_all(self) -> None:
        """Drop all texts that are left: their clients are told that the server is shutting down."""
        self.refuse()
        with self._work:
            tickets = set(self._open.values())
        for ticket in tickets:
            ticket.abandon(closing())

    def stop(self, timeout_s: float = 10.0) -> None:
        """Drop all texts that are left and end the thread, at the latest after the pass that is under way."""
        self.drop_all()
        with self._work:
            self._stopped = True
            self._work.notify()
        if self._thread is not None and self._prepared.done():  # a warm-up cannot be interrupted
            self._thread.join(timeout_s)

    def _run(self, prepare: Callable[[], None]) -> None:
        try:
            self._prepared.set_result(prepare())
        except BaseException as error:
            self._prepared.set_exception(error)
            return
        try:
            self._serve()
        finally:
            if not self._stopped:
                self._break()

    def _serve(self) -> None:
        while True:
            with self._work:
                self._work.wait_for(lambda: self._line or self._stopped)
                if not self._line:
                    return
                self._moved = time.monotonic()
            try:
                for request, event in self.llm.decode(self._scheduler):
                    self._moved = time.monotonic()
                    self._hear(request, event)
            except BaseException as error:  # also what is no Exception, such as a panic of a library
                self._fail(error)
            self._moved = None

    def _hear(self, request: Request, event: StreamEvent) -> None:
        """Count an event and pass it on."""
        self.metrics.heard(event, passes=self._scheduler.passes, wanted=not request.abandoned)
        last = event.step is None or event.step.finished
        with self._work:
            if len(self._line) > self.max_queue:
                self._forget_abandoned()
            ticket = self._open.pop(request, None) if last else self._open.get(request)
        if ticket is None or request.abandoned:
            return
        if event.step is not None and event.step.error is not None:  # the texts of other tickets go on
            log.error("decoding failed: %s", event.step.error)
            ticket.abandon(failed(event.step.error))
            return
        if event.text_delta and not ticket.has_text:
            ticket.has_text = True
            self.metrics.first_text.observe(time.perf_counter() - ticket.began)
        if ticket.unread >= MOST_UNREAD:
            ticket.abandon(ApiError(500, f"the client is {MOST_UNREAD} events behind", code="slow_reader"))
        elif ticket.streamed or event.output is not None:
            ticket.tell((request, event))

    def _forget_abandoned(self) -> None:
        """Take abandoned requests out of the line; in the engine's thread, which alone takes from the line."""
        for request in [waiting for waiting in self._line if waiting.abandoned]:
            self._line.remove(request)
            self._open.pop(request, None)

    def _fail(self, error: BaseException) -> None:
        """End the tickets whose texts were lost with a batch; and the worker, if the model cannot be run any more.

        A ticket whose texts had no pass yet has lost nothing: they go back to the head of the line. This happens once
        to a ticket, and never to one that was alone in the batch, since it may be at fault itself.
        """
        log.error("decoding failed: %s", error, exc_info=None if isinstance(error, UnmaskError) else error)
        self._scheduler.running.clear()
        with self._work:
            waiting = set(self._line)
            if self._line and not self._open.keys() - waiting:  # the engine took no text, and would fail for ever
                waiting.remove(self._line.popleft())
            batch = [(request, ticket) for request, ticket in self._open.items() if request not in waiting]
            alone = len({ticket for _, ticket in batch}) == 1
            lost = {ticket for request, ticket in batch if alone or ticket.put_back or request.canvas.passes}
            for request, ticket in reversed(batch):
                ticket.put_back = True
                if ticket in lost:
                    del self._open[request]
                else:
                    self._line.appendleft(request)
        if not isinstance(error, UnmaskError) and not self._runs():
            self._break()
        for ticket in lost:
            ticket.abandon(failed(error))

    def _break(self) -> None:
        self.broken = True
        self.drop_all()
        self.on_broken()

    def _runs(self) -> bool:
        """Whether the model can be run at all: a client that repeats a request which fails must not end the server."""
        try:
            self.llm.forward([[self.llm.spec.eos_id]])
        except BaseException as error:
            log.error("the model cannot be run: %s", error)
            return False
        return True
