"""How results look in a terminal: streamed text, tables, a progress line; plain text where there is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from unmask.errors import UnmaskError, counted
from unmask.live import CanvasView, decoded, visible

if TYPE_CHECKING:
    from unmask.batch.files import Progress as BatchProgress
    from unmask.conversation import Conversation
    from unmask.engine.generator import Generator as Model
    from unmask.engine.scheduler import Request
    from unmask.evals.cell import Cell
    from unmask.evals.run import Finished
    from unmask.evals.run import Progress as EvalProgress
    from unmask.types import Output, StepEvent


def _stderr() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True)


def watches(wanted: bool | None, *, prompts: int = 1, as_json: bool = False) -> bool:
    """Whether to draw the canvas as it fills, on stderr: if it is wanted, or by default for one text on a terminal."""
    console = _stderr()
    able = console.is_terminal and not console.is_dumb_terminal
    if wanted is None:
        return able and prompts == 1 and not as_json and is_terminal(sys.stdout)
    if wanted and prompts > 1:
        raise UnmaskError(f"--live shows one prompt, got {prompts}")
    if wanted and not able:
        raise UnmaskError("--live needs a terminal that can be drawn on; leave it out")
    return wanted


def show_text(text: str, end: str = "\n") -> None:
    """Text of a model on stdout: as it is, but on a terminal without what would command the terminal."""
    sys.stdout.write((visible(text) if is_terminal(sys.stdout) else text) + end)
    sys.stdout.flush()


def show_answer(
    llm: Model, request: Request, *, live: bool, show: Callable[[Output], None] = lambda output: show_text(output.text)
) -> Output:
    """Decode a request and show its text, then what it cost on stderr.

    Live, the canvas is drawn until it is full, and then gives way to what `show` prints. Else text is printed as it
    becomes certain.
    """
    began, output, view = time.perf_counter(), None, CanvasView(request)
    with view.on(_stderr()) if live else nullcontext():
        for event in decoded(llm, request):
            view.hear(event.step)
            output = event.output
            if not live:
                show_text(event.text_delta, end="" if output is None else "\n")
    assert output is not None
    if live:
        show(output)
    usage, seconds = output.usage, time.perf_counter() - began
    cost = f"{counted(usage.completion_tokens, 'token')}, {counted(usage.forward_passes, 'forward pass')}"
    _stderr().print(f"{cost}, {seconds:.1f} s", style="dim")
    return output


LOADING_S = 1.0  # of loading, before a bar is shown


@contextmanager
def loading(name: str) -> Generator[Callable[[int, int], None]]:
    """A bar on stderr that counts bytes of weights; nothing where stderr is no terminal, or for a small model."""
    console = _stderr()
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
def progress(prompts: int) -> Generator[Callable[[StepEvent], None]]:
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


LINE_S = 30.0  # between two lines of progress where there is no terminal


@contextmanager
def eval_progress() -> Generator[dict[str, Callable[[Any], None]]]:
    """A bar on stderr with an estimate of the time left; where stderr is no terminal, a line now and then.

    Yields the listeners of a run by the names of its parameters.
    """
    console, labels = _stderr(), dict[str, str]()
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
    from unmask.report.labels import labels
    from unmask.report.measured import Measured

    return {each.cell.key: label for each, label in labels([Measured(run="", cell=cell) for cell in cells]).items()}


LINE_S = 30.0  # between two lines of progress where there is no terminal


@contextmanager
def batch_progress() -> Generator[Callable[[BatchProgress], None]]:
    """A bar on stderr with the rate and the time left; where stderr is no terminal, a line now and then."""
    console, told = _stderr(), -LINE_S
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


def is_terminal(stream: Any) -> bool:
    return stream is not None and stream.isatty()


def note(message: str | None) -> None:
    """Something worth knowing, on stderr."""
    if message:
        _stderr().print(f"unmask: {message}", style="dim", markup=False)


def status(message: str) -> AbstractContextManager[Any]:
    """A sign of life on stderr while something long runs."""
    return Console(stderr=True).status(message)


def converse(talk: Conversation, about: Callable[[list[str]], str | None], *, live: bool) -> None:
    """Read lines from the user until the end of input; answers are shown, commands and errors go to stderr.

    `about` gives a note on prompts that the model was not trained for; the note is shown once.
    """
    interactive, told, aside = is_terminal(sys.stdin), None, _stderr()
    if interactive:
        with suppress(ImportError):  # Windows
            import readline  # noqa: F401  (line editing and history for input())

        commands = "/reset forgets the conversation, /help lists the commands; end of input or /quit leaves"
        aside.print(commands, style="dim")
    while True:
        try:
            line = input("> " if interactive else "").strip()
        except EOFError:
            return
        if line.split()[:1] == ["/quit"]:
            return
        try:
            if line.startswith("/"):
                aside.print(talk.command(line), markup=False)
            elif line:
                if told is None:
                    note(told := about([line]))
                output = show_answer(talk.llm, talk.request(line), live=live)
                talk.remember(line, output.text)
        except KeyboardInterrupt:
            if not interactive:
                raise
            aside.print("\ninterrupted; the conversation goes on as before")
        except UnmaskError as error:
            if not interactive:
                raise
            aside.print(f"unmask: {error}", markup=False)


def show_policies(rows: list[dict[str, Any]]) -> None:
    """Each policy with its parameters, what it does, and what it needs beyond the logits of its block."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for row in rows:
        parameters = " ".join(f"{key}={value}" for key, value in row["parameters"].items())
        needs = f" Needs {', '.join(row['needs'])}." if row["needs"] else ""
        table.add_row(row["name"], f"{parameters}\n{row['about']}{needs}")
    Console(highlight=False).print(table)


def note_finished(run: Finished, folder: Path) -> None:
    """What came of a run beside its numbers: cells that were there before, and what changed since."""
    if run.reused:
        note(f"cells reused: {', '.join(f'{count} from {name}' for name, count in run.reused.items())}")
    elif not run.new_cells:
        note(f"nothing left to do: {folder} is complete")
    if run.changed:
        note(f"since it was measured, the {' and '.join(run.changed)} changed; --fresh measures it anew")


def show_timings(title: str, rows: list[dict[str, Any]]) -> None:
    """A table of measurements. A column that is empty, or at its usual value, in every row is left out."""
    from unmask.bench.measure import short

    def text(value: Any) -> str:
        return "unknown" if value is None else short(value) if isinstance(value, float) else str(value)

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    usual = {"refresh": "block"}
    names = [name for name in rows[0] if any(row[name] not in ("", usual.get(name, "")) for row in rows)]
    for name in names:
        words = name in ("cache", "refresh", "pass", "bound by", "form", "figure")
        table.add_column(name, justify="left" if words else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(text(row[name]) for name in names))
    console, wide = Console(highlight=False), Console(highlight=False, width=10_000)
    shown: Table | Group = table
    if console.is_terminal and wide.measure(table).maximum > console.width:
        shown = _turned(names, [[text(row[name]) for name in names] for row in rows], console.width)
    # Nothing is folded or left out, however narrow the screen.
    wide.print(Text(title, style="bold"), shown, sep="\n")


def _turned(names: list[str], rows: list[list[str]], screen: int) -> Group:
    """The same table for a narrow screen: a line for each measure, and as many measurements side by side as fit."""
    first, widest = max(map(len, names)), max(len(text) for row in rows for text in row)
    together = max(1, (screen - first - 2) // (widest + 3))
    tables = []
    for begin in range(0, len(rows), together):
        part = rows[begin : begin + together]
        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_header=False)
        for justify in ("left", *["right"] * len(part)):
            table.add_column(justify=justify, no_wrap=True)  # ty: ignore[invalid-argument-type]
        for at, name in enumerate(names):
            table.add_row(name, *(row[at] for row in part))
        tables.append(table)
    return Group(*tables)
