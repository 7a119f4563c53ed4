"""Tables about cells: a row each, a title that says what the rows share, and the notes of the columns.

Speeds are compared within one device, dtype and batch size only, and stand beside the paper's at batch size 1 only.
Where other work shared the device there are none; what is left is how many passes were saved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain

import numpy as np

from unmask.report.statistics import Estimate
from unmask.report.compare import paired, questions, speedup
from unmask.report.measured import COUNTS, PARTS, Measured, estimate_of, value_of
from unmask.report.paper import Printed
from unmask.report.table import NOTHING, Column, Entry, Row, Table, estimate, mark_best, number, words

COARSE = 100  # with fewer items a table says so itself, and marks no best value
QUANTIZED = ("int8", "fp8")  # formats of weights

# What is true of columns, by their keys; a column without a title has its key for one.
TITLES = {"label": "policy", "unfinished": "items", "done": "items", "max_tokens": "tokens", "block_size": "block"}
TITLES |= {"batch_size": "batch", "early_stop": "early stop", "accuracy": "accuracy %", "passes": "NFE", "aup": "AUP"}
TITLES |= {"fewer_passes": "fewer passes", "tokens_per_second": "TPS", "speedup": "speed-up", "answer": "answer tokens"}
TITLES |= dict.fromkeys(("paper_accuracy", "paper_passes", "paper_tokens_per_second"), "paper")
TITLES |= {"paper_speedup": "paper (printed)", "won_lost": "won : lost", "p_corrected": "p, corrected"}
TITLES |= {"accuracy_difference": "accuracy, points", "passes_ratio": "passes over theirs"}
TITLES |= {f"tokens_{count}": f"tokens ({count})" for count in COUNTS}
TITLES |= {f"tokens_per_second_{count}": f"TPS ({count})" for count in COUNTS}
TITLES |= {f"tokens_per_pass_{count}": f"tokens/pass ({count})" for count in COUNTS}
TITLES |= {f"seconds_{part}": f"{part} s/item" for part in PARTS} | {f"{part}_pass": f"{part} ms" for part in PARTS}
WORDS = {"label", "task", "weights", "device", "dtype", "cache", "early_stop", "parameters", "unfinished", "aup"}
WANTED = dict.fromkeys(("accuracy", "fewer_passes", "tokens_per_second", "speedup"), "high") | {"passes": "low"}
# A narrow screen leaves out the first of these, then the next.
SPARE = ("rest_pass", "policy_pass", "model_pass", "won_lost", "answer", "paper_speedup", "paper_tokens_per_second")
SPARE += ("p", "tokens_per_second", "accuracy_of_", "paper_passes", "paper_accuracy", "fewer_passes", "speedup")

# Settings have columns where the rows differ in them; else the title names them, in another order.
SETTINGS = ("max_tokens", "block_size", "device", "dtype", "batch_size")
SHARED = {"max_tokens": "{} tokens", "device": "{}", "dtype": "{}", "batch_size": "batch {}", "block_size": "block {}"}
RESULTS = ("label", *SETTINGS, "unfinished", "accuracy", "paper_accuracy", "passes", "paper_passes", "fewer_passes")
RESULTS += ("tokens_per_second", "paper_tokens_per_second", "speedup", "paper_speedup", "won_lost", "p", "aup")
COMPARED = ("task", "weights", *SETTINGS, "unfinished", "accuracy", "passes", "answer", "won_lost", "p")
SPEED = ("label", *SETTINGS, "unfinished", "tokens_per_second", "speedup", "fewer_passes")
SPEED += tuple(f"{part}_pass" for part in PARTS)
DUELS = ("label", "accuracy_difference", "won_lost", "p", "p_corrected", "passes_ratio")
DETAILS = ("label", "done")
DETAILS += tuple(f"{what}_{count}" for count in COUNTS for what in ("tokens", "tokens_per_second", "tokens_per_pass"))
DETAILS += (*(f"seconds_{part}" for part in PARTS), "device", "dtype", "cache", "batch_size", "early_stop", "truncated")
DETAILS += ("parameters",)

INTERVALS = "In brackets: 95 % intervals, Wilson for accuracy, resampling of items (2,000 times) for the rest."
ALL_SHARED = "A table without TPS and seconds: other work shared the device while its rows were measured."
TEST = "exact two-sided McNemar test"
WON = (
    f" Won : lost: items that only this row, or only the baseline, solves; p: {TEST}, not corrected for the number of "
    "rows."
)
NOTES = {
    "passes": "NFE: forward passes per item.",
    "fewer_passes": "Fewer passes: the baseline's NFE over the row's, on the same items.",
    "tokens_per_second": "TPS counts tokens as the public wrapper of the model's family does. Intervals of TPS and "
    "speed-up are about which items were asked, not about noise of the clock. At batch sizes above 1 there are none: "
    "the items of a batch share its time.",
    "speedup": "Speed-up: TPS over that of the baseline in the same run, on the same items.",
    "model_pass": "Milliseconds are for one pass, the median of the items; in brackets the range that holds 9 in 10 "
    "items, not given where the items of a batch share its time. The model does the same work in every row: how much "
    "its time differs between rows is how far the clock can be trusted.",
    "unfinished": "A row with a number of items is not finished; it is never marked as the best.",
    "paper_accuracy": "Paper: as published, on H100s at batch size 1, and its speed beside rows of that size only; its "
    "speed-up is the ratio of its TPS, with the printed value in brackets.",
    "p_corrected": "Paired: the same items, resampled together for the 95 % intervals. Won : lost: items that only "
    f"mean_field, or only the other, solves; p: {TEST}, corrected for the number of rows by Holm's method.",
    "tokens_reference": "Reference: tokens as the public wrapper of the family counts them; answer: tokens up to the "
    "first end of text or stop string. Seconds leave out one warm-up generation; of a batch, an item has its share.",
}


@dataclass(frozen=True, kw_only=True)
class Line:
    """The subject of a row: a cell, and the cell and printed values it is compared with."""

    cell: Measured
    label: str = ""
    baseline: Measured | None = None
    printed: Printed | None = None
    extra: Row = field(default_factory=dict)  # entries that depend on the other lines


Sections = list[list[Line]]  # the lines of a table; a rule is drawn between sections


def column_of(key: str) -> Column:
    """The column of that key; `accuracy_of_NAME` is that of a score which is not the headline."""
    kind, other, name = key.partition("accuracy_of_")
    spare = len(SPARE) - SPARE.index(other or kind) if (other or kind) in SPARE else 0
    wanted = "high" if other else WANTED.get(key)
    return Column(key, f"{name} %" if other else TITLES.get(key, key), key in WORDS, wanted, spare)


def lines_table(name: str, title: str, keys: Sequence[str], sections: Sections, *, details: bool = False) -> Table:
    """A table with those of the columns that say something; the best values are marked where that is fair."""
    lines = list(chain.from_iterable(sections))
    cells, rows = [line.cell for line in lines], [_entries(line) for line in lines]
    needless = {key for key in (*SETTINGS, "weights") if not details and len({row[key].text for row in rows}) == 1}
    if "passes" in keys and all("speedup" in row for row in rows):
        needless.add("fewer_passes")
    columns = [column_of(key) for key in keys if key not in needless and any(key in row for row in rows)]
    notes = [] if keys is DUELS else [INTERVALS]
    notes += [NOTES[column.key] for column in columns if column.key in NOTES]
    untimed = [line.label for line in lines if not line.cell.timed]
    if untimed and any("second" in key for key in keys):
        some = f"No TPS, no seconds for {', '.join(untimed)}: other work shared the device meanwhile."
        notes.append(some if len(untimed) < len(lines) else ALL_SHARED)
    if len({cell.speed_key for cell in cells}) > 1 and any("TPS" in note for note in notes):
        columns = [replace(c, wanted=None) if c.key in ("tokens_per_second", "speedup") else c for c in columns]
        notes.append("Rows differ in device, dtype or batch size: their TPS are not comparable with each other.")
    alike = len({questions(cell) for cell in cells}) == 1
    starts = list(accumulate(len(section) for section in sections if section))[:-1]
    rows = mark_best(columns, rows, [alike and may_be_best(cell) for cell in cells])
    return Table(name=name, title=title, columns=columns, rows=rows, notes=notes, details=details, sections=starts)


def results_table(name: str, title: str, keys: Sequence[str], sections: Sections, baseline: str | None = None) -> Table:
    """The cells beside their baselines; `baseline` says what these are, if not one token a pass."""
    lines = list(chain.from_iterable(sections))
    cells = [line.cell for line in lines]
    scores = dict.fromkeys(name for cell in cells for name in cell.scores if name != cell.cell.headline)
    if "accuracy" in keys:
        at = keys.index("passes")
        keys = (*keys[:at], *(f"accuracy_of_{name}" for name in scores), *keys[at:])
    table = lines_table(name, title, keys, sections)
    policies = " or ".join(sorted({line.baseline.policy for line in lines if line.baseline}))
    headlines = " or ".join(sorted({cell.cell.headline for cell in cells}))
    truncated = sum(int(cell.columns["truncated"].sum()) for cell in cells)
    coarse = "accuracy" in keys and max(cell.cell.items or cell.done for cell in cells) < COARSE
    notes = [
        (coarse, f"Coarse: fewer than {COARSE} items a row. The intervals say how little that tells."),
        *((True, note) for note in table.notes),
        (policies, f"Baseline: {baseline or f'{policies}, one token a pass'}.{WON if 'p' in keys else ''}"),
        (not policies, "No baseline (entropy or fixed, one token a pass) on the same items: no paired test."),
        (scores and "accuracy" in keys, f"Accuracy is {headlines}; other readings follow."),
        (truncated, f"{truncated} prompts were cut to fit the model."),
    ]
    title = f"{title}: {_shared(cells, table)}{' (coarse)' if coarse else ''}"
    return replace(table, title=title, notes=[note for holds, note in notes if holds])


def may_be_best(cell: Measured) -> bool:
    """Whether bold print would say something: finished, and with more than a handful of items."""
    return cell.complete and cell.done >= COARSE


def _shared(cells: Sequence[Measured], table: Table) -> str:
    """What all rows have in common, for a title."""
    first, shown = cells[0].cell, {column.key for column in table.columns}
    # A task may have fewer items than were asked for.
    parts = [f"{max(cell.done if cell.complete else cell.cell.items for cell in cells):,} items"]
    parts += [] if first.shots is None else [f"{first.shots}-shot"]
    parts += [] if first.template == "none" else [f"{first.template} template"]
    values = {key: entry.text for key, entry in table.rows[0].items()}
    values["device"] = str(cells[0].about.get("device_name") or first.device)
    return ", ".join(parts + [text.replace("{}", values[key]) for key, text in SHARED.items() if key not in shown])


def _entries(line: Line) -> Row:
    """Every entry of a row; a table shows some of them."""
    cell, asked, settings = line.cell, line.cell.cell, line.cell.cell.settings
    parameters = asked.policy | {key: settings.get(key) for key in ("max_tokens", "block_size")}
    shown = [f"{key}={value}" for key, value in parameters.items() if key != "name" and value is not None]
    row = {
        "label": words(line.label),
        "task": words(asked.task),
        "weights": words(weights_of(cell) or asked.dtype),
        "max_tokens": number(settings["max_tokens"], 0),
        "block_size": number(value_of(cell, "block_size"), 0),
        "device": words(asked.device),
        "dtype": words(asked.dtype),
        "batch_size": number(asked.batch_size, 0),
        "cache": words(str(settings.get("cache", "none"))),
        "early_stop": words("on" if settings.get("early_stop") else "off"),
        "parameters": words(", ".join(shown)),
        "truncated": number(float(cell.columns["truncated"].sum()), 0),
        "done": number(cell.done, 0),
        "unfinished": words("" if cell.complete else f"{cell.done} of {asked.items or '?'}"),
        "accuracy": estimate(cell.accuracy()),
        "passes": estimate(cell.passes()),
        "tokens_per_second": _speed(cell.tokens_per_second()),
        "answer": number(float(cell.columns["answer"].mean()) if cell.done else None),
    }
    row |= {f"accuracy_of_{name}": estimate(cell.accuracy(name)) for name in cell.scores}
    for count in COUNTS:
        row[f"tokens_{count}"] = number(float(cell.columns[count].sum()), 0)
        row[f"tokens_per_second_{count}"] = _speed(cell.tokens_per_second(count))
        row[f"tokens_per_pass_{count}"] = estimate(cell.tokens_per_pass(count), 2)
    for part in PARTS if cell.timed and cell.done else ():
        row[f"seconds_{part}"] = number(float(cell.columns[part].mean()), 4)
        row[f"{part}_pass"] = _milliseconds(cell, part)
    row |= _beside(cell, line.baseline, line.printed) | line.extra
    return {key: entry for key, entry in row.items() if entry.text != NOTHING}


def _beside(cell: Measured, baseline: Measured | None, printed: Printed | None) -> Row:
    """The cell against its baseline, item by item, and what the paper prints."""
    row: Row = {}
    if baseline:
        fewer = estimate_of(lambda ours, theirs: theirs["passes"] / ours["passes"], cell, baseline)
        row |= {"fewer_passes": estimate(fewer, 2, "×"), "speedup": estimate(speedup(cell, baseline), 2, "×")}
    if baseline and (test := paired(cell, baseline)):
        gained = estimate_of(lambda a, b: 100 * (a["correct"] - b["correct"]) / a["items"], cell, baseline)
        spent = estimate_of(lambda a, b: a["passes"] / b["passes"], cell, baseline)
        row |= {"won_lost": words(f"{test.only_first} : {test.only_second}"), "p": p_value(test.p)}
        row |= {"accuracy_difference": estimate(gained), "passes_ratio": estimate(spent, 2, "×")}
    if printed:
        row |= {"paper_accuracy": number(printed.accuracy, 2), "paper_passes": number(printed.passes)}
    if printed and cell.timed and cell.own_time:
        as_printed = "" if printed.printed_speedup is None else f" ({printed.printed_speedup:.2f})"
        row |= {"paper_tokens_per_second": number(printed.tokens_per_second, 2)}
        row |= {"paper_speedup": number(printed.speedup, 2, f"×{as_printed}")}
    return row


def weights_of(cell: Measured) -> str | None:
    """The format of quantised weights, the last part of the model's name; None for weights as they were."""
    found = cell.cell.model.rpartition("+")[2]
    return found if found in QUANTIZED else None


def p_value(p: float) -> Entry:
    return replace(number(p, 3), text="< 0.001") if p < 0.001 else number(p, 3)


def _speed(found: Estimate | None) -> Entry:
    """Tokens per second with about four digits: more would be noise."""
    return estimate(found, 2 if found is None or found.value < 100 else 1 if found.value < 1000 else 0)


def _milliseconds(cell: Measured, part: str) -> Entry:
    """Of one pass: the median of the items, and the range that holds nine in ten of them."""
    low, middle, high = np.percentile(1000 * cell.columns[part] / cell.columns["passes"], [5, 50, 95])
    return estimate(Estimate(value=float(middle), interval=(float(low), float(high)) if cell.own_time else None), 2)
