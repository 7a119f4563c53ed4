"""Weights in 8 bits beside those they come from: every task and format, one table a checkpoint and policy."""

from __future__ import annotations

import json
from collections.abc import Sequence

from unmask.report.measured import Measured, paired
from unmask.report.published import named
from unmask.report.results import INTERVALS, describe, distinct, groups, may_be_best, p_value
from unmask.report.sweeps import unique
from unmask.report.table import Column, Entry, Table, estimate, mark_best, without_empty_columns, words

FORMATS = ("int8", "fp8")  # as models/quantized.py knows them, which needs torch
NOTES = [
    "NFE: forward passes per item. Won : lost: items that only this format, or only the weights as they were, solves; "
    "p: exact two-sided McNemar test, not corrected for the number of rows.",
]


def weight_tables(cells: Sequence[Measured]) -> list[Table]:
    """Rows are tasks and formats; each format is compared with the weights that are not quantised."""
    found = []
    for same in groups(unique(cells), lambda cell: (_checkpoint(cell), named(cell))):
        rows: list[dict[str, Entry]] = []
        ordered: list[Measured] = []
        sections = []
        for of_task in groups(same, _question):
            sections += [len(rows)] if rows else []
            plain = next((cell for cell in of_task if _format(cell) is None), None)
            of_task.sort(key=lambda cell: (None, *FORMATS).index(_format(cell)))
            rows += [_row(cell, plain) for cell in of_task]
            ordered += of_task
        columns = [
            Column(key="task", title="task", words=True),
            Column(key="weights", title="weights", words=True),
            Column(key="unfinished", title="items", words=True),
            Column(key="accuracy", title="accuracy %"),
            Column(key="passes", title="NFE"),
            Column(key="won_lost", title="won : lost", spare=2),
            Column(key="p", title="p", spare=1),
        ]
        columns = without_empty_columns(columns, rows)
        checkpoint = _checkpoint(same[0]).rstrip("/").rsplit("/", 1)[-1]
        name = distinct(f"weights-{checkpoint}-{same[0].policy}", [table.name for table in found])
        title = f"Weights in 8 bits, {checkpoint}, {named(same[0])}: {describe(same)}"
        rows = mark_best(columns, rows, [may_be_best(cell) for cell in ordered])
        notes = [INTERVALS, *NOTES]
        found.append(Table(name=name, title=title, columns=columns, rows=rows, notes=notes, sections=sections))
    return found


def _row(cell: Measured, plain: Measured | None) -> dict[str, Entry]:
    row = {
        "task": words(cell.cell.task),
        "weights": words(_format(cell) or cell.cell.dtype),
        "accuracy": estimate(cell.accuracy()),
        "passes": estimate(cell.passes()),
    }
    if not cell.complete:
        row["unfinished"] = words(f"{cell.done} of {cell.cell.items or '?'}")
    if (test := paired(cell, plain)) is not None:
        row |= {"won_lost": words(f"{test.only_first} : {test.only_second}"), "p": p_value(test.p)}
    return row


def _format(cell: Measured) -> str | None:
    found = cell.cell.model.rpartition("+")[2]
    return found if found in FORMATS else None


def _checkpoint(cell: Measured) -> str:
    """The name of the model without that of a format."""
    found = _format(cell)
    return cell.cell.model if found is None else cell.cell.model.removesuffix(f"+{found}")


def _question(cell: Measured) -> tuple[str, str | None]:
    """Everything that makes a cell, but the format."""
    asked = cell.cell.to_dict() | {"model": _checkpoint(cell), "paper": None}
    return json.dumps(asked, sort_keys=True), cell.about.get("weights")
