"""Whole requests: from the prompt's ids to the last committed token, beside the sum of the floors of their passes.

What `unmask bench generate` shows. Every decoded position counts as a token, also past the end of a text: the prompts
are random ids, and where a text would end says nothing.
"""

from __future__ import annotations

import math
import statistics
import time
from dataclasses import dataclass
from typing import Any

from unmask.bench.measure import now
from unmask.bench.passes import announce, floor_of, run_passes
from unmask.bench.roofline import Ceilings
from unmask.bench.subject import OnProgress, Subject, ceilings_of
from unmask.bench.workload import Load, Workload
from unmask.cache.storage import StoragePool
from unmask.engine.decode import decode
from unmask.engine.runner import runner_for
from unmask.engine.scheduler import Scheduler
from unmask.models.base import MaskedLM
from unmask.policies import remasks


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateTiming:
    """Requests of one size, decoded as one batch; times are medians over the runs."""

    subject: Subject
    load: Load
    repeats: int
    forward_passes: int  # of the batch
    seconds: float
    fastest_s: float
    slowest_s: float
    p99_s: float  # nearest rank: of fewer than a hundred runs, the slowest
    kept_tokens: int  # of the batch, before the end of each text; random weights end texts by accident
    first_prefix_ms: float  # until every row has the beginning of its text for good
    model_s: float
    policy_s: float
    rest_s: float
    floor_s: float | None  # of the forwards alone; None for a model whose sizes are not known

    @property
    def tokens_per_s(self) -> float:
        """Raw: every decoded position of every row."""
        return self.load.batch * self.load.max_tokens / self.seconds

    @property
    def ratio(self) -> float | None:
        return None if self.floor_s is None else self.seconds / self.floor_s

    def to_dict(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in self.__slots__ if name not in ("subject", "load")}
        derived = {
            "p50_s": self.seconds,
            "tokens_per_s": self.tokens_per_s,
            "kept_tokens_per_s": self.kept_tokens / self.seconds,
            "tokens_per_pass": self.load.max_tokens / self.forward_passes,  # of the row that takes the most passes
            "ms_per_pass": 1000.0 * self.seconds / self.forward_passes,
            "ratio": self.ratio,
        }
        return self.subject.to_dict() | self.load.to_dict() | own | derived

    def row(self) -> dict[str, Any]:
        """The timing as a line of a table."""
        parts = {"model": self.model_s, "policy": self.policy_s, "rest": self.rest_s, "floor": self.floor_s}
        return self.load.row() | {
            "passes": self.forward_passes,
            "ms": 1000.0 * self.seconds,
            "p99 ms": 1000.0 * self.p99_s,
            "tokens/s": self.tokens_per_s,
            "kept/s": self.kept_tokens / self.seconds,
            "ms/pass": 1000.0 * self.seconds / self.forward_passes,
            "first ms": self.first_prefix_ms,
            **{f"{name} ms": None if value is None else 1000.0 * value for name, value in parts.items()},
            "ms / floor": "" if self.ratio is None else f"{self.ratio:.2f}",
        }


def bench_generate(
    model: MaskedLM, workload: Workload, *, ceilings: Ceilings | None = None, on_progress: OnProgress | None = None
) -> list[GenerateTiming]:
    """A timing for each load; one run of each is not counted."""
    loads = workload.loads(model)
    ceilings = ceilings or ceilings_of(model)
    subject, timings = Subject.of(model, ceilings), []
    for number, load in enumerate(loads, 1):
        if on_progress is not None:
            on_progress(f"measuring {number} of {len(loads)}: {load.in_words()}")
        timings.append(_measure(model, load, workload.repeats, subject, ceilings))
    return timings


def _measure(model: MaskedLM, load: Load, repeats: int, subject: Subject, ceilings: Ceilings) -> GenerateTiming:
    pool = StoragePool()
    announce(model, load)
    runs = [_run(model, load, pool) for _ in range(repeats + 1)][1:]
    seconds = sorted(whole for whole, *_ in runs)
    passes = list(run_passes(model, load, pool, timed=True))
    floors = [floor.seconds for found in passes if (floor := floor_of(model, found, ceilings)) is not None]
    timings = [found.timing for found in passes if found.timing is not None]
    return GenerateTiming(
        subject=subject,
        load=load,
        repeats=repeats,
        forward_passes=len(passes),
        seconds=statistics.median(seconds),
        fastest_s=seconds[0],
        slowest_s=seconds[-1],
        p99_s=seconds[math.ceil(0.99 * repeats) - 1],
        kept_tokens=statistics.median_low(kept for *_, kept in runs),
        first_prefix_ms=1000.0 * statistics.median(first for _, first, _ in runs),
        model_s=sum(timing.model_s for timing in timings),
        policy_s=sum(timing.policy_s for timing in timings),
        rest_s=sum(timing.rest_s for timing in timings),
        floor_s=sum(floors) if floors else None,
    )


def _run(model: MaskedLM, load: Load, pool: StoragePool) -> tuple[float, float, int]:
    """Seconds until the end, and until every row has committed the beginning of its text; and tokens that are kept."""
    requests = load.requests(model)
    canvases = [request.canvas for request in requests]
    waiting, first = set(range(len(canvases))), 0.0
    whole_blocks = remasks(load.policy)
    began = now(model.device)
    for event in decode(Scheduler(requests, rows=len(requests)), runner_for(model, pool)):
        if event.row in waiting and canvases[event.row].prefix(whole_blocks=whole_blocks):
            waiting.discard(event.row)
            # Its tokens have been read by the host: there is nothing to wait for.
            first = time.perf_counter() - began
    seconds, ends = now(model.device) - began, model.spec.end_ids
    kept = (next((n for n, token in enumerate(row.filled) if token in ends), len(row.filled)) for row in canvases)
    return seconds, first, sum(kept)
