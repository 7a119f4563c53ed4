"""Tables about cells: a row each, a title that says what the rows share, and the notes of the columns.

Speeds are compared within one device, dtype and batch size only, and stand beside the paper's at batch size 1 only.
Where other work shared the device there are no speeds: such a table shows how many passes were saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import accumulate
from typing import Any

import numpy as np

from unmask.report.compare import Cells, baseline_of, paired, questions, value_of
from unmask.report.measured import COUNTS, PARTS, Estimate, Measured, estimate_of, holm
from unmask.report.table import Column, Row, Table, Value

COARSE = 100  # a table with fewer items is marked as coarse, and marks no best value
QUANTIZED = ("int8", "fp8")  # formats of weights
SCORE = "accuracy_of_"  # begins the key of a score that is not the headline
# Settings, each with the words of a title. A table has a column for those in which its rows differ.
SETTINGS = {
    Column("items", "items", 0): "{} items",
    Column("shots", "shots", 0): "{}-shot",
    Column("template", "template"): "{} template",
    Column("max_tokens", "tokens", 0): "{} tokens",
    Column("block_size", "block", 0): "block {}",
    Column("device", "device"): "{}",
    Column("dtype", "dtype"): "{}",
    Column("batch_size", "batch", 0): "batch {}",
}
WEIGHTS = Column("weights", "weights")
COLUMNS = (
    *(Column(key, key) for key in ("run", "model", "task")),
    Column("label", "policy"),
    WEIGHTS,
    *SETTINGS,
    Column("aup", "AUP"),
    Column("accuracy", "accuracy %", 1, wanted="high"),
    Column("paper_accuracy", "paper", 2),
    Column(SCORE, "", 1, wanted="high"),
    Column("passes", "NFE", 1, wanted="low"),
    Column("paper_passes", "paper", 1),
    Column("fewer_passes", "fewer passes", 2, "{}×", wanted="high"),
    Column("tokens_per_second", "TPS", 2, wanted="high"),
    Column("paper_tokens_per_second", "paper", 2),
    Column("speedup", "speed-up", 2, "{}×", wanted="high"),
    Column("paper_speedup", "paper", 2, "{}×"),
    Column("printed_speedup", "(printed)", 2, "({}×)"),
    *(Column(f"{part}_pass", f"{part} ms", 2) for part in PARTS),
    Column("answer", "answer tokens", 1),
    Column("accuracy_difference", "accuracy, points", 1),
    Column("won_lost", "won : lost", 0),
    Column("p", "p", 3),
    Column("p_corrected", "p, corrected", 3),
    Column("passes_ratio", "passes over theirs", 2, "{}×"),
    *(Column(f"tokens_{count}", f"tokens ({count})", 0) for count in COUNTS),
    *(Column(f"tokens_per_second_{count}", f"TPS ({count})", 2) for count in COUNTS),
    *(Column(f"tokens_per_pass_{count}", f"tokens/pass ({count})", 2) for count in COUNTS),
    *(Column(f"seconds_{part}", f"{part} s/item", 4) for part in PARTS),
    Column("cache", "cache"),
    Column("early_stop", "early stop"),
    Column("truncated", "truncated", 0),
    Column("parameters", "parameters"),
)
# The columns of each kind of table, beside the settings. A column without values is not shown.
RESULTS = {"label", "aup", "accuracy", SCORE, "paper_accuracy", "passes", "paper_passes", "fewer_passes", "speedup"}
RESULTS |= {"tokens_per_second", "paper_tokens_per_second", "paper_speedup", "printed_speedup", "won_lost", "p"}
COMPARED = {"task", "weights", "accuracy", SCORE, "passes", "answer", "won_lost", "p"}
SPEED = {"label", "tokens_per_second", "speedup", "fewer_passes", *(f"{part}_pass" for part in PARTS)}
DUEL = {"accuracy_difference", "won_lost", "p", "p_corrected", "passes_ratio"}
SUMMARY = {"label", "model", "task", "accuracy", "passes"}
DETAILS = {"label", "run", "model", "task", "cache", "early_stop", "truncated", "parameters"}
DETAILS |= {f"{what}_{count}" for count in COUNTS for what in ("tokens", "tokens_per_second", "tokens_per_pass")}
DETAILS |= {f"seconds_{part}" for part in PARTS}

INTERVALS = "In brackets: 95 % intervals, Wilson for accuracy, resampling of items (2,000 times) for the rest."
NOTES = {
    "paper_accuracy": "Paper: as published, on H100s at batch size 1, and its speed beside rows of that size only; its "
    "speed-up is the ratio of its TPS, and (printed) the one that it prints.",
    "passes": "NFE: forward passes per item.",
    "fewer_passes": "Fewer passes: the baseline's NFE over the row's, on the same items.",
    "tokens_per_second": "TPS counts tokens as the public wrapper of the model's family does. Intervals of TPS and "
    "speed-up are about which items were asked, not about noise of the clock. At batch sizes above 1 there are none: "
    "the items of a batch share its time.",
    "speedup": "Speed-up: TPS over that of the baseline in the same run, on the same items.",
    "model_pass": "Milliseconds are for one pass, the median of the items; in brackets the range that holds 9 in 10 "
    "items, not given where the items of a batch share its time. The model does the same work in every row: how much "
    "its time differs between rows is how far the clock can be trusted.",
    "tokens_reference": "Reference: tokens as the public wrapper of the family counts them; answer: tokens up to the "
    "first end of text or stop string. Seconds leave out one warm-up generation; of a batch, an item has its share.",
    "p": "Won : lost: items that only this row, or only the baseline, solves; p: exact two-sided McNemar test, not "
    "corrected for the number of rows.",
}
FEW = f"Coarse: fewer than {COARSE} items a row. The intervals say how little that tells."
UNTIMED = "A table without TPS and seconds: other work shared the device while its rows were measured."
MIXED = "Rows differ in device, dtype or batch size: their TPS are not comparable with each other."
NO_BASELINE = "No baseline (entropy or fixed, one token a pass) on the same items: no paired test."
DUELS = (
    "Paired: the same items, resampled together for the 95 % intervals. Won : lost: items that only mean_field, or "
    "only the other, solves; p: exact two-sided McNemar test, corrected for the number of rows by Holm's method."
)

Sections = list[list[Row]]  # the rows of a table, made by `row_of`; a rule is drawn between sections


def row_of(cell: Measured, label: str = "", baseline: Measured | None = None, **more: Value) -> Row:
    """Every number of a cell: its own, against its baseline, and `more`, such as the paper's. A table shows some.

    Beside them lie the cell itself, its baseline, and the paired test of the two.
    """
    asked, columns, test = cell.cell, cell.columns, paired(cell, baseline)
    parameters = {key: value for key, value in asked.policy.items() if key != "name" and value is not None}
    parameters |= {key: asked.settings[key] for key in ("max_tokens", "block_size")}
    row: Row = {key: getattr(cell, key) for key in ("run", "model", "items", "device")}
    row |= {key: getattr(asked, key) for key in ("task", "shots", "template", "dtype", "batch_size")}
    row |= {key: value_of(cell, key) for key in ("max_tokens", "block_size", "cache")}
    row |= {
        "label": label,
        "weights": weights_of(cell) or asked.dtype,
        "early_stop": "on" if value_of(cell, "early_stop") else "off",
        "parameters": ", ".join(f"{key}={value}" for key, value in parameters.items()),
        "truncated": int(columns["truncated"].sum()),
        "accuracy": cell.accuracy(),
        "passes": cell.passes(),
        "answer": float(columns["answer"].mean()) if cell.done else None,
    }
    row |= {f"{SCORE}{name}": cell.accuracy(name) for name in cell.scores if name != asked.headline}
    for count in COUNTS:
        row[f"tokens_{count}"] = int(columns[count].sum())
        row[f"tokens_per_pass_{count}"] = cell.ratio(count, "passes")
        row[f"tokens_per_second_{count}"] = cell.ratio(count, "seconds")
        row[f"speedup_{count}"] = cell.ratio(count, "seconds", over=baseline) if baseline else None
    row |= {key: row[f"{key}_reference"] for key in ("tokens_per_second", "speedup")}
    for part in PARTS if cell.timed and cell.done else ():
        low, middle, high = np.percentile(1000 * columns[part] / columns["passes"], [5, 50, 95]).tolist()
        row[f"seconds_{part}"] = float(columns[part].mean())
        row[f"{part}_pass"] = Estimate(value=middle, interval=(low, high) if cell.own_time else None)
    if baseline:
        row["fewer_passes"] = baseline.ratio("passes", over=cell)
    if test:
        row |= {"won_lost": f"{test.only_this} : {test.only_baseline}", "p": test.p}
    return row | more | {"cell": cell, "paired": test, "baseline": baseline}


def results_table(name: str, title: str, keys: set[str], sections: Sections, baseline: str | None = None) -> Table:
    """The cells beside their baselines; `baseline` says what these are, if not one token a pass."""
    rows = [row for section in sections for row in section]
    cells = [row["cell"] for row in rows]
    shared = {c.key for c in (WEIGHTS, *SETTINGS) if len({row[c.key] for row in rows}) == 1}
    said = [(text, rows[0][c.key]) for c, text in SETTINGS.items() if c.key in shared]
    words = [text.format(value) for text, value in said if value not in (None, "none")]
    words = [text.removesuffix("s") if text in ("1 items", "1 tokens") else text for text in words]
    wanted = (keys | {c.key for c in SETTINGS}) - shared
    if "passes" in keys and all(row["speedup"] for row in rows):
        wanted.discard("fewer_passes")  # the speed-up says it
    columns = [c for column in COLUMNS if column.key in wanted for c in _columns(column, rows)]
    if len({cell.speed_key for cell in cells}) > 1:
        columns = [replace(c, wanted="") if c.key in ("tokens_per_second", "speedup") else c for c in columns]
    coarse = "accuracy" in keys and max(cell.cell.items or cell.done for cell in cells) < COARSE
    alike = len({questions(cell) for cell in cells}) == 1
    return Table(
        name=name,
        title=": ".join(part for part in (title, ", ".join(words)) if part) + " (coarse)" * coarse,
        columns=columns,
        rows=rows,
        notes=[FEW] * coarse + _notes(keys, {column.key for column in columns}, rows, baseline),
        sections=list(accumulate(len(section) for section in sections if section))[:-1],
        fair=[alike and may_be_best(cell) for cell in cells],
    )


def _columns(column: Column, rows: Sequence[Row]) -> list[Column]:
    """The column, if a row has a value for it; for scores, a column each."""
    if column.key != SCORE:
        return [column] if any(row.get(column.key) for row in rows) else []
    keys = dict.fromkeys(key for row in rows for key in row if key.startswith(SCORE))
    return [replace(column, key=key, title=f"{key.removeprefix(SCORE)} %") for key in keys]


def _notes(keys: set[str], shown: set[str], rows: Sequence[Row], baseline: str | None) -> list[str]:
    cells = [row["cell"] for row in rows]
    mixed = len({cell.speed_key for cell in cells}) > 1 and any("second" in key for key in shown)
    untimed = [row["label"] for row in rows if any("second" in key for key in keys) and not row["cell"].timed]
    named = ", ".join(untimed) if len(untimed) < 10 else f"{len(untimed)} rows"
    policies = " or ".join(sorted({row["baseline"].policy for row in rows if row["baseline"]}))
    headlines = " or ".join(sorted({cell.cell.headline for cell in cells}))
    truncated = sum(row["truncated"] for row in rows)
    notes = [
        (True, INTERVALS),
        (not all(cell.complete for cell in cells), "A row that is not finished is never marked as the best."),
        *((key in shown, note) for key, note in NOTES.items()),
        (len(untimed) == len(rows), UNTIMED),
        (0 < len(untimed) < len(rows), f"No TPS, no seconds for {named}: other work shared the device meanwhile."),
        (mixed, MIXED),
        (policies, f"Baseline: {baseline or f'{policies}, one token a pass'}."),
        (not policies and keys & {"p", "speedup"}, NO_BASELINE),
        (any(SCORE in key for key in shown), f"Accuracy is {headlines}; other readings follow."),
        (truncated, f"{truncated} prompts were cut to fit the model."),
    ]
    return [note for holds, note in notes if holds]


def may_be_best(cell: Measured) -> bool:
    """Whether a value may be printed bold: the cell is finished and not coarse."""
    return cell.complete and cell.done >= COARSE


def weights_of(cell: Measured) -> str | None:
    """The format of quantised weights, the last part of the model's name; None for weights that are not quantised."""
    found = cell.cell.model.rpartition("+")[2]
    return found if found in QUANTIZED else None


def cell_record(cell: Measured, pool: Cells) -> dict[str, Any]:
    """A cell and its numbers as plain data; the baseline is looked for in the pool."""
    row = row_of(cell, baseline=baseline_of(cell, pool))
    baseline, test = row.pop("baseline"), row.pop("paired")
    record = {key: value.to_dict() if isinstance(value, Estimate) else value for key, value in row.items()}
    record |= {"cell": asdict(cell.cell), "done": cell.done, "complete": cell.complete, "shared": not cell.timed}
    record["accuracy"] = {name: (one := cell.accuracy(name)) and one.to_dict() for name in cell.scores}
    record["seconds"] = {part: float(cell.columns[part].sum()) for part in PARTS} if cell.timed else None
    record["paired"] = test and test._asdict()
    return record | {"baseline": baseline and baseline.cell.key, "device_name": cell.about.get("device_name")}


def duels(name: str, title: str, rows: Sequence[Row]) -> list[Table]:
    """Mean-field against every other finished row, on the same items, where it has exactly one row itself."""
    done = [row for row in rows if row["cell"].complete]
    own = [row for row in done if row["cell"].policy == "mean_field"]
    if len(own) != 1:
        return []
    ours, label = own[0]["cell"], own[0]["label"]
    found = [row_of(ours, row["label"], row["cell"]) for row in done if row["cell"] is not ours]
    found = [row for row in found if row["paired"]]
    for row, corrected in zip(found, holm([row["p"] for row in found]), strict=True):
        theirs = row["baseline"]
        points = estimate_of(lambda a, b: 100 * (a["correct"] - b["correct"]) / a["items"], ours, theirs)
        row |= {
            "accuracy_difference": points,
            "p_corrected": corrected,
            "passes_ratio": ours.ratio("passes", over=theirs),
        }
    columns = [Column("label", f"{label} against"), *(column for column in COLUMNS if column.key in DUEL)]
    title = f"{title}: {label} against each"
    return [Table(name=f"{name}-duels", title=title, columns=columns, rows=found, notes=[DUELS])] if found else []
