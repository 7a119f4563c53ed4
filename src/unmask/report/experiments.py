"""The tables of each experiment; those of curves, response lengths, speed and weights have files of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from unmask.evals import statistics
from unmask.report import paper
from unmask.report.curves import curve_tables
from unmask.report.lengths import length_tables
from unmask.report.measured import Measured, baseline_of, estimate_of, paired, together, value_of
from unmask.report.published import changes, with_traits
from unmask.report.results import (
    Line,
    details_table,
    distinct,
    groups,
    labels,
    may_be_best,
    p_value,
    questions,
    results_table,
    slug,
)
from unmask.report.speed import speed_tables
from unmask.report.sweeps import VARIANTS, ablations, sweep_of, sweeps, unique, without_copies
from unmask.report.table import Column, Entry, Table, estimate, mark_best, number, words
from unmask.report.weights import weight_tables

SIGNS = {"threshold": "τ", "iterations": "R", "block_size": "block"}


def main_tables(cells: Sequence[Measured]) -> list[Table]:
    """For every model an overview of its tasks, then one table a task, each with its details."""
    found = []
    for of_model in groups(cells, lambda cell: cell.cell.model):
        tasks = groups(without_copies(of_model), questions)
        # Of a task that was run with several numbers of items, the overview has the most.
        largest = [max(same, key=lambda cells: cells[0].cell.items) for same in groups(tasks, _task)]
        found += [_overview(largest)] if len(largest) > 1 else []
        for same in tasks:
            lines = [
                Line(label=label, cell=cell, printed=paper.main(cell))
                for label, cell in zip(labels(same), same, strict=True)
            ]
            name = distinct(f"main-{same[0].model}-{same[0].cell.task}", [table.name for table in found])
            title = f"{same[0].model}, {same[0].cell.task}"
            # A run's baseline may be a copy: it is no row of its own, but a speed-up is told over it.
            pool = [cell for cell in of_model if questions(cell) == questions(same[0])]
            found += [results_table(name, title, lines, pool), details_table(f"{name}-details", title, lines)]
            found += duel_tables(f"{name}-duels", title, lines)
    return found


def _task(cells: Sequence[Measured]) -> str:
    return cells[0].cell.task


def duel_tables(name: str, title: str, lines: Sequence[Line], hero: str = "mean_field") -> list[Table]:
    """Mean-field against every other row on the same items; nothing where it is not there exactly once."""
    own = [line for line in lines if line.cell.policy == hero and line.cell.complete]
    rivals = [line for line in lines if line.cell.policy != hero and line.cell.complete]
    tests = [paired(own[0].cell, line.cell) for line in rivals] if len(own) == 1 else []
    met = [(line, test) for line, test in zip(rivals, tests, strict=False) if test is not None]
    if not met:
        return []
    rows = []
    for (line, test), corrected in zip(met, statistics.holm([test.p for _, test in met]), strict=True):
        entries = {"label": words(line.label), "won_lost": words(f"{test.only_first} : {test.only_second}")}
        entries |= {"p": p_value(test.p), "p_corrected": p_value(corrected)}
        rows.append(entries | _differences(own[0].cell, line.cell))
    columns = [
        Column(key="label", title=f"{own[0].label} against", words=True),
        Column(key="accuracy_difference", title="accuracy, points"),
        Column(key="won_lost", title="won : lost", spare=1),
        Column(key="p", title="p", spare=2),
        Column(key="p_corrected", title="p, corrected"),
        Column(key="passes_ratio", title="passes over theirs"),
    ]
    notes = [
        "Paired: the same items, resampled together for the 95 % intervals. Won : lost: items that only mean_field, or "
        "only the other, solves; p: exact two-sided McNemar test, corrected for the number of rows by Holm's method.",
    ]
    return [
        Table(name=slug(name), title=f"{title}: {own[0].label} against each", columns=columns, rows=rows, notes=notes)
    ]


def _differences(ours: Measured, theirs: Measured) -> dict[str, Entry]:
    sums = together(ours, theirs)
    if sums is None:
        return {}
    gained = estimate_of(lambda a, b: 100 * (a["correct"] - b["correct"]) / a["items"], *sums)
    spent = estimate_of(lambda a, b: a["passes"] / b["passes"], *sums)
    return {"accuracy_difference": estimate(gained), "passes_ratio": estimate(spent, 2, "×")}


def _overview(tasks: Sequence[Sequence[Measured]]) -> Table:
    """Accuracy and passes of every policy on every task, without intervals: what to look at first."""
    columns = [Column(key="label", title="policy", words=True)]
    rows: dict[str, dict[str, Entry]] = {}
    for same in tasks:
        task = same[0].cell.task
        columns.append(Column(key=f"{task}_accuracy", title=f"{task} %", wanted="high"))
        columns.append(Column(key=f"{task}_passes", title="NFE", wanted="low"))
        for cell, label in zip(same, labels(same, block=True), strict=True):
            accuracy, passes = cell.accuracy(), cell.passes()
            row = rows.setdefault(label, {"label": words(label)})
            if cell.complete:
                row[f"{task}_accuracy"] = number(accuracy.value if accuracy else None)
                row[f"{task}_passes"] = number(passes.value if passes else None)
    fair = all(may_be_best(cell) for same in tasks for cell in same if cell.complete)
    lines = mark_best(columns, list(rows.values()), [fair] * len(rows))
    notes = ["Finished cells only. Intervals and paired tests are in the table of each task."]
    model = tasks[0][0].model
    return Table(name=slug(f"overview-{model}"), title=f"{model}: overview", columns=columns, rows=lines, notes=notes)


def ablation_tables(cells: Sequence[Measured]) -> list[Table]:
    """Mean-field without its parts, at one setting."""
    found = []
    for variants in ablations(cells):
        lines = [
            Line(
                label=f"{cell.policy}: {VARIANTS[name]}" if name == "baseline" else VARIANTS[name],
                cell=cell,
                printed=paper.ablation(cell, name),
            )
            for name, cell in variants.items()
        ]
        first = next(cell for name, cell in variants.items() if name != "baseline")
        name = distinct(f"ablation-{first.model}-{first.cell.task}", [table.name for table in found])
        setting = {"τ": first.cell.policy["threshold"]} | changes(first, "threshold", "interaction", "iterations")
        title = ", ".join(["Ablation", first.model, first.cell.task, *(f"{key} = {setting[key]}" for key in setting)])
        found += [results_table(name, title, lines, cells), details_table(f"{name}-details", title, lines)]
    return found


def sensitivity_tables(cells: Sequence[Measured]) -> list[Table]:
    """Mean-field as its threshold and its number of updates are turned, one at a time."""
    found = []
    for same in groups(unique(cells), questions):
        lines: list[Line] = []
        sections = []
        for knob in ("threshold", "iterations"):
            sweep = sweep_of(same, knob)
            baseline = baseline_of(sweep[0], same) if sweep else None
            if baseline is not None and not lines:
                label = f"{baseline.policy}: {VARIANTS['baseline']}"
                lines.append(Line(label=label, cell=baseline, printed=paper.sensitivity(baseline, None)))
            sections.append(len(lines))
            lines += [
                Line(
                    label=with_traits(f"{SIGNS[knob]} = {value_of(cell, knob)}", changes(cell, knob)),
                    cell=cell,
                    printed=paper.sensitivity(cell, knob),
                )
                for cell in sweep
            ]
        if lines:
            first = same[0]
            name = distinct(f"sensitivity-{first.model}-{first.cell.task}", [table.name for table in found])
            title = f"Sensitivity of mean-field, {first.model}, {first.cell.task}"
            found += [
                results_table(name, title, lines, same, sections=[at for at in sections if at]),
                details_table(f"{name}-details", title, lines),
            ]
    return found


def block_tables(cells: Sequence[Measured]) -> list[Table]:
    """Every policy that was run with more than one block size."""
    found = []
    for same in groups(unique(cells), questions):
        turned = sweeps(same, "block_size")
        names = labels(same)
        lines, sections = [], []
        for sweep in turned:
            sections += [len(lines)] if lines else []
            lines += [Line(label=names[same.index(cell)], cell=cell) for cell in sweep]
        if lines:
            name = distinct(f"blocks-{same[0].model}-{same[0].cell.task}", [table.name for table in found])
            title = f"Block size, {same[0].model}, {same[0].cell.task}"
            found += [
                results_table(name, title, lines, same, sections=sections, own_block=True),
                details_table(f"{name}-details", title, lines),
            ]
    return found


TABLES: dict[str, Callable[[Sequence[Measured]], list[Table]]] = {
    "main": main_tables,
    "ablation": ablation_tables,
    "sensitivity": sensitivity_tables,
    "blocks": block_tables,
    "curves": curve_tables,
    "lengths": length_tables,
    "speed": speed_tables,
    "weights": weight_tables,
}
