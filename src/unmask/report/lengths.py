"""More room than an answer needs: every task at several response lengths, one table a model and policy."""

from __future__ import annotations

from collections.abc import Sequence

from unmask.report.measured import Measured, paired
from unmask.report.published import named
from unmask.report.results import INTERVALS, describe, distinct, groups, may_be_best, p_value, questions
from unmask.report.sweeps import rest, unique
from unmask.report.table import Column, Entry, Table, estimate, mark_best, number, without_empty_columns, words

NOTES = [
    "NFE: forward passes per item. Won : lost: items that only this length, or only the shortest of the task, solves; "
    "p: exact two-sided McNemar test, not corrected for the number of rows.",
]


def length_tables(cells: Sequence[Measured]) -> list[Table]:
    """Rows are tasks and lengths; each length is compared with the shortest of its task."""
    found = []
    for same in groups(unique(cells), lambda cell: (cell.cell.model, named(cell))):
        rows: list[dict[str, Entry]] = []
        sections = []
        for of_task in groups(same, lambda cell: (questions(cell), rest(cell, "max_tokens", "block_size"))):
            sections += [len(rows)] if rows else []
            ordered = sorted(of_task, key=_length)
            rows += [_row(cell, ordered[0]) for cell in ordered]
        first = same[0]
        columns = [
            Column(key="task", title="task", words=True),
            Column(key="max_tokens", title="tokens"),
            Column(key="block_size", title="block"),
            Column(key="unfinished", title="items", words=True),
            Column(key="accuracy", title="accuracy %"),
            Column(key="passes", title="NFE"),
            Column(key="answer", title="answer tokens", spare=2),
            Column(key="won_lost", title="won : lost", spare=3),
            Column(key="p", title="p", spare=1),
        ]
        columns = without_empty_columns(columns, rows)
        name = distinct(f"lengths-{first.model}-{first.policy}", [table.name for table in found])
        title = f"Response length, {first.model}, {named(first)}: {describe(same)}"
        notes = [INTERVALS, *NOTES]
        rows = mark_best(columns, rows, [may_be_best(cell) for cell in same])
        found.append(Table(name=name, title=title, columns=columns, rows=rows, notes=notes, sections=sections))
    return found


def _row(cell: Measured, shortest: Measured) -> dict[str, Entry]:
    answer = float(cell.columns["answer"].mean()) if cell.done else None
    row = {
        "task": words(cell.cell.task),
        "max_tokens": number(_length(cell), 0),
        "block_size": number(cell.cell.settings["block_size"], 0),
        "accuracy": estimate(cell.accuracy()),
        "passes": estimate(cell.passes()),
        "answer": number(answer),
    }
    if not cell.complete:
        row["unfinished"] = words(f"{cell.done} of {cell.cell.items or '?'}")
    if (test := paired(cell, shortest)) is not None:
        row |= {"won_lost": words(f"{test.only_first} : {test.only_second}"), "p": p_value(test.p)}
    return row


def _length(cell: Measured) -> int:
    return cell.cell.settings["max_tokens"]
