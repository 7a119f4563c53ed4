"""How tables and lists of names fit onto a screen. Nothing is left out, however narrow it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from unmask.report.table import Column, Shown
    from unmask.report.table import Table as Described

PIPE = 160  # width of a line, in letters, where there is no terminal
WHOLE, LEAST = 16, 6  # letters of a word that are kept together where there is room, and where there is none
GAP = 3  # spaces between two columns


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


def show_names(rows: Sequence[Sequence[str]]) -> None:
    """Names of a kind, and in the last column words about each."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in rows[0][:-1]:
        table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, markup=False).print(table)
