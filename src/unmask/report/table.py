"""What a table says, and how it looks as text: Markdown, CSV and LaTeX. Each form leaves nothing out."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from unmask.report.measured import Estimate

NOTHING = "–"
LONG = 30  # letters; a LaTeX column of longer texts is broken into lines
LETTERS = '\\{}$&#%_~^<>|"×–−→τ≤≥±÷·≈—’“”'
IN_LATEX = (
    r"\textbackslash{} \{ \} \$ \& \# \% \_ \textasciitilde{} \textasciicircum{} \textless{} \textgreater{} "
    r"\textbar{} '' $\times$ -- $-$ $\to$ $\tau$ $\leq$ $\geq$ $\pm$ $\div$ $\cdot$ $\approx$ --- ' `` ''"
)
LATEX = dict(zip(LETTERS, IN_LATEX.split(), strict=True))

Value = str | float | int | Estimate | None  # None and the empty text: nothing to say
Row = dict[str, Any]  # column key -> Value, unrounded; a value that says nothing may be missing


@dataclass(frozen=True, slots=True)
class Column:
    """`key` is its name for machines, `title` for people."""

    key: str
    title: str
    decimals: int | None = None  # of its numbers; None: words, to the left
    form: str = "{}"  # how a rounded number is printed
    wanted: str = ""  # 'high' or 'low': which value is the best of the column


class Shown(NamedTuple):
    """What is printed in one place of a table. Bold print applies to the text alone."""

    text: str = NOTHING
    interval: str = ""
    best: bool = False

    def __str__(self) -> str:
        return f"{self.text} {self.interval}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """`name` is a file name."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    notes: Sequence[str] = ()
    sections: Sequence[int] = ()  # rows above which a line is drawn
    fair: Sequence[bool] = ()  # whether a row may have the best of a column; without it, none may

    def shown(self) -> list[list[Shown]]:
        """Every row as it is printed. Equal values of a column are the best together, and none is if all are equal."""
        rows: list[list[Shown]] = [[] for _ in self.rows]
        for column in self.columns:
            values = [row.get(column.key) for row in self.rows]
            fair = {number_of(value) for value, ok in zip(values, self.fair, strict=False) if ok} - {None}
            best = (max if column.wanted == "high" else min)(fair) if column.wanted and len(fair) > 1 else None
            for at, (row, value) in enumerate(zip(rows, values, strict=True)):
                is_best = best is not None and self.fair[at] and number_of(value) == best
                row.append(printed(value, column)._replace(best=is_best))
        return rows

    def to_dict(self) -> dict[str, Any]:
        rows = [{column.key: as_data(row.get(column.key)) for column in self.columns} for row in self.rows]
        columns = {column.key: column.title for column in self.columns}
        return {"name": self.name, "title": self.title, "columns": columns, "rows": rows, "notes": list(self.notes)}


def number_of(value: Value) -> Any:
    return value.value if isinstance(value, Estimate) else value


def interval_of(value: Value) -> tuple[float, float] | None:
    """The interval of an estimate. One without width is left out: all items are equal, or there is only one."""
    ends = value.interval if isinstance(value, Estimate) else None
    return ends if ends and ends[0] < ends[1] else None


def as_data(value: Value) -> Any:
    """A string, a number or None, or a number with its interval."""
    if isinstance(value, Estimate):
        return value.to_dict() if interval_of(value) else value.value
    return None if value == "" else value


def printed(value: Value, column: Column) -> Shown:
    """A rounded value and its interval. An estimate has about four digits: more would be noise."""
    decimals = column.decimals or 0
    if value is None or isinstance(value, str):
        return Shown(value or NOTHING)
    if isinstance(value, Estimate):
        size = abs(value.value)
        decimals = min(decimals, 2 if size < 100 else 1 if size < 1000 else 0)
        ends = ", ".join(_rounded(end, decimals) for end in interval_of(value) or ())
        return Shown(column.form.format(_rounded(value.value, decimals)), ends and f"[{ends}]")
    least = 10**-decimals
    return Shown(f"< {least:g}" if 0 < value < least else column.form.format(_rounded(value, decimals)))


def _rounded(number: float | int, decimals: int) -> str:
    return f"{number:.{decimals}f}".replace("-", "−")


def markdown(table: Table) -> str:
    """A heading, a pipe table, the notes as a list; the best of a column is bold."""

    def cell(shown: Shown) -> str:
        bold = "**" if shown.best else ""
        return f"{bold}{plain(shown.text)}{bold} {shown.interval}".rstrip()

    rows = [[column.title for column in table.columns], *([cell(one) for one in row] for row in table.shown())]
    head, *body = [f"| {' | '.join(row)} |" for row in rows]
    rule = "|".join(":--" if column.decimals is None else "--:" for column in table.columns)
    notes = ["", *(f"- {plain(note)}" for note in table.notes)] if table.notes else []
    return "\n".join([f"## {plain(table.title)}", "", head, f"|{rule}|", *body, *notes]) + "\n"


def csv_text(table: Table) -> str:
    """Unrounded numbers; an interval is two more columns. A header line, no title."""
    columns: dict[str, Sequence[Any]] = {}
    for key in (column.key for column in table.columns):
        values = [row.get(key) for row in table.rows]
        ends = [interval_of(value) for value in values]
        columns[key] = [number_of(value) for value in values]
        if any(ends):
            columns[f"{key}_low"], columns[f"{key}_high"] = zip(*(pair or ("", "") for pair in ends), strict=True)
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([columns, *zip(*columns.values(), strict=True)])
    return out.getvalue()


def latex(table: Table) -> str:
    r"""A `table` environment to \input into a document with booktabs and adjustbox; ASCII only."""

    def cell(shown: Shown) -> str:
        text = f"\\textbf{{{escape(shown.text)}}}" if shown.best else escape(shown.text)
        return f"{text} {{\\scriptsize {escape(shown.interval)}}}" if shown.interval else text

    letters = {c.key: max((len(str(row.get(c.key))) for row in table.rows), default=0) for c in table.columns}
    long = [column for column in table.columns if column.decimals is None and letters[column.key] > LONG]
    broken = f"p{{{0.8 / max(2, len(long)):.2f}\\linewidth}}"  # long texts share most of the page
    sides = [broken if column in long else "l" if column.decimals is None else "r" for column in table.columns]
    lines = [
        "% needs \\usepackage{booktabs,adjustbox}",
        "\\begin{table}[t]",
        "\\centering\\footnotesize\\setlength{\\tabcolsep}{4pt}",
        f"\\caption{{{escape(table.title)}}}",
        f"\\label{{tab:{re.sub('[^a-zA-Z0-9-]', '-', table.name)}}}",
        "\\begin{adjustbox}{max width=\\linewidth}",
        f"\\begin{{tabular}}{{@{{}}{''.join(sides)}@{{}}}}",
        f"\\toprule\n{' & '.join(escape(column.title) for column in table.columns)} \\\\\n\\midrule",
    ]
    for at, row in enumerate(table.shown()):
        lines += ["\\midrule"] if at in table.sections else []
        # An empty group first: a row that begins with a bracket would be read as an option of the line above.
        lines.append("{}" + " & ".join(map(cell, row)) + r" \\")
    lines += ["\\bottomrule", "\\end{tabular}", "\\end{adjustbox}"]
    if table.notes:
        notes = "\\\\\n".join(map(escape, table.notes))
        lines += ["\\par\\smallskip", f"\\begin{{minipage}}{{\\linewidth}}\\scriptsize {notes}\\end{{minipage}}"]
    return "\n".join([*lines, "\\end{table}"]) + "\n"


def escape(text: str) -> str:
    """Text as LaTeX prints it, in ASCII; letters lose their accents, and one not known becomes a question mark."""
    letters = (letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))
    return "".join(LATEX.get(letter, letter if letter.isascii() else "?") for letter in letters)


def plain(text: str) -> str:
    """Text that Markdown must not take for markup."""
    return re.sub(r"([|*`<>\\])", r"\\\1", text)
