"""What a table says, and how it looks as text: Markdown, CSV and LaTeX. Each form leaves nothing out."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from unmask.report.statistics import Estimate

NOTHING = "–"
LONG = 30  # letters; a LaTeX column of longer words is broken into lines
LETTERS = '\\{}$&#%_~^<>|"×–−→τ≤≥±÷·≈—’“”'
IN_LATEX = (
    r"\textbackslash{} \{ \} \$ \& \# \% \_ \textasciitilde{} \textasciicircum{} \textless{} \textgreater{} "
    r"\textbar{} '' $\times$ -- $-$ $\to$ $\tau$ $\leq$ $\geq$ $\pm$ $\div$ $\cdot$ $\approx$ --- ' `` ''"
)
LATEX = dict(zip(LETTERS, IN_LATEX.split(), strict=True))

Value = str | float | int | Estimate | None  # None and the empty text: nothing to say
Row = dict[str, Value]  # column key -> value, unrounded; a value that says nothing may be missing


@dataclass(frozen=True, slots=True)
class Column:
    """`key` is its name for machines, `title` for people."""

    key: str
    title: str
    decimals: int | None = None  # of its numbers; None: words, to the left
    suffix: str = ""
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
        """Every row as it is printed. Several values of a column are the best where they are equal, none where all are."""
        fair, columns = self.fair or [False] * len(self.rows), []
        for column in self.columns:
            values = [row.get(column.key) for row in self.rows]
            numbers = [v.value if isinstance(v, Estimate) else v for v in values]
            known = {number for number, ok in zip(numbers, fair, strict=True) if ok and number is not None}
            best = (max if column.wanted == "high" else min)(known) if column.wanted and len(known) > 1 else None
            marks = [ok and best is not None and number == best for number, ok in zip(numbers, fair, strict=True)]
            columns.append([Shown(*printed(v, column), mark) for v, mark in zip(values, marks, strict=True)])
        return [list(row) for row in zip(*columns, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        about = {"name": self.name, "title": self.title, "notes": list(self.notes)}
        rows = [record({column.key: row.get(column.key) for column in self.columns}) for row in self.rows]
        return about | {"columns": {column.key: column.title for column in self.columns}, "rows": rows}


def printed(value: Value, column: Column) -> tuple[str, str]:
    """A rounded value and its interval. An interval without width says that all items are equal: it is left out."""

    def rounded(*numbers: float) -> str:
        return ", ".join(f"{number:.{column.decimals or 0}f}" for number in numbers).replace("-", "−")

    if value is None or isinstance(value, str):
        return value or NOTHING, ""
    if isinstance(value, Estimate):
        low, high = value.interval or (0.0, 0.0)
        return rounded(value.value) + column.suffix, f"[{rounded(low, high)}]" if low < high else ""
    least = 10 ** -(column.decimals or 0)
    return f"< {least:g}" if 0 < value < least else rounded(value) + column.suffix, ""


def record(row: Row) -> dict[str, Any]:
    """A row as plain data: unrounded numbers, and two more keys for an interval."""
    found: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, Estimate):
            low, high = value.interval or (None, None)
            found |= {key: value.value, f"{key}_low": low, f"{key}_high": high}
        elif value not in (None, ""):
            found[key] = value
    return found


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
    """A header line, then the records of the table."""
    records, out = table.to_dict()["rows"], io.StringIO()
    used = set[str]().union(*records)
    keys = [column.key + end for column in table.columns for end in ("", "_low", "_high")]
    writer = csv.DictWriter(out, [key for key in keys if key in used], lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()


def latex(table: Table) -> str:
    r"""A `table` environment to \input into a document with booktabs and adjustbox; ASCII only."""

    def cell(shown: Shown) -> str:
        text = f"\\textbf{{{escape(shown.text)}}}" if shown.best else escape(shown.text)
        return f"{text} {{\\scriptsize {escape(shown.interval)}}}" if shown.interval else text

    def alignment(column: Column) -> str:
        is_long = any(len(str(row.get(column.key))) > LONG for row in table.rows)
        return "r" if column.decimals is not None else "p{0.3\\linewidth}" if is_long else "l"

    lines = [
        "% needs \\usepackage{booktabs,adjustbox}",
        "\\begin{table}[t]",
        "\\centering\\footnotesize\\setlength{\\tabcolsep}{4pt}",
        f"\\caption{{{escape(' '.join([f'{table.title}.', *table.notes]))}}}",
        f"\\label{{tab:{re.sub('[^a-zA-Z0-9-]', '-', table.name)}}}",
        "\\begin{adjustbox}{max width=\\linewidth}",
        f"\\begin{{tabular}}{{@{{}}{''.join(map(alignment, table.columns))}@{{}}}}",
        f"\\toprule\n{' & '.join(escape(column.title) for column in table.columns)} \\\\\n\\midrule",
    ]
    for at, row in enumerate(table.shown()):
        lines += ["\\midrule"] if at in table.sections else []
        # An empty group first: a row that begins with a bracket would be read as an option of the line above.
        lines.append("{}" + " & ".join(map(cell, row)) + r" \\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", "\\end{adjustbox}", "\\end{table}"]) + "\n"


def escape(text: str) -> str:
    """Text as LaTeX prints it, in ASCII; letters lose their accents, and one not known becomes a question mark."""
    letters = (letter for letter in unicodedata.normalize("NFKD", text) if not unicodedata.combining(letter))
    return "".join(LATEX.get(letter, letter if letter.isascii() else "?") for letter in letters)


def plain(text: str) -> str:
    """Text that Markdown must not take for markup."""
    return re.sub(r"([|*`<>\\])", r"\\\1", text)
