"""Files that something else has damaged are named in one line, wherever the damage is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unmask.errors import UnmaskError
from unmask.evals.recipe import parse
from unmask.evals.run import run
from unmask.evals.store import cells_of

SMALL = {"tasks": ["countdown-3"], "limit": 3, "settings": {"max_tokens": 8}}
RECIPE = parse({"model": "toy", "policy": "threshold", **SMALL})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run(RECIPE, out=tmp_path / "run")
    return tmp_path / "run"


def test_half_a_run_json_is_named(folder: Path) -> None:
    path = folder / "run.json"
    path.write_text(path.read_text()[:40])
    with pytest.raises(UnmaskError, match=r"run\.json is damaged"):
        run(RECIPE, out=folder)


NAMELESS = {"model": "toy", "family": "llada", "policy": {"nime": "threshold"}, "settings": {}, "task": "sudoku"}


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("cell.json", "", r"cell\.json is damaged"),
        ("cell.json", '{"schema": "unmask.eval/9"}', r"cell\.json is not of the form unmask\.eval/1"),
        ("cell.json", '{"schema": "unmask.eval/1", "cell": {}}', "is damaged"),
        ("cell.json", json.dumps({"schema": "unmask.eval/1", "cell": NAMELESS}), "is damaged"),
        ("items.jsonl", '{"id": 0,\n', r"items\.jsonl, line 1 is damaged"),
        ("items.jsonl", '{"id": 0}\n', "is damaged"),
        ("scores.jsonl", "\xff\n", r"scores\.jsonl, line 1 is damaged"),
    ],
)
def test_a_damaged_file_of_a_cell_is_named(folder: Path, name: str, content: str, complaint: str) -> None:
    [cell] = cells_of(folder)
    (cell.folder / name).write_text(content, encoding="latin-1")
    with pytest.raises(UnmaskError, match=complaint):
        cells_of(folder)
