"""Times whole requests, from the prompt's ids to the last committed token, beside the sum of their passes' floors.

The command is `unmask bench generate`. Every decoded position counts as a token, also past the end of a text: the
prompts are random ids, so where a text ends is an accident.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from unmask.bench.load import Load, LoadTiming, Say, announced, loads_of
from unmask.bench.measure import now, ratio_in_words
from unmask.bench.passes import floor_of, run_passes
from unmask.bench.roofline import Ceilings, measure_ceilings
from unmask.bench.subject import Subject
from unmask.bench.workload import Workload
from unmask.cache.storage import StoragePool
from unmask.engine.decode import decode
from unmask.engine.runner import runner_for
from unmask.engine.scheduler import Scheduler
from unmask.models.base import MaskedLM
from unmask.policies import remasks
from unmask.types import Timing


class Run(NamedTuple):
    """One run of a batch, timed without a clock inside the passes."""

    seconds: float
    first_s: float  # until every row has a first piece of text that can no longer change
    kept: int  # tokens before the ends of the texts; random weights end texts by accident


class GenerateTiming(LoadTiming):
    """Requests of one size, decoded as one batch; times are medians over the runs."""

    def __init__(
        self, subject: Subject, load: Load, runs: Sequence[Run], parts: Sequence[Timing], floors: Sequence[float]
    ) -> None:
        """`parts` and `floors` have a value for each pass; a model whose sizes are not known has no floors."""
        super().__init__(subject, load)
        times = sorted(run.seconds for run in runs)
        self.repeats = len(runs)
        self.forward_passes = len(parts)  # of the batch
        self.seconds = self.p50_s = statistics.median(times)
        self.fastest_s, self.slowest_s = times[0], times[-1]
        self.p99_s = times[math.ceil(0.99 * len(times)) - 1]  # nearest rank: of fewer than a hundred runs, the slowest
        self.kept_tokens = statistics.median_low(run.kept for run in runs)
        self.first_prefix_ms = 1000.0 * statistics.median(run.first_s for run in runs)
        self.model_s = sum(part.model_s for part in parts)
        self.policy_s = sum(part.policy_s for part in parts)
        self.rest_s = sum(part.rest_s for part in parts)
        self.floor_s = sum(floors) if floors else None  # of the forwards alone
        self.ratio = self.seconds / sum(floors) if floors else None
        self.tokens_per_s = load.batch * load.max_tokens / self.seconds  # raw: every decoded position of every row
        self.kept_tokens_per_s = self.kept_tokens / self.seconds
        self.tokens_per_pass = load.max_tokens / len(parts)  # of the row that takes the most passes
        self.ms_per_pass = 1000.0 * self.seconds / len(parts)

    def rows(self) -> list[dict[str, Any]]:
        """The timing as a line of a table."""
        parts = {"model": self.model_s, "policy": self.policy_s, "rest": self.rest_s, "floor": self.floor_s}
        own = {
            "passes": self.forward_passes,
            "ms": 1000.0 * self.seconds,
            "p99 ms": 1000.0 * self.p99_s,
            "tokens/s": self.tokens_per_s,
            "kept/s": self.kept_tokens_per_s,
            "ms/pass": self.ms_per_pass,
            "first ms": self.first_prefix_ms,
            **{f"{name} ms": None if value is None else 1000.0 * value for name, value in parts.items()},
            "ms / floor": ratio_in_words(self.ratio),
        }
        return [self.load.row() | own]


def bench_generate(
    model: MaskedLM, workload: Workload, *, ceilings: Ceilings | None = None, on_progress: Say = lambda line: None
) -> list[GenerateTiming]:
    """A timing for each load; one run of each is not counted."""
    loads = loads_of(workload, model)
    ceilings = ceilings or measure_ceilings(model.device, model.dtype)
    subject = Subject(model, ceilings)
    return [_measure(model, load, workload.repeats, subject, ceilings) for load in announced(loads, model, on_progress)]


def _measure(model: MaskedLM, load: Load, repeats: int, subject: Subject, ceilings: Ceilings) -> GenerateTiming:
    pool = StoragePool()
    runs = [_run(model, load, pool) for _ in range(repeats + 1)][1:]
    passes = list(run_passes(model, load, pool, timed=True))
    parts = [found.timing for found in passes if found.timing is not None]
    floors = [floor.seconds for found in passes if (floor := floor_of(model, found, ceilings)) is not None]
    return GenerateTiming(subject, load, runs, parts, floors)


def _run(model: MaskedLM, load: Load, pool: StoragePool) -> Run:
    requests = load.requests(model)
    canvases = [request.canvas for request in requests]
    waiting, first = set(range(len(canvases))), 0.0
    whole_blocks = remasks(load.policy)
    began = now(model.device)
    for event in decode(Scheduler(requests, rows=len(requests)), runner_for(model, pool)):
        if event.row in waiting and canvases[event.row].prefix(whole_blocks=whole_blocks):
            waiting.discard(event.row)
            # The host has read the row's tokens, so there is no need to wait for the device.
            first = time.perf_counter() - began
    seconds, ends = now(model.device) - began, model.spec.end_ids
    kept = (next((n for n, token in enumerate(row.filled) if token in ends), len(row.filled)) for row in canvases)
    return Run(seconds, first, sum(kept))
