"""The kinds of study: which cells of a run make the rows of which tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from unmask.report import compare, paper, statistics, tables
from unmask.report.compare import Cells, baseline_of, groups, questions
from unmask.report.labels import changes, labels, with_parameters
from unmask.report.measured import Measured, common_sums, value_of
from unmask.report.statistics import Estimate
from unmask.report.table import Column, Row, Table, Value, number_of
from unmask.report.tables import COMPARED, RESULTS, SPEED, Line, Sections, results_table, weights_of

Parts = dict[str, Sections]  # what the title of a table adds -> its lines

SIGNS = {"threshold": "τ", "iterations": "R"}
FINISHED = "Finished cells only. Intervals and paired tests are in the table of each task."
AUP = (
    "AUP (accuracy under parallelism): area under accuracy over tokens per pass (answer tokens), weighted by nearness "
    "to the best accuracy of any policy on the task; larger is better. A point more than 5 points of accuracy below "
    "the slowest of its policy does not count. Intervals by resampling the items of a task for all policies together: "
    "one is wide where a point is close to that limit."
)


class Curve(NamedTuple):
    """The finished cells of a policy on a task, slowest first. A cell too far below the slowest does not count."""

    name: str  # the policy, with the changes that all cells share
    cells: Cells
    aup: Estimate | None
    dropped: Cells


def curves(cells: Cells) -> list[Curve]:
    """The curves of all policies on one task. Several runs on several devices may hold parts of one curve."""
    done = [cell for cell in cells if cell.complete and cell.passes() is not None]
    sums = dict(zip(done, common_sums(done), strict=False)) if done else {}
    speed = {cell: own["answer"] / own["passes"] for cell, own in sums.items()}
    accuracy = {cell: 100 * own["correct"] / own["items"] for cell, own in sums.items()}
    found = []
    for same in groups(sums, lambda cell: cell.policy):
        line = sorted(same, key=lambda cell: -cell.columns["passes"].mean())
        points = [np.column_stack([values[cell] for cell in line]) for values in (speed, accuracy)]
        # Every resample is a table of its own, with its own best accuracy and its own points that do not count.
        area, kept = statistics.aup(*points, np.max(list(accuracy.values()), axis=0))
        dropped = [cell for cell, counts in zip(line, kept[0], strict=True) if not counts]
        first, *others = [changes(cell) for cell in line]
        common = {key: value for key, value in first.items() if all(other.get(key, ...) == value for other in others)}
        found.append(Curve(with_parameters(line[0].policy, common), line, statistics.estimate(area), dropped))
    return found


def _overview(same: Cells) -> dict[Column, dict[str, Value]]:
    """Accuracy and passes of every policy on one task, without intervals: column -> label -> value."""
    task, names = same[0].cell.task, labels(same, block=True)
    done = [cell for cell in same if cell.complete]
    accuracy, passes = Column(f"{task}_accuracy", f"{task} %", 1), Column(f"{task}_passes", "NFE", 1)
    return {
        replace(accuracy, wanted="high"): {names[cell]: number_of(cell.accuracy()) for cell in done},
        replace(passes, wanted="low"): {names[cell]: number_of(cell.passes()) for cell in done},
    }


def _areas(same: Cells) -> dict[Column, dict[str, Value]]:
    """The AUP of every policy on one task."""
    task = same[0].cell.task
    return {Column(f"{task}_aup", task, 1, wanted="high"): {curve.name: curve.aup for curve in curves(same)}}


def _pivots(kind: str, cells: Cells) -> list[Table]:
    """A table for each model, with columns for each task: an overview for a main study, the AUP for curves."""
    found = []
    for of_model in groups(cells, lambda cell: cell.cell.model):
        of_tasks, model = groups(of_model, lambda cell: cell.cell.task), of_model[0].model
        # A task that was run with several numbers of items is shown with the largest.
        tasks = [max(groups(of_task, questions), key=lambda same: same[0].cell.items) for of_task in of_tasks]
        name, title, notes, values_of = "overview", f"{model}: overview", [FINISHED], _overview
        if kind == "curves":
            name, title, notes, values_of = "aup", f"AUP, {model}", [AUP, *_unfinished(tasks)], _areas
        elif len(tasks) == 1:
            continue
        columns, rows = [Column("label", "policy")], dict[str, Row]()
        for column, values in chain.from_iterable(values_of(same).items() for same in tasks):
            columns.append(column)
            for label, value in values.items():
                rows.setdefault(label, {"label": label})[column.key] = value
        fair = all(tables.may_be_best(cell) for same in tasks for cell in same if cell.complete)
        name, marked = file_name(f"{name}-{model}"), [fair] * len(rows)
        found.append(Table(name=name, title=title, columns=columns, rows=[*rows.values()], notes=notes, fair=marked))
    return found


def _unfinished(tasks: Sequence[Cells]) -> list[str]:
    """A note on the cells of each task that are left out."""
    notes = []
    for same in tasks:
        missing = [f"{label}, {cell.items} items" for cell, label in labels(same).items() if not cell.complete]
        notes += [f"{same[0].cell.task}: left out, as not finished: {'; '.join(missing)}."] if missing else []
    return notes


def _line(label: str, cell: Measured, pool: Cells, printed: paper.Printed | None = None, **more: Any) -> Line:
    return Line(label=label, cell=cell, baseline=baseline_of(cell, pool), paper=printed, **more)


def _rows(same: Cells, pool: Cells) -> Parts:
    return {"": [[_line(label, cell, pool, paper.main(cell)) for cell, label in labels(same).items()]]}


def _variant(name: str, cell: Measured, pool: Cells, kind: str) -> Line:
    label = f"{cell.policy}: {name}" if name == compare.BASELINE else name
    return _line(label, cell, pool, paper.study(kind, cell))


def _ablation(same: Cells, pool: Cells) -> Parts:
    """Mean-field without its parts, one table for each setting."""
    found = {}
    for variants in compare.ablations(same):
        *_, last = variants.values()
        setting = {"τ": last.cell.policy["threshold"]} | changes(last, "threshold", "interaction", "iterations")
        title = "".join(f", {key} = {value}" for key, value in setting.items())
        found[title] = [[_variant(name, cell, pool, "ablation") for name, cell in variants.items()]]
    return found


def _sensitivity(same: Cells, pool: Cells) -> Parts:
    """Mean-field as its threshold and its number of updates are turned, one at a time."""
    turned = {knob: compare.sweep_of(same, knob) for knob in SIGNS}
    first = next(chain.from_iterable(turned.values()), None)
    baseline = first and baseline_of(first, pool)
    sections = [[_variant(compare.BASELINE, baseline, pool, "sensitivity")]] if baseline else []
    for knob, sweep in turned.items():
        names = {c: with_parameters(f"{SIGNS[knob]} = {value_of(c, knob)}", changes(c, knob)) for c in sweep}
        sections.append([_line(names[c], c, pool, paper.study("sensitivity", c, knob)) for c in sweep])
    return {"": sections}


def _blocks(same: Cells, pool: Cells) -> Parts:
    """Every policy that was run with several block sizes, each beside the baseline of the same block size."""

    def line(label: str, cell: Measured) -> Line:
        return _line(label, cell, [c for c in pool if value_of(c, "block_size") == value_of(cell, "block_size")])

    names = labels(same)
    return {"": [[line(names[cell], cell) for cell in sweep] for sweep in compare.sweeps(same, "block_size")]}


def _curves(same: Cells, pool: Cells) -> Parts:
    """Every policy as its knob is turned, slowest first."""
    found = curves(same)
    names = labels([cell for curve in found for cell in curve.cells])
    return {"": [[_line(names[c], c, pool, left_out=c in curve.dropped) for c in curve.cells] for curve in found]}


def _lengths(same: Cells, pool: Cells) -> Parts:
    """Each task at several lengths, compared with the shortest."""
    tasks = groups(same, lambda cell: compare.identity(cell, "max_tokens", "block_size"))
    tasks = [sorted(of_task, key=lambda cell: cell.cell.settings["max_tokens"]) for of_task in tasks]
    return {"": [[Line(cell=cell, baseline=of_task[0]) for cell in of_task] for of_task in tasks]}


def _weights(same: Cells, pool: Cells) -> Parts:
    """Each task with several formats, compared with the weights that are not quantised."""
    order = (None, *tables.QUANTIZED)
    tasks = groups(same, lambda cell: compare.identity(cell, "model"))
    tasks = [sorted(of_task, key=lambda cell: order.index(weights_of(cell))) for of_task in tasks]
    plain = [of_task[0] if weights_of(of_task[0]) is None else None for of_task in tasks]
    return {"": [[Line(cell=cell, baseline=b) for cell in of_task] for of_task, b in zip(tasks, plain, strict=True)]}


def _task(cell: Measured) -> tuple[Any, str, str]:
    """The key that the cells of a table share, and the table's subject as its file name and its title have it."""
    return questions(cell), f"{cell.model}-{cell.cell.task}", f"{cell.model}, {cell.cell.task}"


def _policy(cell: Measured) -> tuple[Any, str, str]:
    """The same for a table of all tasks and all formats of the weights."""
    model = cell.cell.model.removesuffix(f"+{weights_of(cell)}").rstrip("/")
    short = model.rsplit("/", 1)[-1]
    return model, f"{short}-{cell.policy}", f"{short}, {with_parameters(cell.policy, changes(cell))}"


def _on_any_device(cells: Cells) -> list[Measured]:
    """Each question once: neither answers nor passes are meant to depend on the device."""
    return compare.unique(cells, "device", "dtype", "batch_size")


@dataclass(frozen=True)
class Study:
    """One kind of study: how its cells are chosen and grouped, and how a group is shown."""

    title: str
    parts: Callable[[Cells, Cells], Parts]  # takes a group, and all cells, which hold the baselines
    keys: set[str]  # of the columns
    baseline: str | None = None  # other than one token a pass
    choose: Callable[[Cells], list[Measured]] = compare.unique
    subject: Callable[[Measured], tuple[Any, str, str]] = _task


STUDIES = {
    "main": Study("", _rows, RESULTS, choose=compare.without_copies),
    "ablation": Study("Ablation", _ablation, RESULTS),
    "sensitivity": Study("Sensitivity of mean-field", _sensitivity, RESULTS),
    "blocks": Study("Block size", _blocks, RESULTS),
    "curves": Study("Accuracy and passes", _curves, RESULTS, choose=_on_any_device),
    "lengths": Study("Response length", _lengths, COMPARED, "the shortest of the task", subject=_policy),
    "speed": Study("Speed", _rows, SPEED),
    "weights": Study("Weights in 8 bits", _weights, COMPARED, "the weights as they were", subject=_policy),
}


def tables_of(kind: str, cells: Cells) -> list[Table]:
    """All tables of the cells of one kind of study."""
    study = STUDIES[kind]
    chosen = study.choose(cells)
    found = _pivots(kind, chosen) if kind in ("main", "curves") else []
    for same in groups(chosen, study.subject):
        _, subject, about = study.subject(same[0])
        for addition, sections in study.parts(same, cells).items():
            if any(sections):
                name = file_name(f"{kind}-{subject}", [table.name for table in found])
                title = ", ".join(part for part in (study.title, about + addition) if part)
                found.append(results_table(name, title, study.keys, sections, study.baseline))
                found += tables.duels(name, title, sections[0]) if kind == "main" else []
    return found


def cells_table(title: str, keys: set[str], cells: Cells) -> Table:
    """A row for each cell, without a study."""
    lines = [Line(label=label, cell=cell) for cell, label in labels(cells).items()]
    return results_table(title.lower(), title, keys, [lines])


def file_name(text: str, taken: Sequence[str] = ()) -> str:
    """The text as the name of a file, with a number where it is taken."""
    name = re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")
    return next(n for n in (name, *(f"{name}-{number}" for number in range(2, len(taken) + 3))) if n not in taken)
