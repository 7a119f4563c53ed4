"""What a table says, and how it looks as text: Markdown, CSV and LaTeX. Each form leaves nothing out."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from unmask.report.statistics import Estimate

NOTHING = "–"
LONG = 30  # letters that a column of a page can hold without a break
MOST_COLUMNS = 10  # that a page can hold at its own size
LETTERS = '\\{}$&#%_~^<>|"×–−→τ≤≥±÷·≈…—’“”'
IN_LATEX = (
    r"\textbackslash{} \{ \} \$ \& \# \% \_ \textasciitilde{} \textasciicircum{} \textless{} \textgreater{} "
    r"\textbar{} '' $\times$ -- $-$ $\to$ $\tau$ $\leq$ $\geq$ $\pm$ $\div$ $\cdot$ $\approx$ \ldots{} --- ' `` ''"
)
LATEX = dict(zip(LETTERS, IN_LATEX.split(), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What stands in one place of a table: words, or a number with its interval, rounded and in full."""

    text: str = NOTHING  # the part that bold print applies to
    interval: str = ""
    value: float | int | None = None
    low: float | None = None
    high: float | None = None
    best: bool = False

    def __str__(self) -> str:
        return f"{self.text} {self.interval}".rstrip()

    def to_plain(self) -> Any:
        """A string, a number or None, or a number with its interval."""
        if self.value is None:
            return None if self.text == NOTHING else self.text
        return self.value if self.low is None else {"value": self.value, "low": self.low, "high": self.high}


Row = dict[str, Entry]  # column key -> entry; an empty entry may be missing


@dataclass(frozen=True, slots=True)
class Column:
    """`key` is its name for machines, `title` for people."""

    key: str
    title: str
    words: bool = False  # left-aligned text
    wanted: str | None = None  # 'high' or 'low': which value is the best of the column
    spare: int = 0  # a narrow screen leaves out the column with the highest number first; 0: never


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """`name` is a file name."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    notes: Sequence[str] = ()
    details: bool = False  # for files: too long for a terminal
    sections: Sequence[int] = ()  # rows above which a line is drawn

    def entries(self, row: Row) -> list[Entry]:
        """The entry of every column."""
        return [row.get(column.key, Entry()) for column in self.columns]

    def to_dict(self) -> dict[str, Any]:
        columns = {column.key: column.title for column in self.columns}
        entries = [[entry.to_plain() for entry in self.entries(row)] for row in self.rows]
        rows = [dict(zip(columns, row, strict=True)) for row in entries]
        return {"name": self.name, "title": self.title, "columns": columns, "rows": rows, "notes": list(self.notes)}


def words(text: str) -> Entry:
    return Entry(text=text or NOTHING)


def number(value: float | int | None, decimals: int = 1, suffix: str = "") -> Entry:
    return Entry() if value is None else Entry(text=_rounded(decimals, value) + suffix, value=value)


def estimate(found: Estimate | None, decimals: int = 1, suffix: str = "") -> Entry:
    """An interval without width is left out: all items are equal, or there is only one."""
    entry = number(found and found.value, decimals, suffix)
    low, high = (found and found.interval) or (0.0, 0.0)
    return entry if low == high else replace(entry, interval=f"[{_rounded(decimals, low, high)}]", low=low, high=high)


def _rounded(decimals: int, *values: float | int) -> str:
    return ", ".join(f"{value:.{decimals}f}" for value in values).replace("-", "−")


def mark_best(columns: Sequence[Column], rows: Sequence[Row], fair: Sequence[bool]) -> list[Row]:
    """The rows with the best value of each column marked: several where they are equal, none where all are.

    A row that is not `fair` is neither marked nor compared with.
    """
    marked = [dict(row) for row in rows]
    for column in columns:
        of_row = [row.get(column.key, Entry()).value if ok else None for row, ok in zip(rows, fair, strict=True)]
        values = {value for value in of_row if value is not None}
        if column.wanted and len(values) > 1:
            best = max(values) if column.wanted == "high" else min(values)
            for row, value in zip(marked, of_row, strict=True):
                if value == best:
                    row[column.key] = replace(row[column.key], best=True)
    return marked


def markdown(table: Table) -> str:
    """A heading, a pipe table, the notes as a list; the best of a column is bold."""

    def cell(entry: Entry) -> str:
        bold = "**" if entry.best else ""
        return f"{bold}{plain(entry.text)}{bold} {entry.interval}".rstrip()

    rows = [[column.title for column in table.columns], *([cell(e) for e in table.entries(row)] for row in table.rows)]
    head, *body = [f"| {' | '.join(row)} |" for row in rows]
    rule = "|".join(":--" if column.words else "--:" for column in table.columns)
    notes = ["", *(f"- {plain(note)}" for note in table.notes)] if table.notes else []
    return "\n".join([f"## {plain(table.title)}", "", head, f"|{rule}|", *body, *notes]) + "\n"


def csv_text(table: Table) -> str:
    """Unrounded numbers; an interval is two more columns. A header line, no title."""
    keys, lines = [column.key for column in table.columns], []
    for row in table.rows:
        line: dict[str, Any] = {}
        for key, entry in zip(keys, table.entries(row), strict=True):
            line[key] = entry.to_plain() if entry.value is None else entry.value
            line |= {} if entry.low is None else {f"{key}_low": entry.low, f"{key}_high": entry.high}
        lines.append(line)
    used = {*keys, *(name for line in lines for name in line)}
    names = [name for key in keys for name in (key, f"{key}_low", f"{key}_high") if name in used]
    out = io.StringIO()
    writer = csv.DictWriter(out, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def latex(table: Table) -> str:
    r"""A `table` environment to \input into any document that loads booktabs; ASCII only."""

    def cell(entry: Entry) -> str:
        text = f"\\textbf{{{escape(entry.text)}}}" if entry.best else escape(entry.text)
        return f"{text} {{\\scriptsize {escape(entry.interval)}}}" if entry.interval else text

    packages, begin, end = "booktabs", "", ""
    if len(table.columns) > MOST_COLUMNS:
        packages, begin, end = "booktabs,graphicx", "\\resizebox{\\linewidth}{!}{%\n", "}"
    lines = [
        f"% needs \\usepackage{{{packages}}}",
        "\\begin{table}[t]",
        "\\centering\\footnotesize\\setlength{\\tabcolsep}{4pt}",
        f"\\caption{{{escape(table.title)}}}",
        f"\\label{{tab:{re.sub('[^a-zA-Z0-9-]', '-', table.name)}}}",
        f"{begin}\\begin{{tabular}}{{@{{}}{''.join(_alignments(table))}@{{}}}}",
        "\\toprule",
        " & ".join(escape(column.title) for column in table.columns) + r" \\",
        "\\midrule",
    ]
    for at, row in enumerate(table.rows):
        lines += ["\\midrule"] if at in table.sections else []
        # An empty group first: a row that begins with a bracket would be read as an option of the line above.
        lines.append("{}" + " & ".join(cell(entry) for entry in table.entries(row)) + r" \\")
    lines += ["\\bottomrule", "\\end{tabular}" + end]
    if table.notes:
        notes = "\\\\\n".join(escape(note) for note in table.notes)
        lines += ["\\par\\smallskip", f"\\begin{{minipage}}{{\\linewidth}}\\scriptsize {notes}\\end{{minipage}}"]
    return "\n".join([*lines, "\\end{table}"]) + "\n"


def _alignments(table: Table) -> list[str]:
    """Numbers to the right, words to the left; columns of long words share most of the page and are broken."""
    rows = [table.entries(row) for row in table.rows]
    long = [column.words and any(len(row[at].text) > LONG for row in rows) for at, column in enumerate(table.columns)]
    share = f"p{{{0.8 / max(2, sum(long)):.2f}\\linewidth}}"
    return [share if broken else "l" if c.words else "r" for c, broken in zip(table.columns, long, strict=True)]


def escape(text: str) -> str:
    """Text as LaTeX prints it, in ASCII; letters lose their accents, and one not known becomes a question mark."""

    def in_ascii(letter: str) -> str:
        bare = "".join(part for part in unicodedata.normalize("NFKD", letter) if not unicodedata.combining(part))
        return bare if bare.isascii() and bare.isprintable() and not set(bare) & LATEX.keys() else "?"

    return "".join(LATEX.get(letter) or in_ascii(letter) for letter in text)


def plain(text: str) -> str:
    """Text that Markdown must not take for markup."""
    return re.sub(r"([|*`<>\\])", r"\\\1", text)
