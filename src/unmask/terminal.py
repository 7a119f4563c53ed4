"""How results look in a terminal: streamed text, tables, a progress line; plain text where there is no terminal."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import timedelta
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from unmask.errors import UnmaskError
from unmask.live import CanvasView, decoded, visible

if TYPE_CHECKING:
    from unmask.batch.files import Progress as BatchProgress
    from unmask.conversation import Conversation
    from unmask.engine.generator import Generator as Model
    from unmask.engine.scheduler import Request
    from unmask.evals.cell import Cell
    from unmask.evals.run import Finished
    from unmask.evals.run import Progress as EvalProgress
    from unmask.report.table import Column, Shown
    from unmask.report.table import Table as Described
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
    cost = f"{usage.completion_tokens} tokens, {usage.forward_passes} forward passes, {seconds:.1f} s"
    _stderr().print(cost, style="dim")
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
            done = f"{finished} of {prompts} prompts done"
            bar.update(task, description=f"decoding: {tokens} tokens in {passes} passes, {done}")

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

        def say(line: str) -> None:
            nonlocal said
            said = time.monotonic()
            if not console.is_terminal:
                console.print(f"unmask: {line}", markup=False)

        def on_load(model: str) -> None:
            bar.update(task, description=f"loading {model}")
            say(f"loading {model}")

        def on_progress(now: EvalProgress) -> None:
            nonlocal began
            if now.cell.key not in labels:
                labels.update(_labels_of(now.beside))
            began = began if first else time.monotonic()
            latest[now.cell.key] = now.done
            decoded = sum(done - first.setdefault(key, done) for key, done in latest.items())
            rate = decoded / max(1e-9, time.monotonic() - began)
            reused = f" ({now.reused} reused)" if now.reused else ""
            place = f", {rate:.3g} items/s on {now.status}" if now.status else ""
            what = f"cell {now.number} of {now.cells}{reused}: {now.cell.task}, {labels[now.cell.key]}"
            bar.update(task, completed=now.share, description=f"{what}, {now.done} of {now.items} items{place}")
            if now.done == now.items:
                say(f"{what}, {now.items} items{place}, {100 * now.share:.0f} % done")
            elif time.monotonic() - said > LINE_S:
                say(f"{what}, {now.done} of {now.items} items{place}, {100 * now.share:.0f} % done")

        yield {"on_progress": on_progress, "on_load": on_load}


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
            line = f"{finished} of {now.total} requests"
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
        return f"nothing left to do: all {batch.total} requests are answered"
    before = f"; {batch.before} were answered before" if batch.before else ""
    cost = f"{batch.tokens} tokens, {batch.passes} forward passes, {batch.seconds:.1f} s"
    return f"{batch.done} requests, {batch.failed} of them failed, {cost}{before}"


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


def show_names(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    """What can be named, kind by kind; as JSON, one object a line."""
    if as_json:
        sys.stdout.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in ("kind", "name"):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for before, row in zip([None, *rows], rows, strict=False):
        first = before is None or before["kind"] != row["kind"]
        if first and before:
            table.add_row()
        table.add_row(Text(row["kind"] if first else "", style="dim"), Text(row["name"], style="bold"), row["about"])
    Console(highlight=False, markup=False).print(table)


def note_finished(run: Finished, folder: Path) -> None:
    """What came of a run beside its numbers: cells that were there before, and what changed since."""
    if run.reused:
        note(f"cells reused: {', '.join(f'{count} from {name}' for name, count in run.reused.items())}")
    elif not run.new_cells:
        note(f"nothing left to do: {folder} is complete")
    if run.changed:
        note(f"since it was measured, the {' and '.join(run.changed)} changed; --fresh measures it anew")


PIPE = 160  # width of a line, in letters, where there is no terminal


def show_tables(tables: list[Described]) -> None:
    """The tables of a report. A number is never folded, words may be.

    A narrow screen leaves out columns from the right until the rest fits, and says so.
    """
    console = Console(highlight=False)
    screen = console.width if console.is_terminal else PIPE
    for described in tables:
        rows, columns = described.shown(), described.columns
        widths = [_least_width(column, [str(row[at]) for row in rows]) for at, column in enumerate(columns)]
        # A space before the first column and after the last one, three spaces between two.
        ends = [end - 1 for end in accumulate(width + 3 for width in widths)]
        fitting = max(1, sum(end <= screen for end in ends)) if console.is_terminal else len(columns)
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for column, width in zip(columns[:fitting], widths, strict=False):
            side, whole = ("left", False) if column.decimals is None else ("right", True)
            table.add_column(Text(column.title), justify=side, no_wrap=whole, min_width=width)
        for number, row in enumerate(rows):
            if number in described.sections:
                table.add_section()
            table.add_row(*(_place(shown) for shown in row[:fitting]))
        console.width = max(screen, ends[fitting - 1])
        console.print(Text(described.title, style="bold"), table, sep="\n")
        notes = list(described.notes)
        if left_out := ", ".join(column.title for column in columns[fitting:]):
            notes.insert(0, f"No room here for: {left_out}. A wider screen or a pipe shows all.")
        console.print(*(Text(note, style="dim") for note in notes), "", sep="\n")


def _least_width(column: Column, texts: list[str]) -> int:
    """The width that a column needs: a number with its interval is never folded, nor is a word."""
    parts = [column.title, *texts]
    return max(len(part) for text in parts for part in (text.split() if column.decimals is None else [text]))


def _place(shown: Shown) -> Text:
    return Text.assemble((shown.text, "bold" if shown.best else ""), f" {shown.interval}" if shown.interval else "")


def show_timings(title: str, rows: list[dict[str, Any]]) -> None:
    """A table of measurements. A column that is empty, or at its usual value, in every row is left out."""
    from unmask.bench.measure import short

    def text(value: Any) -> str:
        return "unknown" if value is None else short(value) if isinstance(value, float) else str(value)

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    usual = {"refresh": "block"}
    names = [name for name in rows[0] if any(row[name] not in ("", usual.get(name, "")) for row in rows)]
    for name in names:
        words = name in ("cache", "refresh", "pass", "bound by", "form")
        table.add_column(name, justify="left" if words else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(text(row[name]) for name in names))
    # Nothing is folded or left out, however narrow the screen.
    Console(highlight=False, width=10_000).print(Text(title, style="bold"), table, sep="\n")
