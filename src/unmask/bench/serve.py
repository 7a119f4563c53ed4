"""Puts a server under the load of many clients, and compares every answer with the one that its request gets alone.

The command is `unmask bench serve`. A server is started by the caller, since this package knows nothing of servers but
their URL. Each client has a thread and sends one request after the other. On a CPU in float32 an answer must equal the
lone one in every letter. Elsewhere rounding depends on the rows of a batch, and a near tie may fall the other way: such
answers are counted as different, and not as wrong.
"""

from __future__ import annotations

import itertools
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from unmask import policies
from unmask.bench.serve_client import Answer, Client, Heard
from unmask.bench.serve_requests import Ask, asks_of
from unmask.bench.serve_timing import COUNTERS, ENDS, FAULTS, ServeTiming
from unmask.bench.serve_watch import growth_of, held_by
from unmask.bench.serve_workload import ServeWorkload
from unmask.engine.generator import Generator
from unmask.engine.plan import preset_name
from unmask.errors import WorkFailed

SHOWN_FAULTS = 5
MOST_LOST = 1000  # requests, after which the server counts as gone
SETTLE_S = 2.0  # for the server to notice that the clients have left
Say = Callable[[str], None]


def bench_serve(
    workload: ServeWorkload,
    *,
    url: str,
    llm: Generator | None,
    parameters: Mapping[str, Any] | None = None,
    pid: int | None = None,
    key: str | None = None,
    on_progress: Say = lambda line: None,
    on_minute: Say = lambda line: None,
) -> ServeTiming:
    """Ask the server at `url` for everything in the workload; `pid` is its process, if that is to be watched.

    Without `llm` answers are not compared. The first request of each client is not timed.
    """
    chats = llm is not None and llm.codec.chat_template is not None
    asks = asks_of(workload, parameters or {}, chats=chats)
    timing = ServeTiming(workload, url if llm is None else llm.spec.name)
    tally = _Tally(timing)
    load = _Load(url, key, workload, asks, tally)
    load.round(asks[: workload.clients])  # compiles, and fills pools
    tally.restart()
    before, began = _counters(load.reader), time.perf_counter()
    load.run(pid, on_progress, on_minute)
    timing.seconds = time.perf_counter() - began
    after = _counters(load.reader)
    timing.counters = {name: after[name] - before[name] for name in COUNTERS if name in after and name in before}
    if workload.minutes is not None:
        time.sleep(SETTLE_S)
        timing.held += [held for held in [held_by(pid)] if held is not None]
        if len(timing.held) > 2:
            timing.grown = growth_of(timing.held[len(timing.held) // 3], timing.held[-1])
    if llm is not None:
        tally.compare(llm, parameters or {}, on_progress)
    return timing


class _Tally:
    """Counts what the clients heard; answers wait to be compared until the load is over."""

    def __init__(self, timing: ServeTiming) -> None:
        self.timing, self.lock = timing, threading.Lock()
        self.ids: set[str] = set()
        self.answers: dict[int, tuple[Ask, Counter[Answer]]] = {}  # by the number of the request

    def restart(self) -> None:
        """Forget the times so far, but not what was wrong."""
        with self.lock:
            self.timing.latencies, self.timing.firsts, self.timing.kept_tokens = [], [], 0

    def add(self, heard: Heard) -> None:
        with self.lock:
            if heard.answer is not None and heard.id in self.ids:
                heard.end, heard.why = "doubled", f"the answer {heard.id} came before"
            self.timing.ends[heard.end] += 1
            if heard.end in FAULTS:
                self._note(heard.ask, heard.end, heard.why)
            elif heard.end == "bad":
                self.timing.bad_by_kind[heard.ask.fault] += 1
            elif heard.answer is not None:
                self.ids.add(heard.id)
                self.timing.latencies.append(heard.seconds)
                self.timing.firsts += [] if heard.first_s is None else [heard.first_s]
                self.timing.kept_tokens += heard.answer.tokens
                self.answers.setdefault(heard.ask.number, (heard.ask, Counter()))[1][heard.answer] += 1

    def _note(self, ask: Ask, end: str, why: str) -> None:
        if len(self.timing.faults) < SHOWN_FAULTS:
            self.timing.faults.append(f"request {ask.number} {end}: {why}")

    def compare(self, llm: Generator, parameters: Mapping[str, Any], on_progress: Say) -> None:
        """Decode every request that was answered alone, and count the answers that differ."""
        exact = llm.model.device.type == "cpu" and llm.model.dtype == torch.float32
        for at, (ask, answers) in enumerate(self.answers.values(), 1):
            on_progress(f"comparing: {at} of {len(self.answers)} requests")
            alone = lone_answer(llm, ask, parameters)
            self.timing.compared += answers.total()
            for answer, count in answers.items():
                if answer == alone:
                    continue
                if exact:
                    self.timing.ends["answered"] -= count
                    self.timing.ends["wrong"] += count
                    self._note(ask, "wrong", f"got {answer!r:.300}, alone it gets {alone!r:.300}")
                else:
                    self.timing.different += count


def lone_answer(llm: Generator, ask: Ask, parameters: Mapping[str, Any]) -> Answer:
    """The answer to a good request that is decoded with no other beside it."""
    body = dict(ask.body)
    decoding = dict(body["decoding"])
    policy = policies.resolve(decoding.pop("policy"), preset_name(llm.spec), parameters=parameters)
    for name in (*parameters, "events"):
        decoding.pop(name, None)
    options = decoding | {key: body[key] for key in ("max_tokens", "temperature") if key in body}
    seeds = range(first := body.get("seed", 0), first + body.get("n", 1))
    call, prompt = (llm.chat, body["messages"]) if "messages" in body else (llm.generate, body["prompt"])
    outputs = [call(prompt, policy=policy, seed=seed, **options) for seed in seeds]
    return Answer(
        tuple(output.text for output in outputs),
        tuple(output.finish_reason for output in outputs),
        sum(output.usage.completion_tokens for output in outputs),
        sum(output.usage.forward_passes for output in outputs),
    )


class _Load:
    """The clients at work."""

    def __init__(self, url: str, key: str | None, workload: ServeWorkload, asks: list[Ask], tally: _Tally) -> None:
        self.workload, self.asks, self.tally = workload, asks, tally
        self.reader, self.clients = Client(url, key), [Client(url, key) for _ in range(workload.clients)]

    def round(self, asks: Sequence[Ask]) -> None:
        """Have every client send one request, and wait for all answers."""
        self._all([iter([ask]) for ask in asks])

    def run(self, pid: int | None, on_progress: Say, on_minute: Say) -> None:
        """Have the clients send all requests, or go round them until the time is up, and say how far they are."""
        count, minutes = self.workload.clients, self.workload.minutes
        shares = [self.asks[number::count] for number in range(count)]
        if minutes is None:
            self._all([iter(share) for share in shares], lambda: on_progress(self._so_far()))
            return
        began, held = time.monotonic(), self.tally.timing.held
        end, due = began + 60.0 * minutes, began

        def tell() -> None:
            nonlocal due
            on_progress(self._so_far())
            if time.monotonic() >= due:
                due += min(60.0, 20.0 * minutes)
                now = held_by(pid)
                held.extend([] if now is None else [now])
                holds = "" if now is None else f"; the server holds {now}"
                on_minute(f"{(time.monotonic() - began) / 60.0:.0f} min: {self._so_far()}{holds}")

        endless = [itertools.cycle(share) for share in shares]
        self._all([itertools.takewhile(lambda _: time.monotonic() < end, asks) for asks in endless], tell)

    def _all(self, shares: Sequence[Iterator[Ask]], tell: Callable[[], None] = lambda: None) -> None:
        pairs = zip(self.clients, shares, strict=False)
        threads = [threading.Thread(target=self._work, args=pair, daemon=True) for pair in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(0.5)
                tell()

    def _work(self, client: Client, asks: Iterator[Ask]) -> None:
        for ask in asks:
            self.tally.add(client.send(ask))
            if self.tally.timing.ends["lost"] >= MOST_LOST:
                break
        client.close()

    def _so_far(self) -> str:
        ends = self.tally.timing.ends
        return f"{ends.total()} requests: {', '.join(f'{ends[end]} {end}' for end in ENDS if ends[end]) or 'none yet'}"


def _counters(reader: Client) -> dict[str, float]:
    """The server's counters by name, each the sum over its replicas."""
    try:
        page = reader.get("/metrics")
    except OSError as error:
        raise WorkFailed(f"the server's /metrics cannot be read: {error}") from error
    found = {name: re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE) for name in COUNTERS}
    return {name: sum(map(float, values)) for name, values in found.items() if values}
