"""`report`: runs in; tables, checks and figures out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from unmask.errors import UnknownName, UnmaskError
from unmask.report import plots
from unmask.report.claims import Check, checks, claims_tables
from unmask.report.compare import without_copies
from unmask.report.measured import Measured
from unmask.report.runs import Run, read_runs, runs_table
from unmask.report.studies import STUDIES, cells_table, tables_of
from unmask.report.table import Table, csv_text, latex, markdown, plain
from unmask.report.tables import DETAILS, cell_record

SCHEMA = "unmask.report/1"
TEXTS = {"markdown": markdown, "csv": csv_text, "latex": latex}
FORMATS = (*TEXTS, "json", *plots.FILES)
USUAL = tuple(form for form in FORMATS if form != "pdf")  # of a report that does not say


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Report:
    """Everything that the runs say."""

    runs: list[Run]
    tables: list[Table]
    details: Table  # for files: too long for a terminal
    checks: list[Check]
    files: list[Path]  # what was written

    def text(self, form: str) -> str:
        """All tables as one text: 'markdown', 'csv' (a table a paragraph), 'latex' or 'json'."""
        if form == "json":
            return json.dumps(self.to_dict(), ensure_ascii=False) + "\n"
        if form not in TEXTS:
            raise UnknownName("format of a report", form, (*TEXTS, "json"))
        return "\n".join((f"# {t.name}\n" if form == "csv" else "") + TEXTS[form](t) for t in self._all)

    @property
    def _all(self) -> list[Table]:
        return [*self.tables, self.details]

    def to_dict(self) -> dict[str, Any]:
        """Every number, unrounded."""
        return {
            "schema": SCHEMA,
            "runs": [{"name": run.name, "table": run.table, "title": run.title} for run in self.runs],
            "tables": [table.to_dict() for table in self._all],
            "checks": [asdict(check) for check in self.checks],
            "cells": [cell_record(cell, run.cells) | {"table": run.table} for run in self.runs for cell in run.cells],
        }


def check_formats(formats: Sequence[str], *, printed: bool) -> tuple[str, ...]:
    """The formats that a command asks for: one text to print (none: the terminal's), or files to write (none: all)."""
    known = ("terminal", *FORMATS) if printed else FORMATS
    for form in formats:
        if form not in known:
            raise UnknownName("format", form, known, listed_as="known" if printed else "to write")
        if printed and form in plots.FILES:
            raise UnmaskError(f"{form} needs --out DIR: a figure cannot be printed")
    if printed and len(formats) > 1:
        raise UnmaskError(f"one format can be printed, got {', '.join(formats)}; --out DIR writes several")
    return tuple(form for form in formats if form != "terminal") if printed else tuple(formats) or USUAL


def report(runs: Sequence[Path | str], *, out: Path | None = None, formats: Sequence[str] = USUAL) -> Report:
    """Read runs and make their tables; with `out`, also write them there in these formats, figures included."""
    if out is not None:
        check_formats(formats, printed=False)
        if set(formats) & set(plots.FILES):
            plots.check_installed()
    found = read_runs([Path(path) for path in runs])
    cells = {kind: [cell for run in found if run.table == kind for cell in run.cells] for kind in STUDIES}
    cells = {kind: of_kind for kind, of_kind in cells.items() if of_kind}
    every = [cell for run in found for cell in run.cells]
    claims = checks(every)
    tables = [table for kind, of_kind in cells.items() for table in tables_of(kind, of_kind)]
    tables += [*claims_tables(claims), runs_table(found)]
    details = cells_table("Details", DETAILS, without_copies(every))
    made = Report(runs=found, tables=tables, details=details, checks=claims, files=[])
    if out is not None:
        _write(made, cells, Path(out), formats)
    return made


def _write(made: Report, cells: dict[str, list[Measured]], out: Path, formats: Sequence[str]) -> None:
    if out.exists() and not out.is_dir():
        raise UnmaskError(f"cannot write a report to {out}: it is a file")
    drawn = [form for form in formats if form in plots.FILES]
    for kind in plots.FIGURES if drawn else ():
        made.files.extend(plots.draw(kind, cells.get(kind, []), out / "figures", drawn))
    if not made.files and set(formats) == set(drawn):
        kinds = f"(table: {', '.join(cells)}); finished cells of these have figures: {', '.join(plots.FIGURES)}"
        raise UnmaskError(f"no figure of these runs {kinds}")
    texts = {f"tables/{table.name}.csv": csv_text(table) for table in made._all if "csv" in formats}
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
