"""What an evaluation can be given by name, and what it does without a recipe."""

import json
import os
import re
from pathlib import Path

import pytest
import yaml

from unmask.cli import run
from unmask.evals.recipe import packaged, recipe_file
from unmask.evals.store import RUN

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_flags_alone_are_an_evaluation(capsys):
    command = ["eval", "--model", "toy", "--task", "sudoku", "--policy", "fixed", "--policy", "threshold"]
    assert run([*command, "--limit", "1", "--json"]) == 0
    captured = capsys.readouterr()
    assert re.search(r"cell 1 of 2: .*, 1 item, \d+ % done, \d+:\d\d:\d\d left\n", captured.err)
    cells = [json.loads(line) for line in captured.out.splitlines()]
    assert [cell["cell"]["policy"]["name"] for cell in cells] == ["fixed", "threshold"]
    (folder,) = Path("runs").iterdir()
    assert folder.name == "toy-sudoku-fixed-threshold"


def test_flags_replace_the_keys_of_a_recipe(capsys):
    Path("mine.yaml").write_text(yaml.safe_dump({"model": "toy", "policies": ["fixed"], "tasks": ["sudoku"]}))
    command = ["eval", "mine.yaml", "--task", "countdown-3", "--policy", "threshold", "--limit", "1", "--json"]
    assert run(command) == 0
    (cell,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (cell["cell"]["policy"]["name"], cell["cell"]["task"]) == ("threshold", "countdown-3")


def test_a_recipe_of_the_package_needs_no_path(capsys):
    command = ["eval", "tiny/main", "--model", "toy", "--task", "sudoku", "--policy", "threshold", "--limit", "1"]
    assert run(command) == 0
    assert json.loads(Path("runs/tiny-main", RUN).read_text())["title"] == "Main table, tiny"


@pytest.mark.parametrize("name", ["tiny/main", "tiny/main.yaml", "recipes/tiny/main.yaml"])
def test_a_recipe_has_the_same_name_in_a_clone_and_in_a_wheel(name):
    assert recipe_file(name)[0].samefile(ROOT / "recipes" / "tiny" / "main.yaml")
    os.chdir(ROOT)
    assert recipe_file(name)[0].samefile(ROOT / "recipes" / "tiny" / "main.yaml")


def test_a_file_wins_over_a_name_of_the_package():
    Path("main").write_text("model: toy")
    assert recipe_file("main") == (Path("main"), "main")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "--task"),
        (["tiny/man"], "did you mean 'tiny/main'?"),
        (["."], "unknown recipe '.'; in the package: "),
        (["no.yaml"], "cannot read the recipe no.yaml"),
        (["--task", "sudoku", "--policy", "tresholds"], "did you mean 'threshold'?"),
    ],
)
def test_what_cannot_be_measured_gets_one_line(arguments, expected, capsys):
    assert run(["eval", *arguments]) == 2
    captured = capsys.readouterr()
    assert expected in captured.err
    assert captured.err.count("\n") == 1


def test_everything_with_a_name_is_listed(capsys):
    assert run(["eval", "--list", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    names = {
        kind: {row["name"] for row in rows if row["kind"] == kind} for kind in ("recipe", "task", "benchmark", "policy")
    }
    assert names["recipe"] == set(packaged()) >= {"main", "tiny/main"}
    assert {"sudoku", "countdown-4"} <= names["task"]
    assert {"gsm8k", "mbpp"} <= names["benchmark"]
    assert "mean_field" in names["policy"]
    assert run(["eval", "--list"]) == 0
    shown = capsys.readouterr().out
    assert "Main table, tiny" in shown
    kinds = [line.split()[0] for line in shown.splitlines() if line and not line.startswith(" ")]
    assert kinds == ["recipe", "task", "benchmark", "policy"]  # each once, before the first of its names
