"""`unmask bench rule`, `step`, `generate` and `serve`: speed on this machine."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from unmask import flags
from unmask.bench.workload import RuleWorkload, ServeWorkload, Workload
from unmask.errors import WorkFailed
from unmask.terminal import note, show_timings, stderr

FIVE_RUNS = Workload(repeats=5)


def rule(workload: RuleWorkload, as_json: bool = flags.JSON) -> None:
    """Time the mean-field rule beside the formula as printed.

    Logits in, commit set out.
    """
    from unmask.bench.rule import bench_rule

    with stderr().status("measuring"):
        timings = bench_rule(workload)
    _show(timings, as_json=as_json)


def step(model: flags.BenchPolicy, workload: Workload = FIVE_RUNS, as_json: bool = flags.JSON) -> None:
    """Time single forward passes: model, policy, commit.

    Beside them stands the floor of this device, which is measured too.
    """
    from unmask.bench.decoding import bench_step

    with stderr().status("preparing") as shown:
        timings = bench_step(*model.open(workload), on_progress=shown.update, on_missing=note)
    _show(timings, as_json=as_json)


def generate(model: flags.BenchPolicy, workload: Workload, as_json: bool = flags.JSON) -> None:
    """Time whole requests: tokens/s of everything decoded.

    Beside them stands the floor of this device, which is measured too.
    """
    from unmask.bench.decoding import bench_generate

    with stderr().status("preparing") as shown:
        timings = bench_generate(*model.open(workload), on_progress=shown.update)
    _show(timings, as_json=as_json)


def serve(model: flags.BenchModel, workload: ServeWorkload, as_json: bool = flags.JSON) -> None:
    """Put a server under load, and check every answer.

    Each is compared with the one that its request gets alone.
    """
    from unmask.bench.serve import bench_serve
    from unmask.engine.generator import Generator

    load, parameters = partial(model.load, workload.seed), flags.parse_fields(workload.set_)
    with stderr().status("loading") as shown, ExitStack() as ending:
        llm = Generator(load()) if workload.compare else None
        how: dict[str, Any] = {"url": workload.url, "key": os.environ.get("UNMASK_API_KEY")}
        if workload.url is None:
            child = flags.from_extra("unmask.server_process", "serve", "a server")
            how = ending.enter_context(child.started(load, workload, parameters))._asdict()
        how |= {"on_progress": shown.update, "on_minute": note}
        timing = bench_serve(workload, llm=llm, parameters=parameters, **how)
    _show([timing], as_json=as_json)
    for line in timing.figures["faults"]:
        note(line)
    if timing.failed:
        raise WorkFailed(timing.failed)


def _show(timings: Sequence[Any], *, as_json: bool) -> None:
    if as_json:
        print("\n".join(json.dumps(timing.figures) for timing in timings))
    else:
        show_timings(timings[0].title, [row for timing in timings for row in timing.rows])
