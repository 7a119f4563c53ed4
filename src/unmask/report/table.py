"""What a table says, apart from how it looks: one description for the terminal, Markdown, CSV, LaTeX and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from unmask.report.measured import Estimate

NOTHING = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A number with its interval, or words; neither is an empty place."""

    text: str = ""
    value: float | int | None = None
    low: float | None = None
    high: float | None = None
    decimals: int = 1
    suffix: str = ""
    best: bool = False

    @property
    def main(self) -> str:
        """What bold print applies to."""
        if self.value is None or self.text:
            return self.text or NOTHING
        return self._figure(self.value) + self.suffix

    @property
    def interval(self) -> str:
        if self.low is None or self.high is None:
            return ""
        return f"[{self._figure(self.low)}, {self._figure(self.high)}]"

    def _figure(self, value: float | int) -> str:
        return f"{value:.{self.decimals}f}".replace("-", "−")

    def to_plain(self) -> Any:
        """A string, a number or None, or a number with its interval."""
        if self.value is None:
            return self.text or None
        if self.low is None:
            return self.value
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """`key` is its name for machines, `title` for people."""

    key: str
    title: str
    words: bool = False  # left-aligned text
    wanted: str | None = None  # 'high' or 'low': which value is the best of the column
    spare: int = 0  # the higher, the sooner a narrow screen goes without it; 0: never


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """`name` is a file name; a row maps column keys to entries."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[dict[str, Entry]]
    notes: Sequence[str] = field(default=())
    details: bool = False  # for files: too long for a terminal
    sections: Sequence[int] = field(default=())  # rows above which a line is drawn

    def entry(self, row: dict[str, Entry], column: Column) -> Entry:
        return row.get(column.key, Entry())

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "title": self.title,
            "columns": {column.key: column.title for column in self.columns},
            "rows": [{column.key: self.entry(row, column).to_plain() for column in self.columns} for row in self.rows],
            "notes": list(self.notes),
        }


def words(text: str) -> Entry:
    return Entry(text=text)


def number(value: float | int | None, decimals: int = 1, suffix: str = "") -> Entry:
    return Entry(value=value, decimals=decimals, suffix=suffix)


def estimate(found: Estimate | None, decimals: int = 1, suffix: str = "") -> Entry:
    if found is None:
        return Entry()
    # An interval without width says nothing: all items are equal, or there is only one.
    wide = found.interval is not None and found.interval[0] < found.interval[1]
    low, high = found.interval if wide else (None, None)
    return Entry(value=found.value, low=low, high=high, decimals=decimals, suffix=suffix)


def without_empty_columns(columns: Sequence[Column], rows: Sequence[dict[str, Entry]]) -> list[Column]:
    """The columns in which at least one row says something."""
    return [column for column in columns if any(row.get(column.key, Entry()).main != NOTHING for row in rows)]


def mark_best(
    columns: Sequence[Column], rows: Sequence[dict[str, Entry]], eligible: Sequence[bool]
) -> list[dict[str, Entry]]:
    """The rows with the best value of each column marked: several where they are equal, none where all are."""
    marked = [dict(row) for row in rows]
    for column in columns:
        values = [
            row[column.key].value if fair and column.key in row else None
            for row, fair in zip(rows, eligible, strict=True)
        ]
        known = [value for value in values if value is not None]
        if column.wanted is None or len(set(known)) < 2:
            continue
        best = max(known) if column.wanted == "high" else min(known)
        for row, value in zip(marked, values, strict=True):
            if value == best:
                row[column.key] = replace(row[column.key], best=True)
    return marked
