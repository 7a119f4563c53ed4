"""Tables as text: Markdown, CSV and LaTeX. Each takes the same description and leaves nothing of it out."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Callable, Sequence

from unmask.report.table import Column, Entry, Table

LONG = 30  # letters that a column of a page can hold without a break
MOST_COLUMNS = 10  # that a page can hold at its own size
LATEX_SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "×": r"$\times$",
    "–": r"--",
    "−": r"$-$",
    "→": r"$\to$",
    "τ": r"$\tau$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "±": r"$\pm$",
    "÷": r"$\div$",
    "·": r"$\cdot$",
    "≈": r"$\approx$",
    "…": r"\ldots{}",
    "—": "---",
    "’": "'",
    "“": "``",
    "”": "''",
}


def markdown(table: Table) -> str:
    """A heading, a pipe table, the notes as a list; the best of a column is bold."""
    heads = [column.title for column in table.columns]
    rules = [":--" if column.words else "--:" for column in table.columns]
    lines = [f"## {plain(table.title)}", "", _pipes(heads), f"|{'|'.join(rules)}|"]
    lines += [
        _pipes([_joined(table.entry(row, column), "**", "**", plain) for column in table.columns]) for row in table.rows
    ]
    if table.notes:
        lines += ["", *(f"- {plain(note)}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def csv_text(table: Table) -> str:
    """Unrounded numbers; an interval is two more columns. A header line, no title."""
    wide = {column.key: any(table.entry(row, column).low is not None for row in table.rows) for column in table.columns}
    header = [name for column in table.columns for name in _csv_names(column, wide[column.key])]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    for row in table.rows:
        values: list[str | float | None] = []
        for column in table.columns:
            entry = table.entry(row, column)
            values.append(entry.text if entry.value is None else entry.value)
            values += [entry.low, entry.high] if wide[column.key] else []
        writer.writerow(values)
    return out.getvalue()


def latex(table: Table) -> str:
    r"""A `table` environment to \input into any document that loads booktabs; ASCII only."""
    columns = table.columns
    packages, shrink, end = ("booktabs", "", "")
    if len(columns) > MOST_COLUMNS:
        packages, shrink, end = "booktabs,graphicx", "\\resizebox{\\linewidth}{!}{%\n", "}"
    lines = [
        f"% needs \\usepackage{{{packages}}}",
        "\\begin{table}[t]",
        "\\centering\\footnotesize\\setlength{\\tabcolsep}{4pt}",
        f"\\caption{{{escape(table.title)}}}",
        f"\\label{{tab:{re.sub('[^a-zA-Z0-9-]', '-', table.name)}}}",
        f"{shrink}\\begin{{tabular}}{{@{{}}{''.join(_latex_alignments(table))}@{{}}}}",
        "\\toprule",
        " & ".join(escape(column.title) for column in columns) + r" \\",
        "\\midrule",
    ]
    for at, row in enumerate(table.rows):
        if at in table.sections:
            lines.append("\\midrule")
        # An empty group first: a row that begins with a bracket would be read as an option of the line above.
        cells = [_joined(table.entry(row, column), "\\textbf{", "}", escape, latex_interval) for column in columns]
        lines.append("{}" + " & ".join(cells) + r" \\")
    lines += ["\\bottomrule", "\\end{tabular}" + end]
    if table.notes:
        notes = "\\\\\n".join(escape(note) for note in table.notes)
        lines += ["\\par\\smallskip", f"\\begin{{minipage}}{{\\linewidth}}\\scriptsize {notes}\\end{{minipage}}"]
    return "\n".join([*lines, "\\end{table}"]) + "\n"


def _latex_alignments(table: Table) -> list[str]:
    """Numbers to the right, words to the left; columns of long words share most of the page and are broken."""
    longest = [max((len(table.entry(row, column).main) for row in table.rows), default=0) for column in table.columns]
    long = [column.words and letters > LONG for column, letters in zip(table.columns, longest, strict=True)]
    share = f"p{{{0.8 / max(2, sum(long)):.2f}\\linewidth}}"
    return [share if wide else "l" if c.words else "r" for c, wide in zip(table.columns, long, strict=True)]


def latex_interval(text: str) -> str:
    return f"{{\\scriptsize {text}}}"


def escape(text: str) -> str:
    """Text as LaTeX prints it, in ASCII; letters lose their accents, and one not known becomes a question mark."""
    return "".join(LATEX_SPECIAL.get(letter) or _ascii(letter) for letter in text)


def _ascii(letter: str) -> str:
    """Control characters, as a broken name may hold, are no text either."""
    bare = "".join(part for part in unicodedata.normalize("NFKD", letter) if not unicodedata.combining(part))
    return bare if bare.isascii() and bare.isprintable() and not set(bare) & LATEX_SPECIAL.keys() else "?"


def _joined(
    entry: Entry,
    bold: str,
    end: str,
    escaped: Callable[[str], str],
    interval: Callable[[str], str] = lambda text: text,
) -> str:
    main = escaped(entry.main)
    main = f"{bold}{main}{end}" if entry.best else main
    return f"{main} {interval(escaped(entry.interval))}" if entry.interval else main


def _csv_names(column: Column, wide: bool) -> list[str]:
    return [column.key, f"{column.key}_low", f"{column.key}_high"] if wide else [column.key]


def _pipes(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def plain(text: str) -> str:
    """Text that Markdown must not take for markup."""
    return re.sub(r"([|*`<>\\])", r"\\\1", text)
