"""The table of results that every experiment shows: a row a cell, with intervals, a baseline and the paper's values.

Speeds are compared within one device, dtype and batch size only, and stand beside the paper's at batch size 1 only.
Where other work shared the device there are none; what is left is how many passes were saved.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from unmask.report.measured import Estimate, Measured, baseline_of, fewer_passes, paired, rival_of, speedup, value_of
from unmask.report.paper import Printed
from unmask.report.published import changes, traits, with_traits
from unmask.report.table import Column, Entry, Table, estimate, mark_best, number, without_empty_columns, words

Thing = TypeVar("Thing")

COARSE = 100  # with fewer items a table says so itself, and marks no best value
INTERVALS = "In brackets: 95 % intervals, Wilson for accuracy, resampling of items (2,000 times) for the rest."
NFE = "NFE: forward passes per item. Fewer passes: the baseline's NFE over the row's, on the same items."
TIMES = "Intervals of TPS and speed-up are about which items were asked; they do not cover noise of the clock."
BATCHED = (
    "TPS and speed-up have no intervals at batch sizes above 1, as the items of a batch share its time; they are not "
    "exact for that: nothing here covers noise of the clock."
)
ALL_SHARED = "A table without TPS and seconds: other work shared the device while its rows were measured."
SOME_SHARED = "No TPS, no seconds for {}: other work shared the device meanwhile."


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A row to be: what it is called, the cell, what the paper says of it."""

    label: str
    cell: Measured
    printed: Printed | None = None


def results_table(
    name: str,
    title: str,
    lines: Sequence[Line],
    pool: Sequence[Measured],
    *,
    sections: Sequence[int] = (),
    own_block: bool = False,
) -> Table:
    """One table of results; `pool` is where baselines are looked for, if need be among those of the row's own block."""
    cells = [line.cell for line in lines]
    rivals = [
        rival_of(cell, [other for other in pool if not own_block or _block(other) == _block(cell)]) for cell in cells
    ]
    rows = [_row(line, baseline_of(line.cell, pool), rival) for line, rival in zip(lines, rivals, strict=True)]
    comparable = len({cell.speed_key for cell in cells}) == 1
    variants = dict.fromkeys(key for row in rows for key in row if key.startswith("accuracy_of_"))
    columns = without_empty_columns(_columns(list(variants), comparable), rows)
    columns = [column for column in columns if column.key not in _SAID_ONCE or _differs(rows, column.key)]
    if all(row["speedup"].value is not None for row in rows):
        columns = [column for column in columns if column.key != "fewer_passes"]
    rows = mark_best(columns, rows, [may_be_best(cell) for cell in cells])
    notes = _notes(lines, rivals, [column.key for column in columns])
    full_title = f"{title}: {describe(cells)}"
    if max(cell.cell.items or cell.done for cell in cells) < COARSE:
        full_title += " (coarse)"
        notes.insert(0, f"Coarse: fewer than {COARSE} items a row. The intervals say how little that tells.")
    return Table(name=slug(name), title=full_title, columns=columns, rows=rows, notes=notes, sections=sections)


def may_be_best(cell: Measured) -> bool:
    """Whether bold print would say something: finished, and with more than a handful of items."""
    return cell.complete and cell.done >= COARSE


def _block(cell: Measured) -> float | int:
    return value_of(cell, "block_size")


_SAID_ONCE = ("block_size", "device", "dtype", "batch_size")


def _columns(variants: Sequence[str], comparable: bool) -> list[Column]:
    fastest = "high" if comparable else None
    return [
        Column(key="label", title="policy", words=True),
        Column(key="block_size", title="block"),
        Column(key="device", title="device", words=True),
        Column(key="dtype", title="dtype", words=True),
        Column(key="batch_size", title="batch"),
        Column(key="unfinished", title="items", words=True),
        Column(key="accuracy", title="accuracy %", wanted="high"),
        Column(key="paper_accuracy", title="paper", spare=2),
        *(Column(key=key, title=f"{key.removeprefix('accuracy_of_')} %", wanted="high", spare=4) for key in variants),
        Column(key="passes", title="NFE", wanted="low"),
        Column(key="paper_passes", title="paper", spare=3),
        Column(key="fewer_passes", title="fewer passes", wanted="high", spare=1),
        Column(key="tokens_per_second", title="TPS", wanted=fastest, spare=5),
        Column(key="paper_tokens_per_second", title="paper", spare=7),
        Column(key="speedup", title="speed-up", wanted=fastest, spare=1),
        Column(key="paper_speedup", title="paper (printed)", spare=8),
        Column(key="won_lost", title="won : lost", spare=9),
        Column(key="p", title="p", spare=6),
    ]


def _row(line: Line, baseline: Measured | None, rival: Measured | None) -> dict[str, Entry]:
    cell, printed = line.cell, line.printed
    row = {
        "label": words(line.label),
        "block_size": number(_block(cell), 0),
        "device": words(cell.cell.device),
        "dtype": words(cell.cell.dtype),
        "batch_size": number(cell.cell.batch_size, 0),
        "accuracy": estimate(cell.accuracy()),
        "passes": estimate(cell.passes()),
        "fewer_passes": estimate(fewer_passes(cell, rival), 2, "×"),
        "tokens_per_second": speed(cell.tokens_per_second()),
        "speedup": estimate(speedup(cell, baseline), 2, "×"),
    }
    if not cell.complete:
        row["unfinished"] = words(f"{cell.done} of {cell.cell.items or '?'}")
    for name in cell.scores:
        if name != cell.cell.headline:
            row[f"accuracy_of_{name}"] = estimate(cell.accuracy(name))
    if (test := paired(cell, rival)) is not None:
        row |= {"won_lost": words(f"{test.only_first} : {test.only_second}"), "p": p_value(test.p)}
    return row | (_paper_entries(printed, speed=cell.timed and cell.cell.batch_size == 1) if printed else {})


def _paper_entries(printed: Printed, *, speed: bool) -> dict[str, Entry]:
    row = {"paper_accuracy": number(printed.accuracy, 2), "paper_passes": number(printed.passes)}
    if speed:
        row["paper_tokens_per_second"] = number(printed.tokens_per_second, 2)
        if printed.speedup is not None:
            as_printed = "" if printed.printed_speedup is None else f" ({printed.printed_speedup:.2f})"
            row["paper_speedup"] = number(printed.speedup, 2, f"×{as_printed}")
    return row


def p_value(p: float) -> Entry:
    return Entry(value=p, text="< 0.001" if p < 0.001 else "", decimals=3)


def _notes(lines: Sequence[Line], rivals: Sequence[Measured | None], shown: Sequence[str]) -> list[str]:
    cells = [line.cell for line in lines]
    notes = [INTERVALS, NFE if "fewer_passes" in shown else NFE.partition(". ")[0] + "."]
    names = sorted({rival.policy for rival in rivals if rival is not None})
    if names:
        notes.append(
            f"Baseline: {' or '.join(names)}, one token a pass. Won : lost: items that only this row, or only the "
            "baseline, solves; p: exact two-sided McNemar test, not corrected for the number of rows."
        )
    else:
        notes.append("No baseline (entropy or fixed, one token a pass) on the same items: no paired test.")
    if "tokens_per_second" in shown:
        notes.append("TPS counts tokens as the public wrapper of the model's family does.")
        notes += time_notes(cells)
    if "speedup" in shown:
        notes.append("Speed-up: TPS over that of the baseline in the same run, on the same items.")
    if "tokens_per_second" in shown and len({cell.speed_key for cell in cells}) > 1:
        notes.append("Rows differ in device, dtype or batch size: their TPS are not comparable with each other.")
    notes += shared_note(lines)
    if any(len(cell.scores) > 1 for cell in cells):
        notes.append(
            f"Accuracy is {' or '.join(sorted({cell.cell.headline for cell in cells}))}; other readings follow."
        )
    if any(not cell.complete for cell in cells):
        notes.append("A row with a number of items is not finished; it is never marked as the best.")
    if any(line.printed for line in lines):
        notes.append(
            "Paper: as published, on H100s at batch size 1; its speed-up is the ratio of its TPS, with the printed "
            "value in brackets."
        )
        if any(line.printed and line.cell.cell.batch_size != 1 for line in lines):
            notes.append("Rows of a batch size other than 1 have no speed of the paper beside them.")
    truncated = sum(int(cell.columns["truncated"].sum()) for cell in cells)
    return notes + ([f"{truncated} prompts were cut to fit the model."] if truncated else [])


def time_notes(cells: Sequence[Measured]) -> list[str]:
    """What the intervals of times cover, and why some have none."""
    timed = [cell for cell in cells if cell.timed]
    notes = [TIMES] if any(cell.own_time for cell in timed) else []
    return notes + ([BATCHED] if any(not cell.own_time for cell in timed) else [])


def shared_note(lines: Sequence[Line]) -> list[str]:
    """Why rows have no times, if any have none."""
    names = [line.label for line in lines if not line.cell.timed]
    if len(names) == len(lines):
        return [ALL_SHARED]
    return [SOME_SHARED.format(", ".join(names))] if names else []


def details_table(name: str, title: str, lines: Sequence[Line]) -> Table:
    """Everything else that was counted: both token counts, where the seconds went, and how it was run."""
    columns = [Column(key="label", title="policy", words=True), Column(key="done", title="items")]
    for count in ("reference", "answer"):
        columns += [
            Column(key=f"tokens_{count}", title=f"tokens ({count})"),
            Column(key=f"tokens_per_second_{count}", title=f"TPS ({count})"),
            Column(key=f"tokens_per_pass_{count}", title=f"tokens/pass ({count})"),
        ]
    columns += [Column(key=f"seconds_{part}", title=f"{part} s/item") for part in ("model", "policy", "rest")]
    columns += [Column(key=key, title=key.replace("_", " "), words=True) for key in ("device", "dtype", "cache")]
    columns += [Column(key="batch_size", title="batch"), Column(key="early_stop", title="early stop", words=True)]
    columns += [Column(key="truncated", title="truncated"), Column(key="parameters", title="parameters", words=True)]
    notes = [
        INTERVALS,
        "Reference: tokens as the public wrapper of the family counts them; answer: tokens up to the first end of text "
        "or stop string. Seconds leave out one warm-up generation; of a batch, an item has its share.",
        *time_notes([line.cell for line in lines]),
        *shared_note(lines),
    ]
    rows = [_details_row(line) for line in lines]
    columns = without_empty_columns(columns, rows)
    return Table(name=slug(name), title=f"{title}: details", columns=columns, rows=rows, notes=notes, details=True)


def _details_row(line: Line) -> dict[str, Entry]:
    cell = line.cell
    settings = cell.cell.settings
    row = {
        "label": words(line.label),
        "done": number(cell.done, 0),
        "device": words(cell.cell.device),
        "dtype": words(cell.cell.dtype),
        "cache": words(str(settings.get("cache", "none"))),
        "batch_size": number(cell.cell.batch_size, 0),
        "early_stop": words("on" if settings.get("early_stop") else "off"),
        "truncated": number(float(cell.columns["truncated"].sum()), 0),
        "parameters": words(parameters_of(cell)),
    }
    for count in ("reference", "answer"):
        row[f"tokens_{count}"] = number(float(cell.columns[count].sum()), 0)
        row[f"tokens_per_second_{count}"] = speed(cell.tokens_per_second(count))
        row[f"tokens_per_pass_{count}"] = estimate(cell.tokens_per_pass(count), 2)
    for part in ("model", "policy", "rest"):
        row[f"seconds_{part}"] = number(cell.seconds_per_item(part), 4)
    return row


def speed(found: Estimate | None) -> Entry:
    """Tokens per second with about four digits: more would be noise."""
    return estimate(found, 2 if found is None or found.value < 100 else 1 if found.value < 1000 else 0)


def parameters_of(cell: Measured) -> str:
    named = {key: value for key, value in cell.cell.policy.items() if key != "name"}
    named |= {key: cell.cell.settings.get(key) for key in ("max_tokens", "block_size")}
    return ", ".join(f"{key}={value}" for key, value in named.items() if value is not None)


def describe(cells: Sequence[Measured]) -> str:
    """What all rows have in common, for a title."""
    first = cells[0].cell
    # A task may have fewer items than were asked for.
    asked = max(cell.done if cell.complete else cell.cell.items for cell in cells)
    parts = [f"{asked:,} items"]
    parts += [] if first.shots is None else [f"{first.shots}-shot"]
    parts += [] if first.template == "none" else [f"{first.template} template"]
    tokens = {cell.cell.settings.get("max_tokens") for cell in cells}
    parts += [f"{tokens.pop()} tokens"] if len(tokens) == 1 else []
    device = cells[0].about.get("device_name") or first.device
    where = [(str(device), "device"), (first.dtype, "dtype"), (f"batch {first.batch_size}", "batch_size")]
    shown = [text for text, key in where if len({getattr(cell.cell, key) for cell in cells}) == 1]
    blocks = {_block(cell) for cell in cells}
    shown += [f"block {blocks.pop()}"] if len(blocks) == 1 else []
    return ", ".join(parts + shown)


def labels(cells: Sequence[Measured], *, block: bool = False) -> list[str]:
    """A name for every cell: the policy, what differs from how it was published, and what tells it from the others.

    The block is said where a table has neither a title nor a column for it.
    """
    found = []
    for cell in cells:
        rivals = [other for other in cells if other.policy == cell.policy and _group(other) == _group(cell)]
        others = [_traits(other, block) for other in rivals]
        changed = changes(cell)
        said = {
            key: value
            for key, value in _traits(cell, block).items()
            if key in changed or any(other.get(key) != value for other in others)
        }
        # A title can tell one length only.
        if len({other.cell.settings.get("max_tokens") for other in cells if _group(other) == _group(cell)}) > 1:
            said["max_tokens"] = cell.cell.settings.get("max_tokens")
        twins = [other for other in rivals if other is not cell and other.cell == cell.cell]
        found.append(with_traits(cell.policy, said | ({"run": cell.run} if twins else {})))
    return found


def _traits(cell: Measured, block: bool) -> dict[str, Any]:
    return traits(cell) | ({"block_size": _block(cell)} if block else {})


def _group(cell: Measured) -> tuple[Any, ...]:
    return cell.cell.model, cell.cell.task


def groups(things: Iterable[Thing], key: Callable[[Thing], Any]) -> list[list[Thing]]:
    """Things with equal keys together, in the order of their first appearance."""
    found: dict[Any, list[Thing]] = {}
    for thing in things:
        found.setdefault(key(thing), []).append(thing)
    return list(found.values())


def questions(cell: Measured) -> tuple[Any, ...]:
    """What rows of one table have in common."""
    asked = cell.cell
    return asked.model, asked.task, asked.shots, asked.template, asked.items, asked.seed, cell.about.get("weights")


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


def distinct(name: str, taken: Sequence[str]) -> str:
    """A file name that is not taken yet."""
    found, number = slug(name), 2
    while found in taken:
        found, number = slug(f"{name}-{number}"), number + 1
    return found


def _differs(rows: Sequence[dict[str, Entry]], key: str) -> bool:
    return len({row[key].main for row in rows}) > 1
