"""`report`: run folders, as `unmask eval` writes them, in; tables, checks and figures out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from unmask.errors import UnmaskError, check_known
from unmask.evals.cell import TABLES
from unmask.evals.store import cells_of
from unmask.report import plots
from unmask.report.measured import Measured
from unmask.report.paper import checks, claims_table
from unmask.report.studies import STUDIES, details_table, tables_of
from unmask.report.table import Column, Row, Table, csv_text, latex, markdown, plain
from unmask.report.tables import cell_record

SCHEMA = "unmask.report/1"
TEXTS = {"markdown": markdown, "csv": csv_text, "latex": latex}
FORMATS = (*TEXTS, "json", *plots.FILES)
USUAL = tuple(form for form in FORMATS if form != "pdf")  # of a report that does not say

# The order of rows: one token a pass, then policies by age, mean-field last as in the paper. Others follow by name.
POLICIES = ("entropy", "fixed", "margin", "random", "threshold", "factor", "eb")
POLICIES += ("klass", "local_leap", "dawn", "dapd", "wino", "mean_field")
TASKS = ("gsm8k", "math", "math500", "humaneval", "mbpp", "sudoku", "word_problems", "countdown", "list_functions")


class Run:
    """A run folder: which table it is for, and its cells."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name, path = name, folder / "run.json"
        try:
            about = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
            # A recipe that grew in its folder leaves the cells of a smaller one behind.
            wanted = about.get("cells")
            cells = [Measured(name, found) for found in cells_of(folder) if not wanted or found.folder.name in wanted]
        except UnmaskError:
            raise
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UnmaskError(f"cannot read the run {folder}: {error}") from error
        self.table, self.title = about.get("table") or "main", about.get("title")
        self.command, self.cells = str(about.get("command") or ""), sorted(cells, key=_order)
        check_known(f"table in {path}", [self.table], TABLES)


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """The runs at these paths, each once, in the order given. A folder of runs stands for the runs in it."""
    folders: list[Path] = []
    for path in map(Path.resolve, paths):
        if not path.is_dir():
            raise UnmaskError(f"no run at {path}: not a folder")
        inside = [path] if (path / "cells").is_dir() else sorted(cells.parent for cells in path.glob("*/cells/"))
        if not inside:
            made = f"as `unmask eval --out {path.name}` makes it"
            raise UnmaskError(f"{path} is not a run: it has no folder 'cells', {made}")
        folders += [folder for folder in inside if folder not in folders]
    names = [folder.name for folder in folders]
    # Runs with the same name have that of their parent folder in front.
    runs = [Run(f, f"{f.parent.name}/{f.name}" if names.count(f.name) > 1 else f.name) for f in folders]
    if not any(cell.done for run in runs for cell in run.cells):
        raise UnmaskError(f"no finished items yet in {', '.join(str(folder) for folder in folders)}")
    return runs


def _order(cell: Measured) -> tuple[Any, ...]:
    asked = cell.cell
    rank = POLICIES.index(cell.policy) if cell.policy in POLICIES else len(POLICIES)
    task = next((at for at, name in enumerate(TASKS) if asked.task.startswith(name)), len(TASKS))
    values = [*asked.policy.values(), asked.settings.get("block_size")]
    numbers = [float(value) if isinstance(value, int | float) else 0.0 for value in values]
    return asked.model, task, asked.task, rank, cell.policy, numbers


class Report:
    """Everything that the runs say."""

    def __init__(self, runs: list[Run]) -> None:
        every = [cell for run in runs for cell in run.cells]
        # Cells by the kind of their study.
        self.cells = {kind: [cell for run in runs if run.table == kind for cell in run.cells] for kind in STUDIES}
        self.runs, self.checks, self.files = runs, checks(every), list[Path]()  # files: those that were written
        self.tables = [table for kind, of_kind in self.cells.items() for table in tables_of(kind, of_kind)]
        self.tables += [table for table in (claims_table(self.checks), runs_table(runs)) if table.rows]
        self.details = details_table(every)  # for files: too long for a terminal

    def text(self, form: str) -> str:
        """All tables as one text: 'markdown', 'csv' (a table a paragraph), 'latex' or 'json'."""
        if form == "json":
            return json.dumps(self.to_dict(), ensure_ascii=False) + "\n"
        every = [*self.tables, self.details]
        return "\n".join((f"# {table.name}\n" if form == "csv" else "") + TEXTS[form](table) for table in every)

    def to_dict(self) -> dict[str, Any]:
        """Every number, unrounded."""
        return {
            "schema": SCHEMA,
            "runs": [{"name": run.name, "table": run.table, "title": run.title} for run in self.runs],
            "tables": [table.to_dict() for table in [*self.tables, self.details]],
            "checks": [asdict(check) for check in self.checks],
            "cells": [cell_record(cell, run.cells) | {"table": run.table} for run in self.runs for cell in run.cells],
        }


def report(runs: Sequence[Path | str], *, out: Path | str | None = None, formats: Sequence[str] = ()) -> Report:
    """Read runs and make their tables; with `out`, also write them there: as USUAL, or in these formats."""
    if out is None:
        check_known("format", formats, ("terminal", *FORMATS))
        for form in formats:
            if form in plots.FILES:
                raise UnmaskError(f"{form} needs --out DIR: a figure cannot be printed")
        if len(formats) > 1:
            raise UnmaskError(f"one format can be printed, got {', '.join(formats)}; --out DIR writes several")
    else:
        check_known("file format", formats, FORMATS)
        if Path(out).exists() and not Path(out).is_dir():
            raise UnmaskError(f"cannot write a report to {out}: it is a file")
    made = Report(read_runs([Path(path) for path in runs]))
    if out is not None:
        _write(made, Path(out), formats or USUAL)
    return made


def runs_table(runs: Sequence[Run]) -> Table:
    """Where the numbers come from. A device or versions that all runs share stand once, below."""
    rows: list[Row] = []
    for run in runs:
        taken = [cell.about["taken_from"] for cell in run.cells if "taken_from" in cell.about]
        unfinished = sum(not cell.complete for cell in run.cells)
        remarks = ["device shared with other work"] if not all(cell.timed for cell in run.cells) else []
        remarks += [f"{len(taken)} of them measured in {', '.join(sorted(set(taken)))}"] if taken else []
        remarks += [f"{unfinished} not finished"] if unfinished else []
        versions = {name: text for cell in run.cells for name, text in cell.about.get("versions", {}).items()}
        row = {"run": run.name, "title": run.title, "cells": len(run.cells), "remarks": "; ".join(remarks)}
        row["device"] = ", ".join(dict.fromkeys(cell.device for cell in run.cells))
        row["versions"] = ", ".join(f"{name} {text}" for name, text in versions.items())
        rows.append(row | {"command": run.command})
    common = [key for key in ("device", "versions") if len({row[key] for row in rows}) == 1]
    columns = [Column(key, key) for key in rows[0] if key not in common and any(row[key] for row in rows)]
    notes = [f"{key.capitalize()}: {rows[0][key]}." for key in common]
    return Table(name="runs", title="Runs", columns=columns, rows=rows, notes=notes)


def _write(made: Report, out: Path, formats: Sequence[str]) -> None:
    drawn = [form for form in formats if form in plots.FILES]
    for kind in plots.FIGURES if drawn else ():
        made.files.extend(plots.draw(kind, made.cells[kind], out / "figures", drawn))
    if not made.files and set(formats) == set(drawn):
        kinds = ", ".join(dict.fromkeys(run.table for run in made.runs))
        having = f"finished cells of these have figures: {', '.join(plots.FIGURES)}"
        raise UnmaskError(f"no figure of these runs (table: {kinds}); {having}")
    texts = {f"tables/{table.name}.csv": csv_text(table) for table in [*made.tables, made.details] if "csv" in formats}
    texts |= {f"tables/{table.name}.tex": latex(table) for table in made.tables if "latex" in formats}
    if "markdown" in formats:
        texts["details.md"] = markdown(made.details)
        texts["report.md"] = _page(made.tables, {f.stem: f.name for f in made.files if f.suffix == f".{drawn[0]}"})
    if "json" in formats:
        texts["report.json"] = json.dumps(made.to_dict(), indent=1, ensure_ascii=False) + "\n"
    for name, text in texts.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text, encoding="utf-8")
        made.files.append(out / name)


def _page(tables: Sequence[Table], figures: dict[str, str]) -> str:
    """Tables below each other with their figures. A note that more than two tables have stands once, at the top."""
    notes = [note for table in tables for note in table.notes]
    common = [note for note in dict.fromkeys(notes) if notes.count(note) > 2]
    parts = ["# Report\n"]
    if common:
        parts.append("\n".join(["## How to read the tables\n", *(f"- {plain(note)}" for note in common)]) + "\n")
    for table in tables:
        parts.append(markdown(replace(table, notes=[note for note in table.notes if note not in common])))
        if table.name in figures:
            parts.append(f"![{plain(table.title)}](figures/{figures[table.name]})\n")
    return "\n".join(parts)
