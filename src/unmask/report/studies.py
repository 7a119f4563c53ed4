"""The kinds of study: which cells of a run make the rows of which tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from unmask.report import compare, paper, statistics, tables
from unmask.report.compare import Cells, baseline_of, changes, groups, labels, questions, value_of, with_parameters
from unmask.report.measured import Measured, common_sums
from unmask.report.statistics import Estimate
from unmask.report.table import Column, Row, Table, Value, number_of
from unmask.report.tables import COMPARED, DETAILS, RESULTS, SPEED, SUMMARY, Line, Sections, weights_of

FINISHED = "Finished cells only. Intervals and paired tests are in the table of each task."
AUP = (
    "AUP (accuracy under parallelism): area under accuracy over tokens per pass (answer tokens), weighted by nearness "
    "to the best accuracy of any policy on the task; larger is better. A point more than 5 points of accuracy below "
    "the slowest of its policy does not count. Intervals by resampling the items of a task for all policies together: "
    "one is wide where a point is close to that limit."
)
SHORT = [Column("accuracy", "{} %", 1, wanted="high"), Column("passes", "NFE", 1, wanted="low")]
AREA = [Column("aup", "{}", 1, wanted="high")]


class Curve(NamedTuple):
    """The finished cells of a policy on a task, slowest first. A cell too far below the slowest does not count."""

    name: str  # the policy, with the changes that all cells share
    cells: Cells
    aup: Estimate | None
    dropped: Cells


def curves(cells: Cells) -> list[Curve]:
    """The curves of all policies on one task. Several runs on several devices may hold parts of one curve."""
    done = [cell for cell in cells if cell.complete and cell.passes() is not None]
    sums = dict(zip(done, common_sums(done), strict=True))
    speed = {cell: own["answer"] / own["passes"] for cell, own in sums.items()}
    accuracy = {cell: 100 * own["correct"] / own["items"] for cell, own in sums.items()}
    found = []
    for same in groups(done, lambda cell: cell.policy):
        line = sorted(same, key=lambda cell: -cell.columns["passes"].mean())
        points = [np.column_stack([values[cell] for cell in line]) for values in (speed, accuracy)]
        # Every resample is a table of its own, with its own best accuracy and its own points that do not count.
        area, kept = statistics.aup(*points, np.max(list(accuracy.values()), axis=0))
        dropped = [cell for cell, counts in zip(line, kept[0], strict=True) if not counts]
        first, *others = [changes(cell) for cell in line]
        common = {key: value for key, value in first.items() if all(other.get(key, ...) == value for other in others)}
        found.append(Curve(with_parameters(line[0].policy, common), line, statistics.estimate(area), dropped))
    return found


def _in_short(same: Cells) -> dict[str, list[Value]]:
    """Accuracy and passes of every policy on one task, without intervals."""
    done = {label: cell for cell, label in labels(same, block=True).items() if cell.complete}
    return {label: [number_of(cell.accuracy()), number_of(cell.passes())] for label, cell in done.items()}


def _areas(same: Cells) -> dict[str, list[Value]]:
    """The AUP of every policy on one task."""
    return {curve.name: [curve.aup] for curve in curves(same)}


def _pivots(kind: str, cells: Cells) -> list[Table]:
    """A table for each model, with columns for each task: an overview for a main study, the AUP for curves."""
    found = []
    for of_model in groups(cells, lambda cell: cell.cell.model):
        of_tasks, model = groups(of_model, lambda cell: cell.cell.task), of_model[0].model
        # A task that was run with several numbers of items is shown with the largest.
        tasks = [max(groups(of_task, questions), key=lambda same: same[0].cell.items) for of_task in of_tasks]
        name, title, note, columns_of, values_of = "overview", f"{model}: overview", FINISHED, SHORT, _in_short
        if kind == "curves":
            name, title, note, columns_of, values_of = "aup", f"AUP, {model}", AUP, AREA, _areas
        elif len(tasks) == 1:
            continue
        columns, rows, notes = [Column("label", "policy")], dict[str, Row](), [note]
        for same in tasks:
            task = same[0].cell.task
            own = [replace(c, key=f"{task}_{c.key}", title=c.title.format(task)) for c in columns_of]
            columns += own
            for label, values in values_of(same).items():
                row = rows.setdefault(label, {"label": label})
                row |= {column.key: value for column, value in zip(own, values, strict=True)}
            missing = [f"{label}, {cell.items} items" for cell, label in labels(same).items() if not cell.complete]
            notes += [f"{task}: left out, as not finished: {'; '.join(missing)}."] if missing else []
        fair = [all(tables.may_be_best(cell) for same in tasks for cell in same if cell.complete)] * len(rows)
        name = file_name(f"{name}-{model}")
        found.append(Table(name=name, title=title, columns=columns, rows=[*rows.values()], notes=notes, fair=fair))
    return found


def _line(label: str, cell: Measured, pool: Cells, **more: Row) -> Line:
    return Line(label=label, cell=cell, baseline=baseline_of(cell, pool), **more)


def _rows(same: Cells, pool: Cells) -> Sections:
    return [[_line(label, cell, pool, more=paper.main(cell)) for cell, label in labels(same).items()]]


def _ablation(same: Cells, pool: Cells) -> Sections:
    """Mean-field without its parts."""
    found = [variants.items() for variants in compare.ablations(same, pool)]
    return [[_variant(name, cell, pool, "ablation") for name, cell in variants] for variants in found]


def _sensitivity(same: Cells, pool: Cells) -> Sections:
    """Mean-field as its threshold and its number of updates are turned, one at a time."""
    turned = {knob: compare.sweep_of(same, knob) for knob in ("threshold", "iterations")}
    first = next(chain.from_iterable(turned.values()), None)
    baseline = first and baseline_of(first, pool)
    sections = [[_variant(compare.BASELINE, baseline, pool, "sensitivity")]] if baseline else []
    for knob, sweep in turned.items():
        names = {c: with_parameters(f"{paper.SIGNS[knob]} {value_of(c, knob)}", changes(c, knob)) for c in sweep}
        sections.append([_line(names[c], c, pool, more=paper.study("sensitivity", c, knob)) for c in sweep])
    return sections


def _variant(name: str, cell: Measured, pool: Cells, kind: str) -> Line:
    label = f"{cell.policy}: {name}" if name == compare.BASELINE else name
    return _line(label, cell, pool, more=paper.study(kind, cell))


def _blocks(same: Cells, pool: Cells) -> Sections:
    """Every policy that was run with several block sizes, each beside the baseline of the same block size."""

    def line(label: str, cell: Measured) -> Line:
        return _line(label, cell, [c for c in pool if value_of(c, "block_size") == value_of(cell, "block_size")])

    names = labels(same)
    return [[line(names[cell], cell) for cell in sweep] for sweep in compare.sweeps(same, "block_size")]


def _curves(same: Cells, pool: Cells) -> Sections:
    """Every policy as its knob is turned, slowest first."""
    found = curves(same)
    names = labels([cell for curve in found for cell in curve.cells])
    left_out: dict[Measured, Row] = {cell: {"aup": "left out"} for curve in found for cell in curve.dropped}
    return [[_line(names[c], c, pool, more=left_out.get(c, {})) for c in curve.cells] for curve in found]


def _compared(same: Cells, pool: Cells, *, varied: Sequence[str]) -> Sections:
    """Each task at several lengths, or with several formats of the weights, beside the shortest or the unquantised."""
    found, formats = [], (None, *tables.QUANTIZED)
    for of_task in groups(same, lambda cell: compare.identity(cell, *varied)):
        of_task.sort(key=lambda cell: (formats.index(weights_of(cell)), value_of(cell, "max_tokens")))
        baseline = None if "model" in varied and weights_of(of_task[0]) else of_task[0]
        found.append([Line(cell=cell, baseline=baseline) for cell in of_task])
    return found


def _task(cell: Measured) -> tuple[Any, str, str]:
    """The key that the cells of a table share, and the table's subject as its file name and its title have it."""
    return questions(cell), f"{cell.model}-{cell.cell.task}", f"{cell.model}, {cell.cell.task}"


def _setting(cell: Measured) -> tuple[Any, str, str]:
    """The same for a table of one setting of mean-field."""
    key, name, title = _task(cell)
    setting = {"τ": value_of(cell, "threshold")} | changes(cell, "threshold", "interaction", "iterations")
    setting = "".join(f", {name} = {value}" for name, value in setting.items())
    return (key, setting), name, title + setting


def _policy(cell: Measured) -> tuple[Any, str, str]:
    """The same for a table of all tasks and all formats of the weights."""
    model = cell.cell.model.removesuffix(f"+{weights_of(cell)}").rstrip("/")
    short = model.rsplit("/", 1)[-1]
    return model, f"{short}-{cell.policy}", f"{short}, {with_parameters(cell.policy, changes(cell))}"


@dataclass(frozen=True)
class Study:
    """One kind of study: how its cells are chosen and grouped, and how a group is shown."""

    title: str
    sections: Callable[[Cells, Cells], Sections]  # takes a group, and all cells, which hold the baselines
    columns: set[str]
    baseline: str | None = None  # other than one token a pass
    key: Callable[[Measured], Any] = compare.identity  # of cells that are one
    subject: Callable[[Measured], tuple[Any, str, str]] = _task


LENGTHS, WEIGHTS = partial(_compared, varied=("max_tokens", "block_size")), partial(_compared, varied=("model",))
STUDIES = {
    "main": Study("", _rows, RESULTS, key=compare.measurement),
    "ablation": Study("Ablation", _ablation, RESULTS, subject=_setting),
    "sensitivity": Study("Sensitivity of mean-field", _sensitivity, RESULTS),
    "blocks": Study("Block size", _blocks, RESULTS),
    "curves": Study("Accuracy and passes", _curves, RESULTS, key=compare.on_any_device),
    "lengths": Study("Response length", LENGTHS, COMPARED, "the shortest of the task", subject=_policy),
    "speed": Study("Speed", _rows, SPEED),
    "weights": Study("Weights in 8 bits", WEIGHTS, COMPARED, "the weights as they were", subject=_policy),
}


def tables_of(kind: str, cells: Cells) -> list[Table]:
    """All tables of the cells of one kind of study."""
    study = STUDIES[kind]
    chosen = compare.unique(cells, study.key)
    found = _pivots(kind, chosen) if kind in ("main", "curves") else []
    for same in groups(chosen, study.subject):
        sections = study.sections(same, cells)
        if any(sections):
            _, subject, about = study.subject(same[0])
            name = file_name(f"{kind}-{subject}", [table.name for table in found])
            title = ", ".join(part for part in (study.title, about) if part)
            found.append(tables.results_table(name, title, study.columns, sections, study.baseline))
            found += tables.duels(name, title, sections[0]) if kind == "main" else []
    return found


def details_table(cells: Cells) -> Table:
    """Both ways to count tokens, times and parameters of every measurement."""
    chosen = labels(compare.unique(cells, compare.measurement))
    return tables.results_table("details", "Details", DETAILS, [[Line(label=n, cell=c) for c, n in chosen.items()]])


def summary_table(cells: Cells) -> Table:
    """The cells of one evaluation in short. The title names a model or a task that all of them have."""
    lines = [Line(label=label, cell=cell) for cell, label in labels(cells).items()]
    subjects = {"model": {cell.model for cell in cells}, "task": {cell.cell.task for cell in cells}}
    shared = {key: name for key, (name, *others) in subjects.items() if not others}
    return tables.results_table("summary", ", ".join(shared.values()) or "Measured", SUMMARY - shared.keys(), [lines])


def file_name(text: str, taken: Sequence[str] = ()) -> str:
    """The text as the name of a file, with a number where it is taken."""
    name = re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")
    return next(n for n in (name, *(f"{name}-{number}" for number in range(2, len(taken) + 3))) if n not in taken)
