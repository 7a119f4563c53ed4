"""`report`: runs in; tables, checks and pictures out."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from unmask.errors import UnknownName, UnmaskError
from unmask.report import plots
from unmask.report.experiments import TABLES
from unmask.report.measured import Measured, baseline_of, paired, rival_of, speedup
from unmask.report.render import csv_text, latex, markdown, plain
from unmask.report.runs import Run, read_runs, runs_table
from unmask.report.shape import Check, checks, checks_tables
from unmask.report.table import Table

SCHEMA = "unmask.report/1"
TEXTS = ("markdown", "csv", "latex", "json")
FORMATS = (*TEXTS, *plots.FILES)
_ENDINGS: dict[str, tuple[str, Callable[[Table], str]]] = {"csv": ("csv", csv_text), "latex": ("tex", latex)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Report:
    """Everything that the runs say."""

    runs: list[Run]
    tables: list[Table]
    checks: list[Check]
    files: list[Path]  # what was written

    def text(self, form: str) -> str:
        """All tables as one text: 'markdown', 'csv' (a table a paragraph), 'latex' or 'json'."""
        if form == "json":
            return json.dumps(self.to_dict(), ensure_ascii=False) + "\n"
        if form == "csv":
            return "\n".join(f"# {table.name}\n{csv_text(table)}" for table in self.tables)
        if form not in TEXTS:
            raise UnknownName("format of a report", form, TEXTS)
        return "\n".join((markdown if form == "markdown" else latex)(table) for table in self.tables)

    def to_dict(self) -> dict[str, Any]:
        """Every number, unrounded."""
        cells = [_cell(cell, run.cells) | {"table": run.table} for run in self.runs for cell in run.cells]
        return {
            "schema": SCHEMA,
            "runs": [{"name": run.name, "table": run.table, "title": run.title} for run in self.runs],
            "tables": [table.to_dict() for table in self.tables],
            "checks": [check.to_dict() for check in self.checks],
            "cells": cells,
        }


def check_formats(formats: Sequence[str], *, printed: bool) -> tuple[str, ...]:
    """What a command may ask for: to print one text, none being the terminal's; to write, any files, none being all."""
    known = ("terminal", *FORMATS) if printed else FORMATS
    for form in formats:
        if form not in known:
            raise UnknownName("format", form, known, listed_as="known" if printed else "to write")
        if printed and form in plots.FILES:
            raise UnmaskError(f"{form} needs --out DIR: a picture cannot be printed")
    if printed and len(formats) > 1:
        raise UnmaskError(f"one format can be printed, got {', '.join(formats)}; --out DIR writes several")
    return tuple(form for form in formats if form != "terminal") if printed else tuple(formats) or FORMATS


def report(runs: Sequence[Path | str], *, out: Path | None = None, formats: Sequence[str] = FORMATS) -> Report:
    """Read runs and make their tables; with `out`, also write them there in these formats, pictures included."""
    if out is not None:
        check_formats(formats, printed=False)
    pictures = [form for form in formats if form in plots.FILES]
    if out is not None and pictures:
        plots.check_installed()
    found = read_runs([Path(path) for path in runs])
    cells = {kind: [cell for run in found if run.table == kind for cell in run.cells] for kind in TABLES}
    tables = [table for kind, make in TABLES.items() if cells[kind] for table in make(cells[kind])]
    claims = checks([cell for run in found for cell in run.cells])
    tables += [*checks_tables(claims), runs_table(found)]
    made = Report(runs=found, tables=tables, checks=claims, files=[])
    if out is not None:
        _write(made, cells, Path(out), formats, pictures)
    return made


def _write(
    made: Report, cells: dict[str, list[Measured]], out: Path, formats: Sequence[str], pictures: Sequence[str]
) -> None:
    if out.exists() and not out.is_dir():
        raise UnmaskError(f"cannot write a report to {out}: it is a file")
    figures: list[Path] = []
    for kind in plots.FIGURES:
        figures += plots.draw(kind, cells[kind], out / "figures", pictures) if pictures and cells[kind] else []
    if not figures and set(formats) <= set(plots.FILES):
        tables = ", ".join(kind for kind in TABLES if cells[kind])
        known = ", ".join(plots.FIGURES)
        raise UnmaskError(f"no figure of these runs (table: {tables}); finished cells of these have figures: {known}")
    out.mkdir(parents=True, exist_ok=True)
    made.files.extend(figures)
    if "markdown" in formats:
        shown = {path.stem: path for path in figures if path.suffix == f".{pictures[0]}"}
        tables, details = ([table for table in made.tables if table.details == which] for which in (False, True))
        _put(made, out / "report.md", _page("Report", tables, shown))
        _put(made, out / "details.md", _page("Details of the report", details, {}))
    if "json" in formats:
        _put(made, out / "report.json", json.dumps(made.to_dict(), indent=1, ensure_ascii=False) + "\n")
    for form, (ending, render) in _ENDINGS.items():
        # Details are too wide for a page of print.
        tables = [table for table in made.tables if form in formats and not (form == "latex" and table.details)]
        for table in tables:
            _put(made, out / "tables" / f"{table.name}.{ending}", render(table))


def _page(title: str, tables: Sequence[Table], figures: dict[str, Path]) -> str:
    """Tables below each other with their pictures. A note that many of them have is said once, at the top."""
    notes = [note for table in tables for note in table.notes]
    common = [note for note in dict.fromkeys(notes) if notes.count(note) > 2]
    parts = [f"# {title}\n"]
    if common:
        parts.append("\n".join(["## How to read the tables\n", *(f"- {plain(note)}" for note in common)]) + "\n")
    for table in tables:
        parts.append(markdown(replace(table, notes=[note for note in table.notes if note not in common])))
        if table.name in figures:
            parts.append(f"![{plain(table.title)}](figures/{figures[table.name].name})\n")
    return "\n".join(parts)


def _put(made: Report, path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    made.files.append(path)


def _cell(cell: Measured, pool: Sequence[Measured]) -> dict[str, Any]:
    """A cell's numbers, with what it is compared with in its run."""
    baseline = baseline_of(cell, pool)
    test = paired(cell, rival_of(cell, pool))
    ratios = {f"speedup_{count}": speedup(cell, baseline, count) for count in ("reference", "answer")}
    return cell.to_dict() | {
        "baseline": baseline and baseline.cell.key,
        "paired": test and {"only_this": test.only_first, "only_baseline": test.only_second, "p": test.p},
        **{name: found and found.to_dict() for name, found in ratios.items()},
    }
