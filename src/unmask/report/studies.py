"""The kinds of study: which cells of a run make the rows of which tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from unmask.report import compare, paper, tables
from unmask.report.compare import Cells, baseline_of, changes, groups, labels, questions, value_of, with_parameters
from unmask.report.measured import Estimate, Measured, aup, common_sums, estimate
from unmask.report.table import Column, Row, Table, number_of
from unmask.report.tables import COMPARED, DETAILS, RESULTS, SPEED, SUMMARY, Sections, row_of, weights_of

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
        area, kept = aup(*points, np.max(list(accuracy.values()), axis=0))
        dropped = [cell for cell, counts in zip(line, kept[0], strict=True) if not counts]
        first, *others = [changes(cell) for cell in line]
        common = {key: value for key, value in first.items() if all(other.get(key, ...) == value for other in others)}
        found.append(Curve(with_parameters(line[0].policy, common), line, estimate(area), dropped))
    return found


def _overview(same: Cells) -> dict[str, Row]:
    """Accuracy and passes of every policy on one task, without intervals."""
    done = {label: cell for cell, label in labels(same, block=True).items() if cell.complete}
    return {n: {"accuracy": number_of(c.accuracy()), "passes": number_of(c.passes())} for n, c in done.items()}


def _areas(same: Cells) -> dict[str, Row]:
    return {curve.name: {"aup": curve.aup} for curve in curves(same)}


# Kind of study -> a table of all tasks: its name, title and note, and the columns and the rows of one task.
PIVOTS = {
    "main": ("overview", "{}: overview", FINISHED, SHORT, _overview),
    "curves": ("aup", "AUP, {}", AUP, AREA, _areas),
}


def _pivots(kind: str, cells: Cells) -> list[Table]:
    """A table for each model, with columns for each task. There is no overview of a single task."""
    name, title, note, columns_of, rows_of = PIVOTS[kind]
    found = []
    for of_model in groups(cells, lambda cell: cell.cell.model):
        of_tasks, model = groups(of_model, lambda cell: cell.cell.task), of_model[0].model
        if kind == "main" and len(of_tasks) == 1:
            continue
        columns, rows, notes, done = [Column("label", "policy")], dict[str, Row](), [note], []
        for of_task in of_tasks:
            # A task that was run with several numbers of items is shown with the largest.
            same = max(groups(of_task, questions), key=lambda same: same[0].cell.items)
            task = same[0].cell.task
            columns += [replace(c, key=f"{task}_{c.key}", title=c.title.format(task)) for c in columns_of]
            for label, values in rows_of(same).items():
                row = rows.setdefault(label, {"label": label})
                row |= {f"{task}_{key}": value for key, value in values.items()}
            missing = [f"{label}, {cell.items} items" for cell, label in labels(same).items() if not cell.complete]
            notes += [f"{task}: left out, as not finished: {'; '.join(missing)}."] if missing else []
            done += [cell for cell in same if cell.complete]
        file, heading = file_name(f"{name}-{model}"), title.format(model)
        fair = [all(tables.may_be_best(cell) for cell in done)] * len(rows)
        found.append(Table(name=file, title=heading, columns=columns, rows=[*rows.values()], notes=notes, fair=fair))
    return found


def _rows(same: Cells, pool: Cells) -> Sections:
    return [[row_of(c, label, baseline_of(c, pool), **paper.main(c)) for c, label in labels(same).items()]]


def _variant(kind: str, name: str, cell: Measured, pool: Cells, knob: str = "") -> Row:
    """A row of mean-field under the name of what was changed, or of its baseline; beside it, the paper's."""
    label = f"{cell.policy}: {name}" if name == compare.BASELINE else name
    return row_of(cell, label, baseline_of(cell, pool), **paper.study(kind, cell, knob))


def _ablation(same: Cells, pool: Cells) -> Sections:
    """Mean-field without its parts."""
    found = compare.ablations(same, pool)
    return [[_variant("ablation", *named, pool) for named in variants.items()] for variants in found]


def _sensitivity(same: Cells, pool: Cells) -> Sections:
    """Mean-field as its threshold and its number of updates are turned, one at a time."""
    turned = {knob: compare.sweep_of(same, knob) for knob in ("threshold", "iterations")}
    first = next(chain.from_iterable(turned.values()), None)
    baseline = first and baseline_of(first, pool)
    sections = [[_variant("sensitivity", compare.BASELINE, baseline, pool)]] if baseline else []
    for knob, sweep in turned.items():
        names = [with_parameters(f"{paper.SIGNS[knob]} {value_of(c, knob)}", changes(c, knob)) for c in sweep]
        found = zip(names, sweep, strict=True)
        sections.append([_variant("sensitivity", name, cell, pool, knob) for name, cell in found])
    return sections


def _blocks(same: Cells, pool: Cells) -> Sections:
    """Every policy that was run with several block sizes, each beside the baseline of the same block size."""

    def row(cell: Measured) -> Row:
        of_block = [other for other in pool if value_of(other, "block_size") == value_of(cell, "block_size")]
        return row_of(cell, names[cell], baseline_of(cell, of_block))

    names = labels(same)
    return [[row(cell) for cell in sweep] for sweep in compare.sweeps(same, "block_size")]


def _curves(same: Cells, pool: Cells) -> Sections:
    """Every policy as its knob is turned, slowest first."""
    found = curves(same)
    names = labels([cell for curve in found for cell in curve.cells])
    left_out: dict[Measured, Row] = {cell: {"aup": "left out"} for curve in found for cell in curve.dropped}
    return [[row_of(c, names[c], baseline_of(c, pool), **left_out.get(c, {})) for c in each.cells] for each in found]


def _compared(same: Cells, pool: Cells, *, varied: Sequence[str]) -> Sections:
    """Each task at several lengths, or with several formats of the weights, beside the shortest or the unquantised."""
    found, formats = [], (None, *tables.QUANTIZED)
    for of_task in groups(same, lambda cell: compare.identity(cell, varied)):
        of_task.sort(key=lambda cell: (formats.index(weights_of(cell)), value_of(cell, "max_tokens")))
        baseline = None if "model" in varied and weights_of(of_task[0]) else of_task[0]
        found.append([row_of(cell, baseline=baseline) for cell in of_task])
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


# Neither answers nor passes are meant to depend on the device.
ON_ANY_DEVICE = partial(compare.identity, left_out=("device", "dtype", "batch_size"))
LENGTHS, WEIGHTS = partial(_compared, varied=("max_tokens", "block_size")), partial(_compared, varied=("model",))
STUDIES = {
    "main": Study("", _rows, RESULTS, key=compare.measurement),
    "ablation": Study("Ablation", _ablation, RESULTS, subject=_setting),
    "sensitivity": Study("Sensitivity of mean-field", _sensitivity, RESULTS),
    "blocks": Study("Block size", _blocks, RESULTS),
    "curves": Study("Accuracy and passes", _curves, RESULTS, key=ON_ANY_DEVICE),
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
    return tables.results_table("details", "Details", DETAILS, [[row_of(c, label) for c, label in chosen.items()]])


def summary_table(cells: Cells) -> Table:
    """The cells of one evaluation in short. The title names a model or a task that all of them have."""
    rows = [row_of(cell, label) for cell, label in labels(cells).items()]
    shared = {key: rows[0][key] for key in ("model", "task") if len({row[key] for row in rows}) == 1}
    return tables.results_table("summary", ", ".join(shared.values()) or "Measured", SUMMARY - shared.keys(), [rows])


def file_name(text: str, taken: Sequence[str] = ()) -> str:
    """The text as the name of a file, with a number where it is taken."""
    name = re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")
    return next(n for n in (name, *(f"{name}-{number}" for number in range(2, len(taken) + 3))) if n not in taken)
