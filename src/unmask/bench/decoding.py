"""Times decoding beside its floor: single passes (`unmask bench step`) and whole requests (`unmask bench generate`).

Passes are timed with model, policy and commit, in the second block of a request: every kind of pass occurs there, and
none pays for the beginning of the request. Requests are timed from the prompt's ids to the last committed token. Every
decoded position counts as a token, also past the end of a text: the prompts are random ids, so where a text ends is an
accident. The floor is that of the model's forwards alone.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from typing import Any

from unmask.bench.load import KINDS, REFRESH, Load, MeasuredPass, Say, announced, loads_of, run_passes
from unmask.bench.measure import Measurement, now, short
from unmask.bench.roofline import Ceilings
from unmask.bench.subject import Subject
from unmask.bench.workload import Workload
from unmask.cache.storage import StoragePool
from unmask.engine.decode import decode
from unmask.engine.runner import runner_for
from unmask.engine.scheduler import Scheduler
from unmask.errors import UnmaskError, WorkFailed
from unmask.models.base import MaskedLM
from unmask.policies import remasks

_BLOCK = 1  # whose passes are timed
_PARTS = ("model", "policy", "rest")  # rest: proposals, commits, the host's part


def bench_step(
    model: MaskedLM,
    workload: Workload,
    *,
    ceilings: Ceilings | None = None,
    on_progress: Say = lambda line: None,
    on_missing: Say = lambda line: None,
) -> list[Measurement]:
    """A measurement for each kind of pass of each load; one run of each load is not counted.

    `on_missing` gets a line for each kind of pass that might have occurred in the second block and did not.
    """
    if others := [refresh for refresh in workload.refreshes if refresh != "block"]:
        raise UnmaskError(f"steps are measured with refresh='block', got {others[0]!r}")
    loads, measured = loads_of(workload, model), []
    if workload.max_tokens < 2 * loads[0].block_size:
        blocks = f"max_tokens={workload.max_tokens} is less than two blocks of {loads[0].block_size}"
        raise UnmaskError(f"steps are measured in the second block, but {blocks}")
    subject = Subject(model, ceilings)
    for load in announced(loads, model, on_progress):
        whole, split = _second_blocks(model, load, workload.repeats)
        kinds = (REFRESH, KINDS[load.cache]) if load.cache != "none" else (KINDS[load.cache],)
        missing = [kind for kind in kinds if not (whole.get(kind) and split.get(kind))]
        if missing == [*kinds]:
            raise WorkFailed(f"{load.in_words()}: no pass had every row in the second block; use batch 1")
        for kind in missing:
            absent = f"no pass of the kind {kind!r} occurred in the second block, so none is shown"
            on_missing(f"{load.in_words()}: {absent}")
        measured += [_step(subject, load, whole[kind], split[kind]) for kind in kinds if kind not in missing]
    return measured


def _second_blocks(
    model: MaskedLM, load: Load, repeats: int
) -> tuple[dict[str, list[MeasuredPass]], dict[str, list[MeasuredPass]]]:
    """Passes by kind: timed without a clock inside them, and with their parts."""
    pool = StoragePool()

    def run(times: int, *, timed: bool) -> dict[str, list[MeasuredPass]]:
        passes: dict[str, list[MeasuredPass]] = {}
        for _ in range(times):
            for found in run_passes(model, load, pool, timed=timed):
                if found.blocks == {_BLOCK}:
                    passes.setdefault(found.kind, []).append(found)
                if found.ahead > _BLOCK:
                    break
        return passes

    run(1, timed=False)  # not counted
    # Timing the parts of a pass makes the host wait for a GPU, so times of whole passes come from runs without it. A
    # CPU has nothing to wait for: there one run gives both.
    on_cpu = model.device.type == "cpu"
    whole = run(repeats, timed=on_cpu)
    return whole, whole if on_cpu else run(repeats, timed=True)


def _step(subject: Subject, load: Load, whole: Sequence[MeasuredPass], split: Sequence[MeasuredPass]) -> Measurement:
    """One kind of pass at one size; times are medians, in milliseconds."""
    times = sorted(1000.0 * found.seconds for found in whole)
    ms, parts = statistics.median(times), [found.timing for found in split if found.timing is not None]
    floor, lasting = (subject.floor(split[0].calls, lasting=lasting) for lasting in (False, True))
    floor_ms, lasting_ms = (None if least is None else 1000.0 * least.seconds for least in (floor, lasting))
    figures: dict[str, Any] = {
        "kind": whole[0].kind,  # whole canvas, refresh, block and suffix, block only
        "positions": max(whole[0].calls[0].positions),  # computed in each row
        "passes": len(whole),  # measured
        "ms": ms,
        "low_ms": times[len(times) // 10],  # a tenth of the passes is faster
        "high_ms": times[-1 - len(times) // 10],  # a tenth is slower
        **{f"{part}_ms": 1000.0 * statistics.median(getattr(each, f"{part}_s") for each in parts) for part in _PARTS},
        "floor_ms": floor_ms,  # None for a model whose sizes are not known
        "lasting_floor_ms": lasting_ms,  # with products at the rate that a GPU keeps up for seconds
        "bound_by": None if floor is None else floor.bound_by,  # what the floor consists of: memory or arithmetic
        "ratio": None if floor_ms is None else ms / floor_ms,
        "lasting_ratio": None if lasting_ms is None else ms / lasting_ms,
    }
    row = {
        "pass": figures["kind"],
        "ms": ms,
        "10-90 % ms": f"{short(figures['low_ms'])}-{short(figures['high_ms'])}",
        **{f"{part} ms": figures[f"{part}_ms"] for part in (*_PARTS, "floor")},
        "bound by": figures["bound_by"] or "",
        "ms / floor": figures["ratio"] or "",
        "ms / lasting floor": figures["lasting_ratio"] or "",
    }
    return load.measured(subject, figures, row)


def bench_generate(
    model: MaskedLM, workload: Workload, *, ceilings: Ceilings | None = None, on_progress: Say = lambda line: None
) -> list[Measurement]:
    """A measurement for each load, decoded as one batch; one run of each is not counted."""
    loads = loads_of(workload, model)
    subject = Subject(model, ceilings)
    return [_request(subject, load, workload.repeats) for load in announced(loads, model, on_progress)]


def _request(subject: Subject, load: Load, repeats: int) -> Measurement:
    """Requests of one size; times are medians over the runs, those of the parts come from one run more."""
    model, pool = subject.model, StoragePool()
    runs, firsts, kepts = zip(*[_run(model, load, pool) for _ in range(repeats + 1)][1:], strict=True)
    passes = list(run_passes(model, load, pool, timed=True))
    parts = [found.timing for found in passes if found.timing is not None]
    floors = [floor.seconds for found in passes if (floor := subject.floor(found.calls)) is not None]
    times, kept = sorted(runs), statistics.median_low(kepts)
    seconds, floor_s = statistics.median(times), sum(floors) if floors else None
    figures: dict[str, Any] = {
        "repeats": repeats,
        "forward_passes": len(passes),  # of the batch
        "seconds": seconds,
        "p50_s": seconds,
        "fastest_s": times[0],
        "slowest_s": times[-1],
        "p99_s": times[math.ceil(0.99 * len(times)) - 1],  # nearest rank: of fewer than a hundred runs, the slowest
        "kept_tokens": kept,
        "first_prefix_ms": 1000.0 * statistics.median(firsts),
        **{f"{part}_s": sum(getattr(each, f"{part}_s") for each in parts) for part in _PARTS},
        "floor_s": floor_s,
        "ratio": None if floor_s is None else seconds / floor_s,
        "tokens_per_s": load.batch * load.max_tokens / seconds,  # raw: every decoded position of every row
        "kept_tokens_per_s": kept / seconds,
        "tokens_per_pass": load.max_tokens / len(passes),  # of the row that takes the most passes
        "ms_per_pass": 1000.0 * seconds / len(passes),
    }
    in_ms = {
        name: None if figures[f"{name}_s"] is None else 1000.0 * figures[f"{name}_s"] for name in (*_PARTS, "floor")
    }
    row = {
        "passes": len(passes),
        "ms": 1000.0 * seconds,
        "p99 ms": 1000.0 * figures["p99_s"],
        "tokens/s": figures["tokens_per_s"],
        "kept/s": figures["kept_tokens_per_s"],
        "ms/pass": figures["ms_per_pass"],
        "first ms": figures["first_prefix_ms"],
        **{f"{name} ms": value for name, value in in_ms.items()},
        "ms / floor": figures["ratio"] or "",
    }
    return load.measured(subject, figures, row)


def _run(model: MaskedLM, load: Load, pool: StoragePool) -> tuple[float, float, int]:
    """The seconds of one run of a batch, without a clock inside the passes.

    Also the seconds until every row has a first piece of text that can no longer change, and the tokens before the ends
    of the texts; random weights end texts by accident.
    """
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
    return seconds, first, sum(kept)
