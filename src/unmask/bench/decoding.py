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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from unmask.bench.measure import Ceilings, Measurement, ModelCall, now, short
from unmask.bench.subject import Load, Subject, loads_of
from unmask.bench.workload import Workload
from unmask.cache.storage import StoragePool
from unmask.device import fast_module
from unmask.engine.batch import Call
from unmask.engine.decode import decode
from unmask.engine.runner import TimedRunner, runner_for
from unmask.engine.scheduler import Scheduler
from unmask.engine.window import Pass
from unmask.errors import UnmaskError, WorkFailed
from unmask.models.base import MaskedLM
from unmask.policies import remasks
from unmask.types import Timing

Say = Callable[[str], None]
KINDS = {"none": "whole canvas", "prefix": "block and suffix", "dual": "block only", "exact": "block only"}
REFRESH = "refresh"
MIXED = "mixed"
_BLOCK = 1  # whose passes are timed
_PARTS = ("model", "policy", "rest")  # rest: proposals, commits, the host's part


def announced(loads: list[Load], model: MaskedLM, on_progress: Say) -> Iterator[Load]:
    """Each load in turn. If its prompts are of one length, the kernels are told that its shape will come often."""
    kernels = fast_module("unmask.models.kernels.passes", model.device)
    for number, load in enumerate(loads, 1):
        on_progress(f"measuring {number} of {len(loads)}: {load.in_words()}")
        if kernels is not None and len(set(load.prompt_lengths)) == 1:
            kernels.announce(model, load.batch, load.prompt_lengths[0] + load.plan.max_tokens)
        yield load


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
    block_size = loads[0].plan.block_size
    if workload.max_tokens < 2 * block_size:
        blocks = f"max_tokens={workload.max_tokens} is less than two blocks of {block_size}"
        raise UnmaskError(f"steps are measured in the second block, but {blocks}")
    subject = Subject(model, ceilings)
    for load in announced(loads, model, on_progress):
        whole, split = _second_blocks(model, load, workload.repeats)
        kinds = (KINDS[load.cache],) if load.cache == "none" else (REFRESH, KINDS[load.cache])
        shown = {found.kind for found in whole} & {found.kind for found in split}
        if shown.isdisjoint(kinds):
            raise WorkFailed(f"{load.in_words()}: no pass had every row in the second block; use batch 1")
        for kind in kinds:
            if kind in shown:
                of_kind = ([found for found in runs if found.kind == kind] for runs in (whole, split))
                measured.append(_step(subject, load, *of_kind))
            else:
                on_missing(f"{load.in_words()}: no pass of the kind {kind!r} occurred in the second block")
    return measured


def _second_blocks(model: MaskedLM, load: Load, repeats: int) -> tuple[list[MeasuredPass], list[MeasuredPass]]:
    """The passes of all runs but the first with every row in the second block: timed as a whole, and by their parts."""
    pool, whole, split = StoragePool(), list[MeasuredPass](), list[MeasuredPass]()
    # Timing the parts of a pass makes the host wait for a GPU, so times of whole passes come from runs without it. A
    # CPU has nothing to wait for: there one run gives both.
    on_cpu = model.device.type == "cpu"
    runs = [False] * (1 if on_cpu else 1 + repeats) + [True] * repeats
    for number, timed in enumerate(runs):
        for found in run_passes(model, load, pool, timed=timed):
            if min(found.blocks) > _BLOCK:
                break
            if number > 0 and found.blocks == {_BLOCK}:
                (split if timed else whole).append(found)
    return split if on_cpu else whole, split


def _step(subject: Subject, load: Load, whole: Sequence[MeasuredPass], split: Sequence[MeasuredPass]) -> Measurement:
    """One kind of pass at one size; times are medians, in milliseconds."""
    times = sorted(1000.0 * found.seconds for found in whole)
    ms, floor = statistics.median(times), subject.floor(whole[0].calls)
    parts = [found.timing for found in split if found.timing is not None]
    figures: dict[str, Any] = {
        "kind": whole[0].kind,  # whole canvas, refresh, block and suffix, block only
        "positions": max(whole[0].calls[0].positions),  # computed in each row
        "passes": len(whole),  # measured
        "ms": ms,
        "low_ms": times[len(times) // 10],  # a tenth of the passes is faster
        "high_ms": times[-1 - len(times) // 10],  # a tenth is slower
        **{f"{part}_ms": 1000.0 * statistics.median(getattr(each, f"{part}_s") for each in parts) for part in _PARTS},
        "bound_by": floor.bound_by,  # what the floor consists of: memory or arithmetic
    }
    # None for a model whose sizes are not known; lasting: with products at the rate that a GPU keeps up for seconds
    for name, least in (("", floor.seconds), ("lasting_", floor.lasting_s)):
        figures[f"{name}floor_ms"] = None if least is None else 1000.0 * least
        figures[f"{name}ratio"] = None if least is None else ms / (1000.0 * least)
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
    times, kept = sorted(runs), statistics.median_low(kepts)
    seconds, calls = statistics.median(times), [call for found in passes for call in found.calls]
    floor_s = subject.floor(calls).seconds
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
        "tokens_per_s": load.batch * load.plan.max_tokens / seconds,  # raw: every decoded position of every row
        "kept_tokens_per_s": kept / seconds,
        "tokens_per_pass": load.plan.max_tokens / len(passes),  # of the row that takes the most passes
        "ms_per_pass": 1000.0 * seconds / len(passes),
    }
    row = {
        "passes": len(passes),
        "ms": 1000.0 * seconds,
        "p99 ms": 1000.0 * figures["p99_s"],
        "tokens/s": figures["tokens_per_s"],
        "kept/s": figures["kept_tokens_per_s"],
        "ms/pass": figures["ms_per_pass"],
        "first ms": figures["first_prefix_ms"],
        **{f"{part} ms": 1000.0 * figures[f"{part}_s"] for part in _PARTS},
        "floor ms": None if floor_s is None else 1000.0 * floor_s,
        "ms / floor": figures["ratio"] or "",
    }
    return load.measured(subject, figures, row)


def _run(model: MaskedLM, load: Load, pool: StoragePool) -> tuple[float, float, int]:
    """The seconds of one run of a batch, without a clock inside the passes.

    Also the seconds until every row has a first piece of text that can no longer change, and the tokens before the ends
    of the texts; random weights end texts by accident.
    """
    requests = load.requests()
    canvases = [request.canvas for request in requests]
    waiting, first = set(range(len(canvases))), 0.0
    whole_blocks = remasks(load.plan.policy)
    began = now(model.device)
    for event in decode(Scheduler(requests, rows=len(requests)), runner_for(model, pool)):
        if event.row in waiting and canvases[event.row].prefix(whole_blocks=whole_blocks):
            waiting.discard(event.row)
            # The host has read the row's tokens, so there is no need to wait for the device.
            first = time.perf_counter() - began
    seconds, ends = now(model.device) - began, model.spec.end_ids
    kept = (next((n for n, token in enumerate(row.filled) if token in ends), len(row.filled)) for row in canvases)
    return seconds, first, sum(kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPass:
    """One forward pass over the live rows."""

    kind: str
    blocks: frozenset[int]  # the current blocks of the live rows; one if all rows are in the same
    calls: tuple[ModelCall, ...]
    seconds: float
    timing: Timing | None = None  # the parts of `seconds`, if they were asked for


def run_passes(model: MaskedLM, load: Load, pool: StoragePool, *, timed: bool) -> Iterator[MeasuredPass]:
    """Decode, and yield every pass when it is over; the first includes setting up the loop."""
    requests = load.requests()
    canvases = [request.canvas for request in requests]
    clock = TimedRunner(model, pool) if timed else None
    runner = clock or runner_for(model, pool)
    calls, kinds, forward = list[ModelCall](), set[str](), runner.forward

    def noted(call: Call) -> Pass:
        done, plan = forward(call), call.plan()
        predicted = done.window.at.shape[1]
        calls.append(ModelCall(positions=tuple(plan.sizes), keys=tuple(plan.seen), predicted=predicted))
        for row, block in zip(plan.rows, done.window.blocks, strict=True):
            # With an exact cache, the first pass over a block also stores the block before it: that is a refresh too.
            stores = row.refresh or (load.cache == "exact" and row.span[0] < block[0])
            kinds.add(REFRESH if stores else KINDS[load.cache])
        return done

    runner.forward = noted
    events = decode(Scheduler(requests, rows=len(requests)), runner)
    # The loop yields a pass's events when the host has read its tokens. By then the next pass may be under way on the
    # device: to wait for it here would count it twice.
    ended = now(model.device)
    while live := [canvas for canvas in canvases if not canvas.finished]:
        blocks, began = frozenset(canvas.block_index for canvas in live), ended
        for _ in live:
            next(events)
        ended = time.perf_counter()
        yield MeasuredPass(
            kind=kinds.pop() if len(kinds) == 1 else MIXED,
            blocks=blocks,
            calls=tuple(calls),
            seconds=ended - began,
            timing=None if clock is None else clock.last,
        )
        calls.clear()
        kinds.clear()
