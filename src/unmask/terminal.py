"""How results look in a terminal: streamed text, tables, a progress line; plain text when it is not a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from unmask.bench.generate import GenerateTiming
    from unmask.bench.rule import RuleTiming
    from unmask.bench.step import StepTiming
    from unmask.bench.subject import Subject
    from unmask.conversation import Conversation
    from unmask.evals.cell import Cell
    from unmask.evals.run import Progress as EvalProgress
    from unmask.report.measured import Measured
    from unmask.report.table import Column, Entry
    from unmask.report.table import Table as Described
    from unmask.types import StepEvent, StreamEvent


def show_stream(events: Iterable[StreamEvent]) -> None:
    """Print text as it becomes certain, then what it cost on stderr."""
    began = time.perf_counter()
    for event in events:
        sys.stdout.write(event.text_delta)
        sys.stdout.flush()
        if event.output is not None:
            usage, seconds = event.output.usage, time.perf_counter() - began
            sys.stdout.write("\n")
            sys.stdout.flush()
            console = Console(stderr=True, highlight=False)
            console.print(
                f"{usage.completion_tokens} tokens, {usage.forward_passes} forward passes, {seconds:.1f} s", style="dim"
            )


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


@contextmanager
def eval_progress() -> Generator[dict[str, Callable[[Any], None]]]:
    """A bar on stderr with an estimate of what is left; where it is no terminal, a line for each finished cell.

    Yields the listeners of a run by the names of its parameters.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), TextColumn("left"))
    period = 600.0  # cells differ in cost: a short look back would make the estimate jump
    labels: dict[str, str] = {}
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal, speed_estimate_period=period
    ) as bar:
        task = bar.add_task("loading", total=1.0)

        def say(line: str) -> None:
            if not console.is_terminal:
                console.print(f"unmask: {line}", markup=False)

        def on_load(model: str) -> None:
            bar.update(task, description=f"loading {model}")
            say(f"loading {model}")

        def on_progress(now: EvalProgress) -> None:
            if now.cell.key not in labels:
                labels.update(_labels_of(now.beside))
            reused = f" ({now.reused} reused)" if now.reused else ""
            what = f"cell {now.number} of {now.cells}{reused}: {now.cell.task}, {labels[now.cell.key]}"
            bar.update(task, completed=now.share, description=f"{what}, {now.done} of {now.items} items")
            if now.done == now.items:
                say(f"{what}, {now.items} items, {100 * now.share:.0f} % done")

        yield {"on_progress": on_progress, "on_load": on_load}


def _labels_of(cells: Iterable[Cell]) -> dict[str, str]:
    """Key -> what the table at the end will call the cell."""
    from unmask.report.measured import Measured
    from unmask.report.results import labels

    nothing: dict[str, Any] = {"about": {}, "ids": (), "complete": False, "columns": {}, "scores": {}}
    asked = [Measured(run="", cell=cell, **nothing) for cell in cells]
    return {each.cell.key: label for each, label in zip(asked, labels(asked), strict=True)}


def is_terminal(stream: Any) -> bool:
    return stream is not None and stream.isatty()


def note(message: str | None) -> None:
    """Something worth knowing, on stderr."""
    if message:
        Console(stderr=True, highlight=False, soft_wrap=True).print(f"unmask: {message}", style="dim", markup=False)


def status(message: str) -> AbstractContextManager[Any]:
    """A sign of life on stderr while something long runs."""
    return Console(stderr=True).status(message)


def converse(talk: Conversation, about: Callable[[list[str]], str | None]) -> None:
    """Read lines from the user until the end of input; answers are streamed, commands and errors go to stderr.

    `about` knows what to say of a prompt that the model was not made for; it is said once.
    """
    interactive, told = is_terminal(sys.stdin), None
    aside = Console(stderr=True, highlight=False, soft_wrap=True)
    if interactive:
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
                show_stream(talk.say(line))
        except KeyboardInterrupt:
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


def show_cells(cells: list[Measured]) -> None:
    """Accuracy of each cell with its 95 % interval, and passes; `unmask report` has the rest."""
    from unmask.report.results import labels

    table = Table(box=None, pad_edge=False)
    for heading in ("model", "task", "policy", "block", "items", "accuracy %", "passes"):
        left = heading in ("model", "task", "policy")
        table.add_column(heading, justify="left" if left else "right", no_wrap=heading != "policy", overflow="fold")
    for cell, label in zip(cells, labels(cells), strict=True):
        accuracy, passes = cell.accuracy(), cell.passes()
        rate = "" if accuracy is None else f"{accuracy.value:.1f}"
        if accuracy is not None and accuracy.interval is not None:
            rate += " [{:.1f}, {:.1f}]".format(*accuracy.interval)
        numbers = (str(cell.cell.settings["block_size"]), str(cell.done), rate, f"{passes.value:.1f}" if passes else "")
        table.add_row(cell.model, cell.cell.task, label, *numbers)
    # A file or a pipe has no width: nothing is folded there.
    Console(highlight=False, width=None if is_terminal(sys.stdout) else 200).print(table)


PIPE = 160  # letters of a line where no screen tells how many there are


def show_tables(tables: list[Described]) -> None:
    """The tables of a report, without those that are for files only.

    A figure is never folded, words may be. What a narrow screen has no room for even then is left out, and that said.
    """
    for described in tables:
        if described.details:
            continue
        console = Console(highlight=False)
        room = console.width if console.is_terminal else PIPE
        columns, spare = list(described.columns), []
        if console.is_terminal:
            while _narrowest(console, _drawn(described, columns), columns) > room and any(c.spare for c in columns):
                spare.append(max(columns, key=lambda column: column.spare))
                columns.remove(spare[-1])
        table = _drawn(described, columns)
        _make_room(console, table, [column.words for column in columns], room)
        console.print(Text(described.title, style="bold"))
        console.print(table)
        if spare:
            titles = ", ".join(column.title for column in spare)
            console.print(Text(f"No room here for: {titles}. A wider screen and --format markdown show all.", "dim"))
        for note in described.notes:
            console.print(Text(note, style="dim"))
        console.print()


def _drawn(described: Described, columns: list[Column]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(Text(column.title), justify="left" if column.words else "right", no_wrap=not column.words)
    for number, row in enumerate(described.rows):
        if number in described.sections:
            table.add_section()
        table.add_row(*(_entry(described.entry(row, column)) for column in columns))
    return table


def _narrowest(console: Console, table: Table, columns: list[Column]) -> int:
    """The width of the table when every word of its words stands in a line of its own."""
    _fold(table, [column.words for column in columns])
    return _wanted(console, table)


def _make_room(console: Console, table: Table, words: list[bool], room: int) -> None:
    """Fold words until the table fits into the room; figures have the width they want, whatever the room."""
    least = _wanted(console, table)
    if least > room:
        _fold(table, words)
        least = max(room, _wanted(console, table))
        for column in table.columns:
            column.width, column.min_width = None, column.width
    console.width = max(console.width, least)


def _wanted(console: Console, table: Table) -> int:
    return Measurement.get(console, console.options.update(max_width=10_000), table).maximum


def _fold(table: Table, words: list[bool]) -> None:
    for column, of_words in zip(table.columns, words, strict=True):
        if of_words:
            found = [str(cell) for cell in (column.header, *column.cells)]
            column.width = max((len(word) for text in found for word in text.split()), default=1)


def _entry(entry: Entry) -> Text:
    text = Text(entry.main, style="")
    if entry.best:
        text.stylize("bold")
    return text.append(f" {entry.interval}") if entry.interval else text


def show_rule_timings(timings: list[RuleTiming]) -> None:
    """Ours above the formula as printed, two lines a size."""
    first = timings[0]
    title = f"mean-field rule: {first.device}, {first.threads} threads, {first.dtype}"
    table = Table(title=title, pad_edge=False)
    for heading in ("batch", "m x V", "", "time", "memory", "error", "speed-up", "commits"):
        table.add_column(heading, justify="left" if heading == "" else "right", no_wrap=True)
    for timing in timings:
        commits = {True: "same", False: "differ", None: ""}[timing.same_commits]
        ours = _figures(timing.ours_ms, timing.ours_memory_mib, timing.ours_error)
        printed = _figures(timing.naive_ms, timing.naive_memory_mib, timing.naive_error)
        faster = "" if timing.speedup is None else f"{timing.speedup:.1f} x"
        size = [str(timing.batch), f"{timing.positions} x {timing.vocabulary}"]
        table.add_row(*size, "ours", *ours, faster, commits)
        table.add_row("", "", "as printed", *printed, end_section=True)
    table.caption = f"median of {first.repeats} runs; error of the overlap against float64, before it is normalised"
    if first.copies > 1:
        table.caption += (
            "; ours replayed from a graph, on copies of the logits that together do not fit into the L2 cache"
        )
    console = Console(highlight=False)
    # Figures have the width they want, whatever the terminal's; title and caption take what there is.
    title, caption, table.title, table.caption = table.title, table.caption, None, None
    console.width = max(console.width, _wanted(console, table))
    table.title, table.caption = title, caption
    console.print(table)


def _figures(milliseconds: float | None, mebibytes: float | None, error: float | None) -> list[str]:
    time = "{:.2f} ms" if milliseconds is None or milliseconds >= 1.0 else "{:.3f} ms"
    forms = ((milliseconds, time), (mebibytes, "{:.0f} MiB"), (error, "{:.0e}"))
    return ["not measured" if value is None else form.format(value) for value, form in forms]


_PARTS = ("model ms", "policy ms", "rest ms", "floor ms")


def show_step_timings(timings: list[StepTiming]) -> None:
    """One line for each kind of pass."""
    headings = ("prompt", "batch", "cache", "pass", "ms", "10-90 % ms", *_PARTS, "bound by")
    rows = []
    for timing in timings:
        request, spread = timing.request, f"{_short(timing.low_ms)}-{_short(timing.high_ms)}"
        parts = [_short(value) for value in (timing.model_ms, timing.policy_ms, timing.rest_ms, timing.floor_ms)]
        size = [request.prompt_in_words, str(request.batch), request.cache, timing.kind]
        rows.append([*size, _short(timing.ms), spread, *parts, timing.bound_by or "", _times(timing.ratio)])
    headings = (*headings, "ms / floor")
    if any(timing.lasting_ratio is not None for timing in timings):
        headings = (*headings, "ms / lasting floor")
        rows = [[*row, _times(timing.lasting_ratio)] for row, timing in zip(rows, timings, strict=True)]
    _show_timings(timings[0].subject, headings, rows)


def show_generate_timings(timings: list[GenerateTiming]) -> None:
    """One line for each request."""
    headings = ("passes", "ms", "p99 ms", "tokens/s", "kept/s", "ms/pass", "first ms", *_PARTS, "ms / floor")
    refreshed = any(timing.request.refresh != "block" for timing in timings)
    sizes = ("prompt", "batch", "cache", *(["refresh"] if refreshed else []))
    rows = []
    for timing in timings:
        request = timing.request
        size = [request.prompt_in_words, str(request.batch), request.cache]
        if refreshed:
            size.append("" if request.cache == "none" else request.refresh)
        speed = [1000 * timing.seconds, 1000 * timing.p99_s, timing.tokens_per_s, timing.kept_tokens_per_s]
        speed += [timing.ms_per_pass, timing.first_prefix_ms]
        seconds = (timing.model_s, timing.policy_s, timing.rest_s, timing.floor_s)
        parts = [None if value is None else 1000 * value for value in seconds]
        figures = [str(timing.forward_passes), *map(_short, [*speed, *parts]), _times(timing.ratio)]
        rows.append([*size, *figures])
    _show_timings(timings[0].subject, (*sizes, *headings), rows)


def _show_timings(subject: Subject, headings: tuple[str, ...], rows: list[list[str]]) -> None:
    console = Console(highlight=False)
    speeds = f"copies {_short(subject.copy_gb_per_s)} GB/s, multiplies {_short(subject.matmul_tflop_per_s)} TFLOP/s"
    if subject.lasting_matmul_tflop_per_s is not None:
        speeds += f" ({_short(subject.lasting_matmul_tflop_per_s)} without a pause)"
    numbers = subject.dtype if subject.quantized is None else f"{subject.dtype}, {subject.quantized} weights"
    where = f"{subject.device_name} ({subject.device}), {numbers}, {subject.threads} threads"
    console.print(Text(f"{subject.model}: {where}; {speeds}", style="bold"), soft_wrap=True)
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        left = heading in ("cache", "refresh", "pass", "bound by")
        table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    _make_room(console, table, [False] * len(headings), console.width)
    console.print(table)


def _short(value: float | None) -> str:
    """Three digits, or more where they stand before the point."""
    if value is None:
        return "unknown"
    decimals = next((count for count, least in enumerate((100, 10, 1)) if value >= least), 3)
    return f"{value:.{decimals}f}"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"
