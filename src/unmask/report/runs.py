"""Reads run folders, as `unmask eval` writes them. A folder of runs stands for the runs in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unmask.errors import UnknownName, UnmaskError
from unmask.evals.cell import TABLES
from unmask.evals.store import cells_of
from unmask.report.measured import Measured, measured
from unmask.report.table import Column, Row, Table

# The order of rows: one token a pass, then policies by age, mean-field last as in the paper. Others follow by name.
POLICIES = ("entropy", "fixed", "margin", "random", "threshold", "factor", "eb")
POLICIES += ("klass", "local_leap", "dawn", "dapd", "wino", "mean_field")
TASKS = ("gsm8k", "math", "math500", "humaneval", "mbpp", "sudoku", "word_problems", "countdown", "list_functions")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Run:
    """A run folder: which table it is for, and its cells."""

    name: str
    table: str
    title: str | None
    command: str
    cells: list[Measured]


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs at these paths, each once, in the order given."""
    folders = list(dict.fromkeys(folder for path in paths for folder in _run_folders(path.resolve())))
    names = [folder.name for folder in folders]
    # Runs with the same name have that of their parent folder in front.
    runs = [_read(f, f"{f.parent.name}/{f.name}" if names.count(f.name) > 1 else f.name) for f in folders]
    if not any(cell.done for run in runs for cell in run.cells):
        raise UnmaskError(f"no finished items yet in {', '.join(str(folder) for folder in folders)}")
    return runs


def _run_folders(path: Path) -> list[Path]:
    if not path.is_dir():
        raise UnmaskError(f"no run at {path}: not a folder")
    inside = [path] if (path / "cells").is_dir() else sorted(cells.parent for cells in path.glob("*/cells/"))
    if not inside:
        raise UnmaskError(f"{path} is not a run: it has no folder 'cells', as `unmask eval --out {path.name}` makes it")
    return inside


def _read(folder: Path, name: str) -> Run:
    path = folder / "run.json"
    try:
        about = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        # A recipe that grew in its folder leaves the cells of a smaller one behind.
        wanted = about.get("cells")
        cells = [measured(name, found) for found in cells_of(folder) if not wanted or found.folder.name in wanted]
    except UnmaskError:
        raise
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UnmaskError(f"cannot read the run {folder}: {error}") from error
    table, command = about.get("table") or "main", str(about.get("command") or "")
    if table not in TABLES:
        raise UnknownName(f"table in {path}", str(table), TABLES)
    return Run(name=name, table=table, title=about.get("title"), command=command, cells=sorted(cells, key=_order))


def _order(cell: Measured) -> tuple[Any, ...]:
    asked = cell.cell
    rank = POLICIES.index(cell.policy) if cell.policy in POLICIES else len(POLICIES)
    task = next((at for at, name in enumerate(TASKS) if asked.task.startswith(name)), len(TASKS))
    values = [*asked.policy.values(), asked.settings.get("block_size")]
    numbers = [float(value) if isinstance(value, int | float) else 0.0 for value in values]
    return asked.model, task, asked.task, rank, cell.policy, numbers


def runs_table(runs: Sequence[Run]) -> Table:
    """Where the numbers come from. A device or versions that all runs share stand once, below."""
    rows = [_row(run) for run in runs]
    common = [key for key in ("device", "versions") if len({row[key] for row in rows}) == 1]
    columns = [Column(key, key) for key in rows[0] if key not in common and any(row[key] for row in rows)]
    notes = [f"{key.capitalize()}: {rows[0][key]}." for key in common]
    return Table(name="runs", title="Runs", columns=columns, rows=rows, notes=notes)


def _row(run: Run) -> Row:
    taken = [cell.about["taken_from"] for cell in run.cells if "taken_from" in cell.about]
    unfinished = sum(not cell.complete for cell in run.cells)
    remarks = ["device shared with other work"] if not all(cell.timed for cell in run.cells) else []
    remarks += [f"{len(taken)} of them measured in {', '.join(sorted(set(taken)))}"] if taken else []
    remarks += [f"{unfinished} not finished"] if unfinished else []
    versions = {name: text for cell in run.cells for name, text in cell.about.get("versions", {}).items()}
    return {
        "run": run.name,
        "title": run.title,
        "cells": len(run.cells),
        "remarks": "; ".join(remarks),
        "device": ", ".join(dict.fromkeys(cell.device for cell in run.cells)),
        "versions": ", ".join(f"{name} {text}" for name, text in versions.items()),
        "command": run.command,
    }
