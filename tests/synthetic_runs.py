"""Runs that were never run: made-up generations in the real file format, for tests of the report."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from unmask.evals.cell import Cell, Generation
from unmask.evals.store import CellFolder
from unmask.report import measured
from unmask.report.table import Shown, Table, interval_of, number_of
from unmask.settings import Settings

SECONDS_PER_PASS = 0.01


def cell_of(policy: str = "mean_field", **changes: Any) -> Cell:
    """A cell of tiny; keys of the settings and of the policy may be given beside those of the cell."""
    names = Cell.__dataclass_fields__
    settings = {"max_tokens": 128, "block_size": 32}
    chosen: dict[str, Any] = {"name": policy}
    if policy == "mean_field":
        chosen |= {"threshold": 0.85, "iterations": 2, "interaction": "jsd"}
    if policy in ("fixed", "entropy"):
        chosen |= {"tokens_per_pass": 1, "passes": None, "schedule": "even"}
    own = {key: changes.pop(key) for key in list(changes) if key in names}
    for key, value in changes.items():
        (settings if key in Settings.__dataclass_fields__ else chosen)[key] = value
    whole = Settings(**{"cache": "none"} | settings).to_dict()
    base = {"model": "tiny", "family": "llada", "task": "sudoku", "items": 40}
    return Cell(policy=chosen, settings=whole, **base | own)


def write(
    run: Path,
    cell: Cell,
    *,
    passes: float | list[int],
    right: float | list[bool],
    tokens: int = 60,
    done: int | None = None,
    seconds_per_pass: float = SECONDS_PER_PASS,
    seed: int = 0,
    extra_scores: dict[str, float] | None = None,
    about: dict[str, Any] | None = None,
) -> CellFolder:
    """A cell with that many passes (a mean, or one number an item) and that share of right answers."""
    count = cell.items if done is None else done
    random = np.random.default_rng(seed)
    hard = np.random.default_rng(1).random(cell.items)  # the same items are hard for every policy
    if not isinstance(passes, list):
        spread = 0 if float(passes).is_integer() else 1
        passes = [max(1, int(x)) for x in np.round(passes + spread * random.normal(0, passes / 8, cell.items))]
    if not isinstance(right, list):
        right = [bool(x) for x in hard + random.normal(0, 0.05, cell.items) < right]
    folder = CellFolder.open(run, cell, {"device_name": "a CPU", "versions": {"unmask": "0"}, **(about or {})})
    rows = [
        Generation(
            id=i,
            prompt="p",
            text="t",
            token_ids=[1, 2],
            tokens_reference=tokens + i % 3,
            tokens_answer=tokens - 2,
            passes=passes[i],
            seconds={"model": passes[i] * seconds_per_pass, "policy": passes[i] * 0.001, "rest": 0.002},
        )
        for i in range(count)
    ]
    folder.add(rows)
    folder.add_scores({i: {"correct": float(right[i])} | (extra_scores or {}) for i in range(count)})
    if count == cell.items:
        folder.finish()
    return folder


def describe(run: Path, table: str, title: str = "a title") -> None:
    run.mkdir(parents=True, exist_ok=True)
    (run / "run.json").write_text(json.dumps({"recipe": "r", "table": table, "title": title}))


def aup_of(points: list[tuple[float, float]], best: float) -> tuple[float, list[int]]:
    """The area under one curve of (tokens per pass, accuracy in percent), and which of its points do not count."""
    speed, accuracy = np.array(points, float).T
    (area,), (kept,) = measured.aup(speed[None], accuracy[None], np.array([best]))
    return float(area), np.flatnonzero(~kept).tolist()


EMPTY = SimpleNamespace(text=Shown().text, value=None, low=None, high=None, best=False)


def rows_of(table: Table) -> list[dict[str, SimpleNamespace]]:
    """The rows of a table by the keys of its columns, as printed and unrounded; an empty place is missing."""
    found = []
    for row, shown in zip(table.rows, table.shown(), strict=True):
        found.append({})
        for column, place in zip(table.columns, shown, strict=True):
            value = row.get(column.key)
            low, high = interval_of(value) or (None, None)
            if value not in (None, ""):
                entry = SimpleNamespace(text=place.text, value=number_of(value), low=low, high=high, best=place.best)
                found[-1][column.key] = entry
    return found


def row_of(table: Table, label: str) -> dict[str, SimpleNamespace]:
    """The row with that label; an empty place is an empty entry."""
    return defaultdict(lambda: EMPTY, next(row for row in rows_of(table) if row["label"].text.startswith(label)))
