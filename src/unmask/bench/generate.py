"""Whole requests: from the prompt's ids to the last committed token, beside the sum of the floors of their passes.

What `unmask bench generate` shows. Every decoded position counts as a token, also past the end of a text: the prompts
are random ids, and where a text would end says nothing.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from unmask.bench.measure import now
from unmask.bench.passes import announce, events_of, floor_of, run_passes
from unmask.bench.roofline import Ceilings
from unmask.bench.subject import Subject, ceilings_of
from unmask.bench.workload import Request, Workload
from unmask.cache.kv import StoragePool
from unmask.models.base import MaskedLM
from unmask.policies import remasks


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateTiming:
    """Requests of one size, decoded as one batch; times are medians over the runs."""

    subject: Subject
    request: Request
    repeats: int
    forward_passes: int  # of the batch
    seconds: float
    fastest_s: float
    slowest_s: float
    p99_s: float  # nearest rank: of fewer than a hundred runs, the slowest
    kept_tokens: int  # of the batch, before the end of each text
    first_prefix_ms: float  # until every row has the beginning of its text for good
    model_s: float
    policy_s: float
    rest_s: float
    floor_s: float | None  # of the forwards alone; None for a model whose sizes are not known

    @property
    def tokens_per_s(self) -> float:
        """Raw: every decoded position of every row."""
        return self.request.batch * self.request.max_tokens / self.seconds

    @property
    def tokens_per_pass(self) -> float:
        """Of the row that takes the most passes."""
        return self.request.max_tokens / self.forward_passes

    @property
    def kept_tokens_per_s(self) -> float:
        """Of the tokens before the end of each text; a model with random weights ends them by accident."""
        return self.kept_tokens / self.seconds

    @property
    def p50_s(self) -> float:
        return self.seconds

    @property
    def ms_per_pass(self) -> float:
        return 1000.0 * self.seconds / self.forward_passes

    @property
    def ratio(self) -> float | None:
        return None if self.floor_s is None else self.seconds / self.floor_s

    def to_dict(self) -> dict[str, Any]:
        own = [name for name in self.__slots__ if name not in ("subject", "request")]
        derived = ["p50_s", "tokens_per_s", "kept_tokens_per_s", "tokens_per_pass", "ms_per_pass", "ratio"]
        figures = {name: getattr(self, name) for name in own + derived}
        if self.request.new_lengths:
            figures["shortest_prompt"] = self.request.run(self.repeats).prompt_tokens
        return self.subject.to_dict() | self.request.to_dict() | figures


def bench_generate(
    model: MaskedLM,
    workload: Workload,
    *,
    ceilings: Ceilings | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> list[GenerateTiming]:
    """A timing for each request; one run of each is not counted."""
    requests = workload.requests(model)
    ceilings = ceilings or ceilings_of(model)
    subject = Subject.of(model, ceilings)
    timings = []
    for number, request in enumerate(requests, 1):
        if on_progress is not None:
            on_progress(f"measuring {number} of {len(requests)}: {request.in_words()}")
        timings.append(_measure(model, request, workload.repeats, subject, ceilings))
    return timings


def _measure(model: MaskedLM, request: Request, repeats: int, subject: Subject, ceilings: Ceilings) -> GenerateTiming:
    pool = StoragePool()
    announce(model, request)
    runs = [_run(model, request.run(number), pool) for number in range(repeats + 1)][1:]
    seconds = sorted(whole for whole, *_ in runs)
    passes = list(run_passes(model, request, pool, clocked=True))
    floors = [floor.seconds for found in passes if (floor := floor_of(model, found, ceilings)) is not None]
    return GenerateTiming(
        subject=subject,
        request=request,
        repeats=repeats,
        forward_passes=len(passes),
        seconds=statistics.median(seconds),
        fastest_s=seconds[0],
        slowest_s=seconds[-1],
        p99_s=seconds[math.ceil(0.99 * repeats) - 1],
        kept_tokens=statistics.median_low(kept for *_, kept in runs),
        first_prefix_ms=1000.0 * statistics.median(first for _, first, _ in runs),
        model_s=sum(found.model_s for found in passes),
        policy_s=sum(found.policy_s for found in passes),
        rest_s=sum(found.rest_s for found in passes),
        floor_s=sum(floors) if floors else None,
    )


def _run(model: MaskedLM, request: Request, pool: StoragePool) -> tuple[float, float, int]:
    """Seconds until the end, and until every row has committed the beginning of its text; and tokens that are kept."""
    canvases = request.canvases(model.spec)
    waiting, first = set(range(len(canvases))), 0.0
    whole_blocks = remasks(request.policy)
    began = now(model.device)
    for event in events_of(model, canvases, request, pool):
        if event.row in waiting and canvases[event.row].prefix(whole_blocks=whole_blocks):
            waiting.discard(event.row)
            # Its tokens have been read by the host: there is nothing to wait for.
            first = time.perf_counter() - began
    seconds, ends = now(model.device) - began, model.spec.end_ids
    kept = (next((n for n, token in enumerate(row.filled) if token in ends), len(row.filled)) for row in canvases)
    return seconds, first, sum(kept)
