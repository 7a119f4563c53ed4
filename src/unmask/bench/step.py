"""Single forward passes, whole: the model, the policy and the commit, beside the floor of the forward alone.

What `unmask bench step` shows. Measured in the second block of a request, in which every kind of pass occurs and which
pays nothing for the beginning of the request.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.bench.measure import short
from unmask.bench.passes import KINDS, REFRESH, MeasuredPass, announce, floor_of, run_passes, timed_runs
from unmask.bench.roofline import Ceilings
from unmask.bench.subject import OnProgress, Subject, ceilings_of
from unmask.bench.workload import Load, Workload
from unmask.cache.storage import StoragePool
from unmask.errors import UnmaskError, WorkFailed
from unmask.models.base import MaskedLM

_BLOCK = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
    """One kind of pass at one size; times are medians, in milliseconds."""

    subject: Subject
    load: Load
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
        own = {name: getattr(self, name) for name in self.__slots__ if name not in ("subject", "load")}
        ratios = {"ratio": self.ratio, "lasting_ratio": self.lasting_ratio}
        return self.subject.to_dict() | self.load.to_dict() | own | ratios

    def row(self) -> dict[str, Any]:
        """The timing as a line of a table."""
        ratios = {"ms / floor": self.ratio, "ms / lasting floor": self.lasting_ratio}
        return self.load.row() | {
            "pass": self.kind,
            "ms": self.ms,
            "10-90 % ms": f"{short(self.low_ms)}-{short(self.high_ms)}",
            "model ms": self.model_ms,
            "policy ms": self.policy_ms,
            "rest ms": self.rest_ms,
            "floor ms": self.floor_ms,
            "bound by": self.bound_by or "",
            **{name: "" if ratio is None else f"{ratio:.2f}" for name, ratio in ratios.items()},
        }


def bench_step(
    model: MaskedLM, workload: Workload, *, ceilings: Ceilings | None = None, on_progress: OnProgress | None = None
) -> list[StepTiming]:
    """A timing for each kind of pass of each load; one run of each load is not counted."""
    if others := [refresh for refresh in workload.refreshes if refresh != "block"]:
        raise UnmaskError(f"steps are measured with refresh='block', got {others[0]!r}")
    loads = workload.loads(model)
    if short_ones := [load for load in loads if load.max_tokens < 2 * load.block_size]:
        blocks = f"max_tokens={workload.max_tokens} is less than two blocks of {short_ones[0].block_size}"
        raise UnmaskError(f"steps are measured in the second block, but {blocks}")
    ceilings = ceilings or ceilings_of(model)
    subject, timings = Subject.of(model, ceilings), []
    for number, load in enumerate(loads, 1):
        if on_progress is not None:
            on_progress(f"measuring {number} of {len(loads)}: {load.in_words()}")
        found = list(_measure(model, load, workload.repeats, subject, ceilings))
        if not found:
            raise WorkFailed(f"{load.in_words()}: no pass had every row in the second block; use batch 1")
        timings += found
    return timings


def missing_passes(timings: Sequence[StepTiming]) -> list[str]:
    """A line for each kind of pass that a request might have had in its second block, and had not."""
    found = {(timing.load.in_words(), timing.kind) for timing in timings}
    asked = {timing.load.in_words(): timing.load.cache for timing in timings}
    return [
        f"{request}: no pass of the kind {kind!r} occurred in the second block, so none is shown"
        for request, cache in asked.items()
        for kind in _kinds(cache)
        if (request, kind) not in found
    ]


def _kinds(cache: str) -> tuple[str, ...]:
    return (KINDS[cache],) if cache == "none" else (REFRESH, KINDS[cache])


def _measure(model: MaskedLM, load: Load, repeats: int, subject: Subject, ceilings: Ceilings) -> Iterator[StepTiming]:
    pool = StoragePool()
    announce(model, load)
    _second_block(model, load, pool, timed=False)
    runs = [_second_block(model, load, pool, timed=timed) for timed in timed_runs(model.device, repeats)]
    whole = [found for run in runs[:repeats] for found in run]
    split = [found for run in runs[-repeats:] for found in run]
    for kind in _kinds(load.cache):
        times = sorted(1000.0 * found.seconds for found in whole if found.kind == kind)
        looked_into = [found for found in split if found.kind == kind]
        if not times or not looked_into:
            continue
        timings = [found.timing for found in looked_into if found.timing is not None]
        call = looked_into[0].calls[0]
        floor, lasting = (
            None if given is None else floor_of(model, looked_into[0], given)
            for given in (ceilings, ceilings.lasting())
        )
        yield StepTiming(
            subject=subject,
            load=load,
            kind=kind,
            positions=max(call.positions),
            passes=len(times),
            ms=statistics.median(times),
            low_ms=times[len(times) // 10],
            high_ms=times[-1 - len(times) // 10],
            model_ms=_median_ms([timing.model_s for timing in timings]),
            policy_ms=_median_ms([timing.policy_s for timing in timings]),
            rest_ms=_median_ms([timing.rest_s for timing in timings]),
            floor_ms=None if floor is None else 1000.0 * floor.seconds,
            lasting_floor_ms=None if lasting is None else 1000.0 * lasting.seconds,
            bound_by=None if floor is None else floor.bound_by,
        )


def _second_block(model: MaskedLM, load: Load, pool: StoragePool, *, timed: bool) -> list[MeasuredPass]:
    passes = []
    for found in run_passes(model, load, pool, timed=timed):
        if found.blocks == {_BLOCK}:
            passes.append(found)
        if found.ahead > _BLOCK:
            break
    return passes


def _median_ms(seconds: list[float]) -> float:
    return 1000.0 * statistics.median(seconds)
