"""Signs of life on stderr while a command works: bars on a terminal, a line now and then where there is none."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from unmask.errors import counted
from unmask.terminal import stderr

if TYPE_CHECKING:
    from unmask.batch.files import Progress as BatchProgress
    from unmask.evals.cell import Cell
    from unmask.evals.run import Progress as EvalProgress
    from unmask.types import StepEvent

LOADING_S = 1.0  # of loading, before a bar is shown
LINE_S = 30.0  # between two lines of progress where there is no terminal


@contextmanager
def loading(name: str) -> Generator[Callable[[int, int], None]]:
    """A bar on stderr that counts bytes of weights; nothing where stderr is no terminal, or for a small model."""
    console = stderr()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task, began = bar.add_task(f"loading {name}"), 0.0

    def on_bytes(done: int, total: int) -> None:
        nonlocal began
        began = began or time.monotonic()
        if time.monotonic() - began > LOADING_S:
            bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield on_bytes
    finally:
        if bar.live.is_started:
            bar.stop()


@contextmanager
def decoding(prompts: int) -> Generator[Callable[[StepEvent], None]]:
    """A line on stderr that counts forward passes and committed tokens; nothing when stderr is not a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("decoding", total=None)
        passes = tokens = finished = 0

        def on_step(event: StepEvent) -> None:
            nonlocal passes, tokens, finished
            passes += 1
            tokens += len(event.committed) - len(event.remasked)
            finished += event.finished
            done = f"{finished} of {counted(prompts, 'prompt')} done"
            made = f"{counted(tokens, 'token')} in {counted(passes, 'pass')}"
            bar.update(task, description=f"decoding: {made}, {done}")

        yield on_step


@contextmanager
def evaluating() -> Generator[dict[str, Callable[[Any], None]]]:
    """A bar on stderr with an estimate of the time left; where stderr is no terminal, a line now and then.

    Yields the listeners of a run by the names of its parameters.
    """
    console, labels = stderr(), dict[str, str]()
    first, latest = dict[str, int](), dict[str, int]()  # items of a cell when it was first and last heard of
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), TextColumn("left"))
    # Cells differ in cost: a short look back would make the estimate jump.
    options: dict[str, Any] = {"transient": True, "disable": not console.is_terminal, "speed_estimate_period": 600.0}
    with Progress(*columns, console=console, **options) as bar:
        task, began, said = bar.add_task("loading", total=1.0), time.monotonic(), time.monotonic()
        began_at = 0.0  # share of the run

        def say(line: str) -> None:
            nonlocal said
            said = time.monotonic()
            if not console.is_terminal:
                console.print(f"unmask: {line}", markup=False)

        def on_load(model: str) -> None:
            bar.update(task, description=f"loading {model}")
            say(f"loading {model}")

        def on_progress(now: EvalProgress) -> None:
            nonlocal began, began_at
            if now.cell.key not in labels:
                labels.update(_labels_of(now.beside))
            if not first:  # cells that were there before took no time
                began, began_at = time.monotonic(), now.share
            latest[now.cell.key] = now.done
            decoded = sum(done - first.setdefault(key, done) for key, done in latest.items())
            rate = decoded / max(1e-9, time.monotonic() - began)
            reused = f" ({now.reused} reused)" if now.reused else ""
            place = f", {rate:.3g} items/s on {now.status}" if now.status else ""
            what = f"cell {now.number} of {now.cells}{reused}: {now.cell.task}, {labels[now.cell.key]}"
            items = counted(now.items, "item")
            bar.update(task, completed=now.share, description=f"{what}, {now.done} of {items}{place}")
            done = f"{100 * now.share:.0f} % done{_left(now.share - began_at, now.share, time.monotonic() - began)}"
            if now.done == now.items:
                say(f"{what}, {items}{place}, {done}")
            elif time.monotonic() - said > LINE_S:
                say(f"{what}, {now.done} of {items}{place}, {done}")

        yield {"on_progress": on_progress, "on_load": on_load}


def _left(done: float, share: float, seconds: float) -> str:
    """The time left in words, as far as `done`, the share that took these seconds, tells; empty where it does not."""
    if done <= 0.0 or share >= 1.0:
        return ""
    return f", {timedelta(seconds=round((1.0 - share) * seconds / done))} left"


def _labels_of(cells: Iterable[Cell]) -> dict[str, str]:
    """Key -> the cell's label in the table at the end."""
    from unmask.report.compare import labels
    from unmask.report.measured import Measured

    return {each.cell.key: label for each, label in labels([Measured(run="", cell=cell) for cell in cells]).items()}


@contextmanager
def batch() -> Generator[Callable[[BatchProgress], None]]:
    """A bar on stderr with the rate and the time left; where stderr is no terminal, a line now and then."""
    console, told = stderr(), -LINE_S
    columns = (TextColumn("{task.description}"), BarColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading the requests", total=None)

        def on_progress(now: BatchProgress) -> None:
            nonlocal told
            finished = now.before + now.done
            line = f"{finished} of {counted(now.total, 'request')}"
            if now.done:
                left = timedelta(seconds=round((now.total - finished) * now.seconds / now.done))
                line += f", {now.done / now.seconds:.1f} a second, {left} left"
            bar.update(task, description=line, completed=finished, total=now.total)
            if not console.is_terminal and now.seconds - told >= LINE_S:
                console.print(f"unmask: {line}", markup=False)
                told = now.seconds

        yield on_progress


def summary_of(batch: BatchProgress) -> str:
    """What a batch came to."""
    if not batch.done:
        return (
            "nothing left to do: the request is answered"
            if batch.total == 1
            else f"nothing left to do: all {batch.total} requests are answered"
        )
    before = f"; {batch.before} {'was' if batch.before == 1 else 'were'} answered before" if batch.before else ""
    cost = f"{counted(batch.tokens, 'token')}, {counted(batch.passes, 'forward pass')}, {batch.seconds:.1f} s"
    return f"{counted(batch.done, 'request')}, {batch.failed} of them failed, {cost}{before}"
