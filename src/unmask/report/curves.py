"""Accuracy over passes as a policy's knob is turned: the points, and the area under them (AUP).

Several runs may hold parts of one curve, from whatever device. A cell that is not finished is no point of a curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unmask.evals import statistics
from unmask.report.measured import Estimate, Measured, common_items
from unmask.report.published import changes, with_traits
from unmask.report.results import (
    Line,
    details_table,
    distinct,
    groups,
    labels,
    may_be_best,
    questions,
    results_table,
    slug,
)
from unmask.report.sweeps import merged
from unmask.report.table import Column, Entry, Table, estimate, mark_best, words

AUP_NOTE = (
    "AUP (accuracy under parallelism): area under accuracy over tokens per pass (answer tokens), weighted by nearness "
    "to the best accuracy of any policy on the task; larger is better. A point more than 5 points of accuracy below "
    "the slowest of its policy does not count. Intervals by resampling the items of a task for all policies together: "
    "one is wide where a point is close to that limit."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Area:
    """The AUP of one policy's curve, and which of its cells were too far below the slowest to count."""

    curve: Sequence[Measured]
    aup: Estimate
    dropped: Sequence[Measured]


def curves(cells: Sequence[Measured]) -> list[list[Measured]]:
    """The finished cells of each policy, slowest first."""
    done = [cell for cell in cells if cell.complete and cell.passes() is not None]

    def passes(cell: Measured) -> float:
        return float(-cell.columns["passes"].mean())

    return [sorted(same, key=passes) for same in groups(done, lambda cell: cell.policy)]


def curve_name(curve: Sequence[Measured]) -> str:
    """The policy, with what all its points do otherwise than published."""
    first, *others = [changes(cell) for cell in curve]
    same = {key: value for key, value in first.items() if all(other.get(key, ...) == value for other in others)}
    return with_traits(curve[0].policy, same)


def curve_tables(cells: Sequence[Measured]) -> list[Table]:
    """AUP of every policy on every task, then the points of the curves."""
    found = []
    for of_model in groups(merged(cells), lambda cell: cell.cell.model):
        tasks = groups(of_model, questions)
        areas = [areas_of(curves(same)) for same in tasks]
        found.append(_aup_table(tasks, areas))
        for same, of_task in zip(tasks, areas, strict=True):
            if of_task:
                found += _points_tables(same, of_task, [table.name for table in found])
    return found


def areas_of(finished: Sequence[Sequence[Measured]]) -> list[Area]:
    """The AUP of each curve of one task."""
    cells = [cell for curve in finished for cell in curve]
    if not cells:
        return []
    places = dict(zip(cells, common_items(cells), strict=True))
    columns = [
        [tuple(column[places[cell]] for column in _speed_and_score(cell)) for cell in curve] for curve in finished
    ]
    points = [[_point(*point) for point in curve] for curve in columns]
    best = max(accuracy for curve in points for _, accuracy in curve)
    found = []
    for curve, at, interval in zip(finished, points, statistics.aup_intervals(columns), strict=True):
        area = statistics.aup(at, best)
        whole = Estimate(value=area.value, interval=interval)
        found.append(Area(curve=curve, aup=whole, dropped=[curve[i] for i in area.dropped]))
    return found


def _aup_table(tasks: Sequence[Sequence[Measured]], areas: Sequence[Sequence[Area]]) -> Table:
    columns = [Column(key="label", title="policy", words=True)]
    rows: dict[str, dict[str, Entry]] = {}
    notes = [AUP_NOTE]
    for same, of_task in zip(tasks, areas, strict=True):
        key = f"{same[0].cell.task}_aup"
        while any(column.key == key for column in columns):
            key += "_"
        columns.append(Column(key=key, title=same[0].cell.task, wanted="high"))
        for area in of_task:
            name = curve_name(area.curve)
            rows.setdefault(name, {"label": words(name)})[key] = estimate(area.aup)
        notes += _unfinished(same)
    fair = all(may_be_best(cell) for of_task in areas for area in of_task for cell in area.curve)
    lines = mark_best(columns, list(rows.values()), [fair] * len(rows))
    model = tasks[0][0].model
    return Table(name=slug(f"aup-{model}"), title=f"AUP, {model}", columns=columns, rows=lines, notes=notes)


def _points_tables(same: Sequence[Measured], areas: Sequence[Area], taken: Sequence[str]) -> list[Table]:
    cells = [cell for area in areas for cell in area.curve]
    lines = [Line(label=label, cell=cell) for label, cell in zip(labels(cells), cells, strict=True)]
    name = distinct(f"curves-{same[0].model}-{same[0].cell.task}", taken)
    title = f"Accuracy and passes, {same[0].model}, {same[0].cell.task}"
    sections = [sum(len(area.curve) for area in areas[:number]) for number in range(1, len(areas))]
    table = results_table(name, title, lines, same, sections=sections)
    dropped = [cell for area in areas for cell in area.dropped]
    rows = [
        row | ({"aup": words("left out")} if cell in dropped else {})
        for row, cell in zip(table.rows, cells, strict=True)
    ]
    columns = [*table.columns, *([Column(key="aup", title="AUP", words=True)] if dropped else [])]
    shown = Table(
        name=table.name,
        title=table.title,
        columns=columns,
        rows=rows,
        notes=[*table.notes, *_unfinished(same)],
        sections=table.sections,
    )
    return [shown, details_table(f"{name}-details", title, lines)]


def _unfinished(cells: Sequence[Measured]) -> list[str]:
    named = zip(labels(cells), cells, strict=True)
    missing = [f"{label}, {cell.done} of {cell.cell.items or '?'} items" for label, cell in named if not cell.complete]
    return [f"{cells[0].cell.task}: left out, as not finished: {'; '.join(missing)}."] if missing else []


def _speed_and_score(cell: Measured) -> tuple:
    return cell.columns["answer"], cell.columns["passes"], cell.correct


def _point(tokens, passes, score) -> tuple[float, float]:
    return float(tokens.sum() / passes.sum()), float(100 * score.mean())
