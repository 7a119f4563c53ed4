"""Times single passes, with model, policy and commit, beside the floor of the forward alone.

The command is `unmask bench step`. Passes are measured in the second block of a request: every kind of pass occurs
there, and none pays for the beginning of the request.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from unmask.bench.load import Load, LoadTiming, Say, announced, loads_of
from unmask.bench.measure import ratio_in_words, short
from unmask.bench.passes import KINDS, REFRESH, MeasuredPass, floor_of, run_passes
from unmask.bench.roofline import Ceilings, Floor, measure_ceilings
from unmask.bench.subject import Subject
from unmask.bench.workload import Workload
from unmask.cache.storage import StoragePool
from unmask.errors import UnmaskError, WorkFailed
from unmask.models.base import MaskedLM

_BLOCK = 1


class StepTiming(LoadTiming):
    """One kind of pass at one size; times are medians, in milliseconds."""

    def __init__(
        self,
        subject: Subject,
        load: Load,
        whole: Sequence[MeasuredPass],
        split: Sequence[MeasuredPass],
        floor: Floor | None,
        lasting: Floor | None,
    ) -> None:
        """Passes of one kind: `whole` timed without a clock inside them, `split` with their parts.

        `floor` is that of the forward alone, None for a model whose sizes are not known. `lasting` is the same with
        products at the rate that a GPU keeps up for seconds.
        """
        super().__init__(subject, load)
        times = sorted(1000.0 * found.seconds for found in whole)
        parts = [found.timing for found in split if found.timing is not None]
        self.kind = whole[0].kind  # whole canvas, refresh, block and suffix, block only
        self.positions = max(whole[0].calls[0].positions)  # computed in each row
        self.passes = len(whole)  # measured
        self.ms = statistics.median(times)
        self.low_ms = times[len(times) // 10]  # a tenth of the passes is faster
        self.high_ms = times[-1 - len(times) // 10]  # a tenth is slower
        self.model_ms = 1000.0 * statistics.median(part.model_s for part in parts)
        self.policy_ms = 1000.0 * statistics.median(part.policy_s for part in parts)
        self.rest_ms = 1000.0 * statistics.median(part.rest_s for part in parts)  # proposals, commits, the host's part
        self.floor_ms = None if floor is None else 1000.0 * floor.seconds
        self.lasting_floor_ms = None if lasting is None else 1000.0 * lasting.seconds
        self.bound_by = None if floor is None else floor.bound_by  # what the floor consists of: memory or arithmetic
        self.ratio = None if self.floor_ms is None else self.ms / self.floor_ms
        self.lasting_ratio = None if self.lasting_floor_ms is None else self.ms / self.lasting_floor_ms

    def rows(self) -> list[dict[str, Any]]:
        """The timing as a line of a table."""
        own = {
            "pass": self.kind,
            "ms": self.ms,
            "10-90 % ms": f"{short(self.low_ms)}-{short(self.high_ms)}",
            "model ms": self.model_ms,
            "policy ms": self.policy_ms,
            "rest ms": self.rest_ms,
            "floor ms": self.floor_ms,
            "bound by": self.bound_by or "",
            "ms / floor": ratio_in_words(self.ratio),
            "ms / lasting floor": ratio_in_words(self.lasting_ratio),
        }
        return [self.load.row() | own]


def bench_step(
    model: MaskedLM,
    workload: Workload,
    *,
    ceilings: Ceilings | None = None,
    on_progress: Say = lambda line: None,
    on_missing: Say = lambda line: None,
) -> list[StepTiming]:
    """A timing for each kind of pass of each load; one run of each load is not counted.

    `on_missing` gets a line for each kind of pass that might have occurred in the second block and did not.
    """
    if others := [refresh for refresh in workload.refreshes if refresh != "block"]:
        raise UnmaskError(f"steps are measured with refresh='block', got {others[0]!r}")
    loads, timings = loads_of(workload, model), []
    if workload.max_tokens < 2 * loads[0].block_size:
        blocks = f"max_tokens={workload.max_tokens} is less than two blocks of {loads[0].block_size}"
        raise UnmaskError(f"steps are measured in the second block, but {blocks}")
    ceilings = ceilings or measure_ceilings(model.device, model.dtype)
    subject = Subject(model, ceilings)
    for load in announced(loads, model, on_progress):
        found = list(_measure(model, load, workload.repeats, subject, ceilings))
        if not found:
            raise WorkFailed(f"{load.in_words()}: no pass had every row in the second block; use batch 1")
        for kind in set(_kinds(load.cache)) - {timing.kind for timing in found}:
            on_missing(
                f"{load.in_words()}: no pass of the kind {kind!r} occurred in the second block, so none is shown"
            )
        timings += found
    return timings


def _kinds(cache: str) -> tuple[str, ...]:
    return (KINDS[cache],) if cache == "none" else (REFRESH, KINDS[cache])


def _measure(model: MaskedLM, load: Load, repeats: int, subject: Subject, ceilings: Ceilings) -> Iterator[StepTiming]:
    pool = StoragePool()
    _second_block(model, load, pool, timed=False)

    def run(*, timed: bool) -> list[MeasuredPass]:
        return [found for _ in range(repeats) for found in _second_block(model, load, pool, timed=timed)]

    # Timing the parts of a pass makes the host wait for a GPU, so times of whole passes come from runs without it. A
    # CPU has nothing to wait for: there one run gives both.
    on_cpu = model.device.type == "cpu"
    whole = run(timed=on_cpu)
    split = whole if on_cpu else run(timed=True)
    for kind in _kinds(load.cache):
        timed_whole, looked_into = ([found for found in passes if found.kind == kind] for passes in (whole, split))
        if timed_whole and looked_into:
            floor, lasting = (floor_of(model, looked_into[0], given) for given in (ceilings, ceilings.lasting()))
            yield StepTiming(subject, load, timed_whole, looked_into, floor, lasting)


def _second_block(model: MaskedLM, load: Load, pool: StoragePool, *, timed: bool) -> list[MeasuredPass]:
    passes = []
    for found in run_passes(model, load, pool, timed=timed):
        if found.blocks == {_BLOCK}:
            passes.append(found)
        if found.ahead > _BLOCK:
            break
    return passes
