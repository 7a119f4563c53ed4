"""Single forward passes, whole: the model, the policy and the commit, beside the floor of the forward alone.

What `unmask bench step` shows. Measured in the second block of a request, in which every kind of pass occurs and which
pays nothing for the beginning of the request.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.bench.passes import KINDS, REFRESH, Pass, announce, floor_of, run_passes, watched_runs
from unmask.bench.roofline import Ceilings
from unmask.bench.subject import Subject, ceilings_of
from unmask.bench.workload import Request, Workload
from unmask.cache.kv import StoragePool
from unmask.errors import UnmaskError, WorkFailed
from unmask.models.base import MaskedLM

_BLOCK = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
    """One kind of pass at one size; times are medians, in milliseconds."""

    subject: Subject
    request: Request
    kind: str  # whole canvas, refresh, block and suffix, block only
    positions: int  # computed in each row
    passes: int  # measured
    ms: float
    low_ms: float  # a tenth of the passes is faster
    high_ms: float  # a tenth is slower
    model_ms: float
    policy_ms: float
    rest_ms: float  # proposals, commits, the host's part
    floor_ms: float | None  # of the forward alone; None for a model whose sizes are not known
    lasting_floor_ms: float | None  # with products at the rate that a GPU keeps up for seconds
    bound_by: str | None  # what the floor consists of: memory or arithmetic

    @property
    def ratio(self) -> float | None:
        return None if self.floor_ms is None else self.ms / self.floor_ms

    @property
    def lasting_ratio(self) -> float | None:
        return None if self.lasting_floor_ms is None else self.ms / self.lasting_floor_ms

    def to_dict(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in self.__slots__ if name not in ("subject", "request")}
        ratios = {"ratio": self.ratio, "lasting_ratio": self.lasting_ratio}
        return self.subject.to_dict() | self.request.to_dict() | own | ratios


def bench_step(
    model: MaskedLM,
    workload: Workload,
    *,
    ceilings: Ceilings | None = None,
    on_progress: Callable[[str], None] | None = None,
) -> list[StepTiming]:
    """A timing for each kind of pass of each request; one run of each request is not counted."""
    if workload.max_tokens < 2 * workload.block_size:
        short = f"max_tokens={workload.max_tokens} is less than two blocks of {workload.block_size}"
        raise UnmaskError(f"steps are measured in the second block, but {short}")
    if others := [refresh for refresh in workload.refreshes if refresh != "block"]:
        raise UnmaskError(f"steps are measured with refresh='block', got {others[0]!r}")
    requests = workload.requests(model)
    ceilings = ceilings or ceilings_of(model)
    subject = Subject.of(model, ceilings)
    timings = []
    for number, request in enumerate(requests, 1):
        if on_progress is not None:
            on_progress(f"measuring {number} of {len(requests)}: {request.in_words()}")
        found = list(_measure(model, request, workload.repeats, subject, ceilings))
        if not found:
            raise WorkFailed(f"{request.in_words()}: no pass had every row in the second block; use batch 1")
        timings += found
    return timings


def missing_passes(timings: Sequence[StepTiming]) -> list[str]:
    """A line for each kind of pass that a request might have had in its second block, and had not."""
    found = {(timing.request.in_words(), timing.kind) for timing in timings}
    asked = {timing.request.in_words(): timing.request.cache for timing in timings}
    return [
        f"{request}: no pass of the kind {kind!r} occurred in the second block, so none is shown"
        for request, cache in asked.items()
        for kind in _kinds(cache)
        if (request, kind) not in found
    ]


def _kinds(cache: str) -> tuple[str, ...]:
    return (KINDS[cache],) if cache == "none" else (REFRESH, KINDS[cache])


def _measure(
    model: MaskedLM, request: Request, repeats: int, subject: Subject, ceilings: Ceilings
) -> Iterator[StepTiming]:
    pool = StoragePool()
    announce(model, request)
    _second_block(model, request, pool, clocked=False)
    runs = [_second_block(model, request, pool, clocked=clocked) for clocked in watched_runs(model.device, repeats)]
    whole = [found for run in runs[:repeats] for found in run]
    split = [found for run in runs[-repeats:] for found in run]
    for kind in _kinds(request.cache):
        times = sorted(1000.0 * found.seconds for found in whole if found.kind == kind)
        looked_into = [found for found in split if found.kind == kind]
        if not times or not looked_into:
            continue
        call = looked_into[0].calls[0]
        floor, lasting = (
            None if given is None else floor_of(model, looked_into[0], given)
            for given in (ceilings, ceilings.lasting())
        )
        yield StepTiming(
            subject=subject,
            request=request,
            kind=kind,
            positions=max(call.positions),
            passes=len(times),
            ms=statistics.median(times),
            low_ms=times[len(times) // 10],
            high_ms=times[-1 - len(times) // 10],
            model_ms=_median_ms([found.model_s for found in looked_into]),
            policy_ms=_median_ms([found.policy_s for found in looked_into]),
            rest_ms=_median_ms([found.rest_s for found in looked_into]),
            floor_ms=None if floor is None else 1000.0 * floor.seconds,
            lasting_floor_ms=None if lasting is None else 1000.0 * lasting.seconds,
            bound_by=None if floor is None else floor.bound_by,
        )


def _second_block(model: MaskedLM, request: Request, pool: StoragePool, *, clocked: bool) -> list[Pass]:
    passes = []
    for found in run_passes(model, request, pool, clocked=clocked):
        if found.blocks == {_BLOCK}:
            passes.append(found)
        if found.ahead > _BLOCK:
            break
    return passes


def _median_ms(seconds: list[float]) -> float:
    return 1000.0 * statistics.median(seconds)
