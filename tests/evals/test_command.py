"""`unmask eval` as it is typed: what it prints, what it refuses, and what it says when it is stopped."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from unmask import cli
from unmask.evals.executor import LocalExecutor

VALUES: dict[str, Any] = {
    "model": "toy",
    "policies": ["threshold", {"name": "fixed", "tokens_per_pass": 8}],
    "settings": {"max_tokens": 16},
    "tasks": ["sudoku"],
    "device": "cpu",
}


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(json.dumps(VALUES))  # JSON is YAML
    return path


def test_the_command_prints_a_table_then_has_nothing_left_to_do(
    recipe_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(recipe_file.parent)
    command = ["eval", "small.yaml", "--limit", "2", "--task", "sudoku"]
    assert cli.run(command) == 0
    shown = capsys.readouterr()
    assert "accuracy %" in shown.out
    assert shown.out.startswith("toy, sudoku: 2 items")
    assert re.findall(r"^ *(threshold|fixed) ", shown.out, re.M) == ["threshold", "fixed"]
    first, second = shown.err.splitlines()[:2]
    assert first == "unmask: loading toy"
    assert re.fullmatch(r"unmask: cell 1 of 2: sudoku, threshold, 2 items, 50 % done, \d+:\d\d:\d\d left", second)
    assert "cell 2 of 2: sudoku, fixed (tokens_per_pass=8), 2 items, 100 % done" in shown.err
    assert (recipe_file.parent / "runs" / "small" / "run.json").exists()
    assert cli.run([*command, "--json"]) == 0
    shown = capsys.readouterr()
    assert [json.loads(line)["cell"]["task"] for line in shown.out.splitlines()] == ["sudoku", "sudoku"]
    assert "nothing left to do: runs/small is complete" in shown.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.yaml"], "cannot read the recipe missing.yaml"),
        (["small.yaml", "--backend", "rya"], "unknown backend 'rya'"),
        (["small.yaml", "--model", "no/such/folder"], "there is no such folder"),
        (["small.yaml", "--limit", "0"], "limit"),
        (["small.yaml", "--policy", "eb", "--policy", "fixed", "--set", "gamma=1"], "--set is for one --policy"),
        (["small.yaml", "--set", "gamma=1"], "--set is for one --policy, got none"),
        (["small.yaml", "--quantize", "int9"], "unknown quantisation 'int9'"),
    ],
)
def test_a_wrong_command_is_one_line(
    recipe_file: Path,
    arguments: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(recipe_file.parent)
    assert cli.run(["eval", *arguments]) == 2
    error = capsys.readouterr().err
    *before, last = error.splitlines()
    assert said in last
    assert before in ([], ["unmask: loading no/such/folder"])


def test_a_parameter_of_the_policy_is_a_flag(
    recipe_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(recipe_file.parent)
    assert cli.run(["eval", "small.yaml", "--limit", "1", "--policy", "eb", "--set", "gamma=0.3", "--json"]) == 0
    (cell,) = [json.loads(line)["cell"] for line in capsys.readouterr().out.splitlines() if '"sudoku"' in line]
    assert (cell["policy"]["name"], cell["policy"]["gamma"]) == ("eb", 0.3)


def test_an_interrupt_says_how_to_go_on(
    recipe_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalExecutor, "load", interrupt)
    out = str(recipe_file.parent / "run")
    assert cli.run(["eval", str(recipe_file), "--out", out]) == 130
    error = capsys.readouterr().err
    assert (
        error
        == f"unmask: loading toy\nunmask: interrupted; every finished item is in {out}, the same command goes on\n"
    )
