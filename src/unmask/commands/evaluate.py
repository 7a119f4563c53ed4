"""`unmask eval`, `report` and `policies`: measure, show what was measured, and what there is to measure."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import TYPE_CHECKING

from unmask import flags, progress, terminal
from unmask.errors import Interrupted, counted
from unmask.options import option

if TYPE_CHECKING:
    from unmask.evals.store import CellFolder


def eval_(
    evaluation: flags.Evaluation,
    cluster: flags.Backend,
    recipe: str | None = option(None, "YAML file, or the name of one in the package.", "RECIPE"),
    out: Path | None = option(
        None, "Folder of the run; one that is there is resumed. [default: runs/NAME]", metavar="FOLDER"
    ),
    fresh: bool = option(False, "Discard what the folder holds of these cells; measure them anew.", "--fresh"),
    listed: bool = option(False, "List recipes, tasks, benchmarks and policies, and exit.", "--list"),
    as_json: bool = flags.JSON,
) -> None:
    """Measure models x policies x settings x tasks.

    Every finished item is on disk at once; the same command resumes.
    """
    if listed:
        _list_names(as_json=as_json)
        return
    from unmask.evals.run import run as measure

    chosen, name = evaluation.recipe(recipe)
    load, folder = cluster.loader(), out or Path("runs") / name
    try:
        with progress.evaluating() as heard, cluster.quiet():
            command = shlex.join(["unmask", *sys.argv[1:]])  # to be noted beside its results
            finished = measure(chosen, out=folder, load=load, command=command, fresh=fresh, say=terminal.note, **heard)
    except KeyboardInterrupt:
        again = "the same command without --fresh" if fresh else "the same command"
        raise Interrupted(f"interrupted; every finished item is in {folder}, {again} goes on") from None
    if finished.reused:
        terminal.note(f"cells reused: {', '.join(f'{count} from {name}' for name, count in finished.reused.items())}")
    elif not finished.new_cells:
        terminal.note(f"nothing left to do: {folder} is complete")
    if finished.changed:
        terminal.note(f"since it was measured, the {' and '.join(finished.changed)} changed; --fresh measures it anew")
    _show_cells(finished.cells, as_json=as_json)


def _list_names(*, as_json: bool) -> None:
    """Everything that an evaluation can be given by name, with a word about it."""
    import yaml

    from unmask.evals import tiny_suite
    from unmask.evals.lm_tasks.loaders import BENCHMARKS
    from unmask.evals.recipe import packaged
    from unmask.policies.presets import installed

    heads = {name: yaml.safe_load(path.read_text(encoding="utf-8")) for name, path in packaged().items()}
    rows = [("recipe", name, str(head.get("title", ""))) for name, head in heads.items()]
    rows += [("task", name, "generated, checked exactly") for name in tiny_suite.names()]
    for name, known in BENCHMARKS.items():
        rows.append(("benchmark", name, f"{known.items:,} items, {counted(known.shots, 'shot')}"))
    rows += [("policy", row["name"], row["about"]) for row in installed()]
    if as_json:
        lines = [dict(zip(("kind", "name", "about"), row, strict=True)) for row in rows]
        print("\n".join(json.dumps(line, ensure_ascii=False) for line in lines))
    else:
        terminal.show_names(rows, kinds=True)


def _show_cells(finished: list[CellFolder], *, as_json: bool) -> None:
    from unmask.report.measured import Measured
    from unmask.report.studies import summary_table
    from unmask.report.tables import cell_record

    cells = [Measured(found.folder.parent.parent.name, found) for found in finished]
    if as_json:
        print("\n".join(json.dumps(cell_record(cell, cells), ensure_ascii=False) for cell in cells))
    else:
        terminal.show_tables([summary_table(cells)])


def report(
    runs: Sequence[Path] = option(MISSING, "Folders of `unmask eval`, or a folder of such.", "RUNS"),
    out: Path | None = option(None, "Write tables and figures to this folder.", metavar="FOLDER"),
    form: Sequence[str] = option(
        (),
        "terminal, markdown, csv, latex or json; with --out also png, svg and pdf, may be repeated. "
        "[default: terminal; with --out, every kind of file]",
        "--format",
        metavar="FORM",
    ),
    as_json: bool = flags.JSON,
) -> None:
    """Make tables and figures of what was measured.

    Numbers come with intervals, and beside the paper's values where these belong.
    """
    from unmask.report import build

    formats = form or (["json"] if as_json else [])
    made = build.report(runs, out=out, formats=formats)
    if out is not None:
        print("\n".join(str(path) for path in made.files))
    elif not formats or formats[0] == "terminal":
        terminal.show_tables(made.tables)
    else:
        print(made.text(formats[0]), end="")


def policies(as_json: bool = flags.JSON) -> None:
    """List the installed policies with their parameters and defaults."""
    from unmask.policies.presets import installed

    rows = installed()
    if as_json:
        print("\n".join(json.dumps(row) for row in rows))
        return
    shown = []
    for row in rows:
        parameters = " ".join(f"{key}={value}" for key, value in row["parameters"].items())
        needs = f" Needs {', '.join(row['needs'])}." if row["needs"] else ""
        shown.append((row["name"], f"{parameters}\n{row['about']}{needs}"))
    terminal.show_names(shown)
