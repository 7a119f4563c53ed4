"""Signs of life on stderr while a command works: a bar on a terminal, a line now and then where there is none."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column

from unmask.errors import counted
from unmask.terminal import stderr

if TYPE_CHECKING:
    from unmask.batch import Progress as BatchProgress
    from unmask.evals.run import Progress as EvalProgress
    from unmask.types import StepEvent

LOADING_S = 1.0  # of loading, before a bar is shown
LINE_S = 30.0  # between two lines of progress where there is no terminal
BAR = 12  # letters


@contextmanager
def _bar(delay_s: float = 0.0) -> Generator[Callable[..., None]]:
    """Yields a function that shows a text, the share that is done and the time left, once the delay is over.

    On a narrow terminal the text gives way. Where nothing can be drawn, it is a line if it is `due`, or if the last
    line is long ago.
    """
    console = stderr()
    rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")
    columns = (TextColumn("{task.fields[left]}"), TextColumn("{task.description}", markup=False, table_column=rest))
    hidden = not console.is_interactive
    bar = Progress(BarColumn(BAR), *columns, console=console, transient=True, expand=True, disable=hidden)
    task = bar.add_task("", total=None, left="")
    began, start, said = None, None, time.monotonic()

    def show(text: str, share: float | None = None, *, due: bool = False) -> None:
        nonlocal began, start, said
        now, left = time.monotonic(), ""
        began = began or now
        if share is not None:
            start = start or (share, now)
            first, since = start  # what was done before took no time
            if first < share < 1.0:
                left = f"{timedelta(seconds=round((now - since) * (1.0 - share) / (share - first)))} left"
        if now - began < delay_s:
            return
        bar.update(task, description=text, completed=share, total=None if share is None else 1.0, left=left)
        bar.start()
        if hidden and (due or now - said >= LINE_S):
            console.print(f"unmask: {text}{left and f', {left}'}", markup=False)
            said = now

    try:
        yield show
    finally:
        bar.stop()


@contextmanager
def loading(name: str) -> Generator[Callable[[int, int], None]]:
    """Counts bytes of weights; shows nothing for a small model."""
    with _bar(LOADING_S) as show:
        yield lambda done, total: show(f"loading {name}, {decimal(done)} of {decimal(total)}", done / total)


@contextmanager
def decoding(prompts: int) -> Generator[Callable[[StepEvent], None]]:
    """Counts forward passes and committed tokens."""
    passes = tokens = finished = 0
    with _bar() as show:
        show("decoding", 0.0)

        def on_step(event: StepEvent) -> None:
            nonlocal passes, tokens, finished
            passes += 1
            tokens += len(event.committed) - len(event.remasked)
            finished += event.finished
            made = f"{counted(tokens, 'token')} in {counted(passes, 'pass')}"
            show(f"decoding: {made}, {finished} of {counted(prompts, 'prompt')} done", finished / prompts)

        yield on_step


@contextmanager
def evaluating() -> Generator[dict[str, Callable[[Any], None]]]:
    """Tells of cells, items and the time left. Yields the listeners of a run by the names of its parameters."""
    with _bar() as show:

        def on_load(model: str) -> None:
            show(f"loading {model}", due=True)

        def on_progress(now: EvalProgress) -> None:
            reused = f" ({now.reused} reused)" if now.reused else ""
            complete, items = now.done == now.items, counted(now.items, "item")
            text = f"cell {now.number} of {now.cells}{reused}: {now.cell.task}, {now.cell.label()}, "
            text += items if complete else f"{now.done} of {items}"
            text += f", {now.status}" if now.status else ""
            show(f"{text}, {100 * now.share:.0f} % done", now.share, due=complete)

        yield {"on_progress": on_progress, "on_load": on_load}


@contextmanager
def batch() -> Generator[Callable[[BatchProgress], None]]:
    """Tells of requests, the rate and the time left."""
    with _bar() as show:

        def on_progress(now: BatchProgress) -> None:
            finished = now.before + now.done
            rate = f", {now.done / now.seconds:.1f} a second" if now.done else ""
            text = f"{finished} of {counted(now.total, 'request')}{rate}"
            show(text, finished / max(1, now.total), due=not now.done)

        yield on_progress


def summary_of(batch: BatchProgress) -> str:
    """What a batch came to."""
    if not batch.done:
        answered = "the request is" if batch.total == 1 else f"all {batch.total} requests are"
        return f"nothing left to do: {answered} answered"
    before = f"; {batch.before} {'was' if batch.before == 1 else 'were'} answered before" if batch.before else ""
    cost = f"{counted(batch.tokens, 'token')}, {counted(batch.passes, 'forward pass')}, {batch.seconds:.1f} s"
    return f"{counted(batch.done, 'request')}, {batch.failed} of them failed, {cost}{before}"
