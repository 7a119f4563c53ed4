"""Puts a server under the load of many clients, and compares every answer with the one that its request gets alone.

The command is `unmask bench serve`. A server is started by the caller, since this package knows nothing of servers but
their URL. Each client has a thread and sends one request after the other. On a CPU in float32 an answer must equal the
lone one in every letter. Elsewhere rounding depends on the rows of a batch, and a near tie may fall the other way: such
answers are counted as different, and not as wrong.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle, takewhile
from typing import Any

import numpy as np
import torch

from unmask import policies
from unmask.bench.measure import Held, Measurement, growth_of, held_by
from unmask.bench.serve_client import Answer, Ask, Client, Heard, asks_of
from unmask.bench.workload import ServeWorkload
from unmask.engine.generator import Generator
from unmask.engine.plan import preset_name

# The server's counters: rows summed over passes, passes, tokens.
COUNTERS = ("unmask_forward_passes_total", "unmask_batch_passes_total", "unmask_committed_tokens_total")
ENDS = ("answered", "refused", "cancelled", "bad", "wrong", "lost", "doubled")
FAULTS = ("wrong", "lost", "doubled")
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
) -> Measurement:
    """Ask the server at `url` for everything in the workload; `pid` is its process, if that is to be watched.

    Without `llm` answers are not compared. The first request of each client is not timed.
    """
    count, minutes, parameters = workload.clients, workload.minutes, parameters or {}
    asks = asks_of(workload, parameters, chats=llm is not None and llm.codec.chat_template is not None)
    tally, clients, reader = _Tally(), [Client(url, key) for _ in range(count)], Client(url, key)
    _send_all(clients, [[ask] for ask in asks[:count]], tally)  # compiles, and fills pools
    tally.latencies, tally.firsts, tally.kept_tokens = [], [], 0  # what was wrong is not forgotten
    shares: Sequence[Iterable[Ask]] = [asks[number::count] for number in range(count)]
    held: list[Held | None] = []
    before, began = _counters(reader), time.perf_counter()

    def tell() -> None:
        on_progress(tally.so_far())
        passed_s = time.perf_counter() - began
        if minutes is not None and passed_s >= len(held) * min(60.0, 20.0 * minutes):
            held.append(now := held_by(pid))
            holds = "" if now is None else f"; the server holds {now}"
            on_minute(f"{passed_s / 60.0:.0f} min: {tally.so_far()}{holds}")

    if minutes is not None:
        end = began + 60.0 * minutes
        shares = [takewhile(lambda _: time.perf_counter() < end, cycle(share)) for share in shares]
    _send_all(clients, shares, tally, tell)
    seconds, after = time.perf_counter() - began, _counters(reader)
    if minutes is not None:
        time.sleep(SETTLE_S)
        held.append(held_by(pid))
    if llm is not None:
        tally.compare(llm, parameters, on_progress)
    counters = {name: after[name] - before[name] for name in COUNTERS if name in after and name in before}
    about = {"model": url if llm is None else llm.spec.name, "clients": count, "seconds": seconds}
    return _measured(about, tally, counters, [each for each in held if each is not None])


class _Tally:
    """Counts what the clients heard; answers wait to be compared until the load is over."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.ends: Counter[str] = Counter()
        self.faults: list[str] = []  # the first few, in words
        self.ids: set[str] = set()
        self.answers: dict[int, tuple[Ask, Counter[Answer]]] = {}  # by the number of the request
        self.compared = 0
        self.different = 0  # answers that differ from the lone one where rounding may be the reason
        self.latencies: list[float] = []
        self.firsts: list[float] = []
        self.kept_tokens = 0

    def add(self, heard: Heard) -> None:
        with self.lock:
            if heard.answer is not None and heard.id in self.ids:
                heard.end, heard.why = "doubled", f"the answer {heard.id} came before"
            self.ends[heard.end] += 1
            if heard.end in FAULTS:
                self._note(heard.ask, heard.end, heard.why)
            elif heard.answer is not None:
                self.ids.add(heard.id)
                self.latencies.append(heard.seconds)
                self.firsts += [] if heard.first_s is None else [heard.first_s]
                self.kept_tokens += heard.answer.tokens
                self.answers.setdefault(heard.ask.number, (heard.ask, Counter()))[1][heard.answer] += 1

    def compare(self, llm: Generator, parameters: Mapping[str, Any], on_progress: Say) -> None:
        """Decode every request that was answered alone, and count the answers that differ."""
        exact = llm.model.device.type == "cpu" and llm.model.dtype == torch.float32
        for at, (ask, answers) in enumerate(self.answers.values(), 1):
            on_progress(f"comparing: {at} of {len(self.answers)} requests")
            alone = lone_answer(llm, ask, parameters)
            self.compared += answers.total()
            for answer in answers.keys() - {alone}:
                if exact:
                    self.ends["answered"] -= answers[answer]
                    self.ends["wrong"] += answers[answer]
                    self._note(ask, "wrong", f"got {answer!r:.300}, alone it gets {alone!r:.300}")
                else:
                    self.different += answers[answer]

    def so_far(self) -> str:
        ends = ", ".join(f"{self.ends[end]} {end}" for end in ENDS if self.ends[end])
        return f"{self.ends.total()} requests: {ends or 'none yet'}"

    def _note(self, ask: Ask, end: str, why: str) -> None:
        if len(self.faults) < SHOWN_FAULTS:
            self.faults.append(f"request {ask.number} {end}: {why}")


def _send_all(
    clients: Sequence[Client], shares: Sequence[Iterable[Ask]], tally: _Tally, tell: Callable[[], None] = lambda: None
) -> None:
    """Have every client send its share of the requests, and wait for the last answer; `tell` is called meanwhile."""

    def work(client: Client, asks: Iterable[Ask]) -> None:
        for ask in asks:
            tally.add(client.send(ask))
            if tally.ends["lost"] >= MOST_LOST:
                break
        client.close()

    pairs = zip(clients, shares, strict=False)
    threads = [threading.Thread(target=work, args=pair, daemon=True) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():
            thread.join(0.5)
            tell()


def lone_answer(llm: Generator, ask: Ask, parameters: Mapping[str, Any]) -> Answer:
    """The answer to a good request that is decoded with no other beside it."""
    body, decoding = ask.body, dict(ask.body["decoding"])
    policy = policies.resolve(decoding.pop("policy"), preset_name(llm.spec), parameters=parameters)
    options = {name: value for name, value in decoding.items() if name not in (*parameters, "events")}
    options |= {key: body[key] for key in ("max_tokens", "temperature") if key in body}
    seeds = range(first := body.get("seed", 0), first + body.get("n", 1))
    call, prompt = (llm.chat, body["messages"]) if "messages" in body else (llm.generate, body["prompt"])
    outputs = [call(prompt, policy=policy, seed=seed, **options) for seed in seeds]
    return Answer(
        tuple(output.text for output in outputs),
        tuple(output.finish_reason for output in outputs),
        sum(output.usage.completion_tokens for output in outputs),
        sum(output.usage.forward_passes for output in outputs),
    )


def _counters(reader: Client) -> dict[str, float]:
    """The server's counters by name, each the sum over its replicas."""
    page = reader.get("/metrics")
    found = {name: re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE) for name in COUNTERS}
    return {name: sum(map(float, values)) for name, values in found.items() if values}


def _measured(about: dict[str, Any], tally: _Tally, counters: Mapping[str, float], held: list[Held]) -> Measurement:
    """What the clients saw, in figures, and what went wrong."""
    seconds, (rows, passes, committed) = max(about["seconds"], 1e-9), map(counters.get, COUNTERS)
    grown = growth_of(held[len(held) // 3], held[-1]) if len(held) > 2 else ""
    shown = {
        **{end: tally.ends[end] for end in ENDS},
        "compared": tally.compared,
        "different": tally.different,
        "requests_per_s": len(tally.latencies) / seconds,
        "tokens_per_s": None if committed is None else committed / seconds,  # every decoded position
        "kept_tokens_per_s": tally.kept_tokens / seconds,
        **_percentiles("latency", tally.latencies),
        **_percentiles("first_text", tally.firsts),
        "passes": passes,
        "rows_per_pass": rows / passes if rows and passes else None,
    }
    told = shown | ({"server at first": str(held[0]), "server at last": str(held[-1])} if held else {})
    faults = ", ".join(f"{tally.ends[end]} {end}" for end in FAULTS if tally.ends[end])
    more = {"held": [each._asdict() for each in held], "faults": tally.faults, "grown": grown}
    return Measurement(
        title=f"{about['model']}: {about['clients']} clients for {seconds:.1f} s",
        figures=about | shown | more,
        rows=[{"figure": name.replace("_", " "), "value": value} for name, value in told.items() if value is not None],
        failed="; ".join(filter(None, [faults and f"answers: {faults}", grown])),
    )


def _percentiles(name: str, seconds: list[float]) -> dict[str, float | None]:
    """By nearest rank, in milliseconds."""
    ranks = (50, 95, 99)
    found = 1000.0 * np.percentile(seconds, ranks, method="inverted_cdf") if seconds else [None] * len(ranks)
    return {f"{name}_p{rank}_ms": value for rank, value in zip(ranks, found, strict=True)}
