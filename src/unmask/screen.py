"""How tables and lists of names fit onto a screen; where there is no terminal, nothing is left out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from unmask.report.table import Column, Shown
    from unmask.report.table import Table as Described

PIPE = 160  # width of a line, in letters, where there is no terminal


def show_tables(tables: list[Described], *, keep_columns: bool = False) -> None:
    """The tables of a report. A number is never folded, words may be.

    A narrow screen names model and task in the title if all rows have the same, then leaves out columns from the right,
    and says so; with `keep_columns`, intervals go first, and long words are folded.
    """
    console = Console(highlight=False)
    screen = console.width if console.is_terminal else PIPE
    for described in tables:
        fitted = _Fitted.of(described, screen if console.is_terminal else None, keep_columns=keep_columns)
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for column, width in zip(fitted.columns, fitted.widths, strict=True):
            side, whole = ("left", False) if column.decimals is None else ("right", True)
            table.add_column(Text(column.title), justify=side, no_wrap=whole, min_width=width, overflow="fold")
        for number, row in enumerate(fitted.rows):
            if number in described.sections:
                table.add_section()
            table.add_row(*(_place(shown) for shown in row))
        console.width = max(screen, _whole(fitted.widths))
        console.print(Text(fitted.title, style="bold"), table, sep="\n")
        notes = [*described.notes]
        if fitted.left_out:
            notes.insert(0, f"No room here for: {', '.join(fitted.left_out)}. A wider screen or a pipe shows all.")
        console.width = screen
        console.print(*(Text(note, style="dim") for note in notes), "", sep="\n")


FOLDED = 12  # letters of a word that a narrow screen leaves whole


@dataclass(kw_only=True)
class _Fitted:
    """A table as a screen has room for it."""

    title: str
    columns: list[Column]
    rows: list[list[Shown]]
    widths: list[int] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, described: Described, screen: int | None, *, keep_columns: bool) -> _Fitted:
        """The table on a screen of so many columns; None: there is room for everything."""
        made = cls(title=described.title, columns=[*described.columns], rows=described.shown())
        made.measure()
        steps = (made.name_in_title, made.leave_out_intervals, made.fold) if keep_columns else (made.name_in_title,)
        for step in steps:
            if screen is not None and _whole(made.widths) > screen:
                step()
        while screen is not None and _whole(made.widths) > screen and len(made.columns) > 1:
            made.left_out.insert(0, made.columns[-1].title)
            made.keep(range(len(made.columns) - 1))
        return made

    def measure(self, longest: int = PIPE) -> None:
        texts = [[column.title, *(str(row[at]) for row in self.rows)] for at, column in enumerate(self.columns)]
        self.widths = [_least_width(column, of, longest) for column, of in zip(self.columns, texts, strict=True)]

    def keep(self, places: Iterable[int]) -> None:
        places = [*places]
        self.columns, self.widths = [self.columns[at] for at in places], [self.widths[at] for at in places]
        self.rows = [[row[at] for at in places] for row in self.rows]

    def name_in_title(self) -> None:
        alike = [len({str(row[at]) for row in self.rows}) == 1 for at in range(len(self.columns))]
        named = [at for at, column in enumerate(self.columns) if alike[at] and column.key in ("model", "task")]
        if not named:
            return
        self.title = ": ".join(
            [", ".join(str(self.rows[0][at]) for at in named), self.title.removeprefix("Measured: ")]
        )
        self.keep(at for at in range(len(self.columns)) if at not in named)

    def leave_out_intervals(self) -> None:
        if any(shown.interval for row in self.rows for shown in row):
            self.rows = [[shown._replace(interval="") for shown in row] for row in self.rows]
            self.left_out.append("intervals")
            self.measure()

    def fold(self) -> None:
        self.measure(FOLDED)


def _whole(widths: Sequence[int]) -> int:
    """The width of a table: a space before the first column and after the last one, three spaces between two."""
    return sum(widths) + 3 * len(widths) - 1


def _least_width(column: Column, texts: list[str], longest: int) -> int:
    """The width that a column needs: a number with its interval is never folded, nor is a word up to the longest."""
    if column.decimals is not None:
        return max(map(len, texts))
    return min(longest, max(len(word) for text in texts for word in text.split()))


def _place(shown: Shown) -> Text:
    return Text.assemble((shown.text, "bold" if shown.best else ""), f" {shown.interval}" if shown.interval else "")


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
