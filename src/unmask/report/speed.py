"""Speed, measured for its own sake: few items, nothing else on the device, and where the time goes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unmask.report.measured import Estimate, Measured, baseline_of, fewer_passes, speedup
from unmask.report.results import (
    Line,
    describe,
    details_table,
    distinct,
    groups,
    labels,
    may_be_best,
    questions,
    shared_note,
    speed,
    time_notes,
)
from unmask.report.sweeps import unique
from unmask.report.table import Column, Entry, Table, estimate, mark_best, without_empty_columns, words

NOTES = [
    "TPS counts tokens as the public wrapper of the model's family does. Speed-up: TPS over that of the baseline (one "
    "token a pass) in the same run; fewer passes: the baseline's passes over the row's. In brackets: 95 % intervals, "
    "resampling of items (2,000 times).",
    "Milliseconds are for one pass, the median of the items; in brackets the range that holds 9 in 10 items, not given "
    "where the items of a batch share its time. The model does the same work in every row: how much its time differs "
    "between rows is how far the clock can be trusted.",
    "Few items: the main table has the accuracy.",
]
PARTS = ("model", "policy", "rest")


def speed_tables(cells: Sequence[Measured]) -> list[Table]:
    """One table for each model, task and way of running it."""
    found = []
    for same in groups(unique(cells), lambda cell: (questions(cell), cell.speed_key)):
        lines = [Line(label=label, cell=cell) for label, cell in zip(labels(same, block=True), same, strict=True)]
        rows = [_row(line, baseline_of(line.cell, same)) for line in lines]
        columns = [
            Column(key="label", title="policy", words=True),
            Column(key="unfinished", title="items", words=True),
            Column(key="tokens_per_second", title="TPS", wanted="high"),
            Column(key="speedup", title="speed-up", wanted="high"),
            Column(key="fewer_passes", title="fewer passes", wanted="high"),
            *(Column(key=f"{part}_pass", title=f"{part} ms", spare=at) for at, part in enumerate(PARTS, 1)),
        ]
        columns = without_empty_columns(columns, rows)
        name = distinct(f"speed-{same[0].model}-{same[0].cell.task}", [table.name for table in found])
        title = f"Speed, {same[0].model}, {same[0].cell.task}"
        table = Table(
            name=name,
            title=f"{title}: {describe(same)}",
            columns=columns,
            rows=mark_best(columns, rows, [may_be_best(cell) for cell in same]),
            notes=[*NOTES, *time_notes(same), *shared_note(lines)],
        )
        found += [table, details_table(f"{name}-details", title, lines)]
    return found


def _row(line: Line, baseline: Measured | None) -> dict[str, Entry]:
    cell = line.cell
    row = {
        "label": words(line.label),
        "tokens_per_second": speed(cell.tokens_per_second()),
        "speedup": estimate(speedup(cell, baseline), 2, "×"),
        "fewer_passes": estimate(fewer_passes(cell, baseline), 2, "×"),
    }
    if not cell.complete:
        row["unfinished"] = words(f"{cell.done} of {cell.cell.items or '?'}")
    if cell.timed and cell.done:
        row |= {f"{part}_pass": _milliseconds(cell, part) for part in PARTS}
    return row


def _milliseconds(cell: Measured, part: str) -> Entry:
    """Of one pass: the median of the items, and what holds nine in ten of them."""
    low, middle, high = np.percentile(1000 * cell.columns[part] / cell.columns["passes"], [5, 50, 95])
    return estimate(Estimate(value=float(middle), interval=(float(low), float(high)) if cell.own_time else None), 2)
