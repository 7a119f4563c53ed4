"""What a user reads: text as it is decoded, tables, lists of names, and notes. Results go to stdout, notes to stderr.

Nothing of a table is left out, however narrow the terminal is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from unmask.errors import UnmaskError, counted
from unmask.live import CanvasView, visible

if TYPE_CHECKING:
    from unmask.engine.generator import Generator as Model
    from unmask.engine.scheduler import Request
    from unmask.report.table import Column, Shown
    from unmask.report.table import Table as Described
    from unmask.types import Output

PIPE = 160  # width of a line, in letters, where there is no terminal
WHOLE, LEAST = 16, 6  # letters of a word that are kept together where there is room, and where there is none
GAP = 3  # spaces between two columns


def stderr() -> Console:
    """Where everything goes that is not a result."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def watches(wanted: bool | None, *, prompts: int = 1, as_json: bool = False) -> bool:
    """Whether to draw the canvas as it fills, on stderr: if it is wanted, or by default for one text on a terminal."""
    able = stderr().is_interactive
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
    with view.on(stderr()) if live else nullcontext():
        for event in llm.stream(request):
            view.hear(event.step)
            output = event.output
            if not live:
                show_text(event.text_delta, end="" if output is None else "\n")
    assert output is not None
    if live:
        show(output)
    usage, seconds = output.usage, time.perf_counter() - began
    cost = f"{counted(usage.completion_tokens, 'token')}, {counted(usage.forward_passes, 'forward pass')}"
    stderr().print(f"{cost}, {seconds:.1f} s", style="dim")
    return output


def is_terminal(stream: Any) -> bool:
    return stream is not None and stream.isatty()


def note(message: str | None) -> None:
    """Something worth knowing, on stderr."""
    if message:
        stderr().print(f"unmask: {message}", style="dim", markup=False)


def show_tables(tables: Sequence[Described]) -> None:
    """Tables with their titles and notes. A number is never broken; words are folded, long ones anywhere.

    A table that is wider than the terminal goes on below, beside the columns that tell its rows apart.
    """
    console = Console(highlight=False)
    screen = console.width if console.is_terminal else PIPE
    for table in tables:
        rows = table.shown()
        widths = [_width(column, [str(row[at]) for row in rows]) for at, column in enumerate(table.columns)]
        console.width = screen
        console.print(Text(table.title, style="bold"))
        for part in _parts(rows, widths, screen) if console.is_terminal else [range(len(widths))]:
            drawn, least = Table(box=SIMPLE_HEAD, pad_edge=False), 0
            for column, width in ((table.columns[at], widths[at]) for at in part):
                words = column.decimals is None
                drawn.add_column(
                    Text(column.title), justify="left" if words else "right", no_wrap=not words, overflow="fold"
                )
                least += (min(LEAST, width) if words else width) + GAP
            for number, row in enumerate(rows, 1):
                drawn.add_row(*(_text(row[at]) for at in part), end_section=number in table.sections)
            console.width = max(screen, least)
            console.print(drawn)
        console.width = screen
        console.print(*(Text(note, style="dim") for note in table.notes), "", sep="\n")


def _width(column: Column, texts: list[str]) -> int:
    """The letters that a column needs: all of a number with its interval, the longest word of a text."""
    if column.decimals is not None:
        return max(map(len, [column.title, *texts]))
    return min(WHOLE, max(len(word) for text in [column.title, *texts] for word in text.split()))


def _parts(rows: list[list[Shown]], widths: list[int], screen: int) -> list[list[int]]:
    """The columns of a table in parts that fit the screen. Each begins with the first columns, which name the rows."""
    texts = [[str(shown).strip() for shown in row] for row in rows]
    names = {n: {(*row[:n],) for row in texts if row[n - 1]} for n in range(1, len(widths))}
    first = next((n for n, found in names.items() if len(found) == len(rows)), 1)
    parts = [[*range(first)]]
    for at in range(first, len(widths)):
        if sum(widths[one] + GAP for one in (*parts[-1], at)) > screen + 1 and len(parts[-1]) > first:
            parts.append([*range(first)])
        parts[-1].append(at)
    return parts


def _text(shown: Shown) -> Text:
    return Text.assemble((shown.text, "bold" if shown.best else ""), f" {shown.interval}" if shown.interval else "")


def show_timings(title: str, rows: list[dict[str, Any]]) -> None:
    """A table of measurements. A column that is empty, or at its usual value, in every row is left out."""
    from unmask.bench.measure import short
    from unmask.report import table

    def text(value: Any) -> str:
        # A space stands for an empty text, which a table would show as a dash.
        return "unknown" if value is None else short(value) if isinstance(value, float) else str(value) or " "

    words, usual = ("cache", "refresh", "pass", "bound by", "form", "figure"), {"refresh": "block"}
    names = [name for name in rows[0] if any(row[name] not in ("", usual.get(name, "")) for row in rows)]
    columns = [table.Column(name, name, None if name in words else 0) for name in names]
    texts: list[table.Row] = [{name: text(row[name]) for name in names} for row in rows]
    show_tables([table.Table(name="timings", title=title, columns=columns, rows=texts)])


def show_names(rows: Sequence[Sequence[str]], *, kinds: bool = False) -> None:
    """Names with words about each; with `kinds`, each row begins with the kind of its name, which is shown once."""
    table, before = Table(box=None, pad_edge=False, show_header=False), ""
    for style in ("dim", "bold") if kinds else ("bold",):
        table.add_column(no_wrap=True, style=style)
    table.add_column(overflow="fold")
    for first, *others in rows:
        if kinds and before not in ("", first):
            table.add_row()
        table.add_row("" if kinds and first == before else first, *others)
        before = first
    Console(highlight=False, markup=False).print(table)
