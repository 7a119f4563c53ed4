"""Runs on disk: what is written, what a second call does, and what is left after a kill. The toy model is enough."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unmask import sandbox, tasks
from unmask.errors import UnmaskError, WorkFailed
from unmask.evals.executor import LocalExecutor
from unmask.evals.recipe import Checkpoint, Recipe, parse
from unmask.evals.run import Progress, run
from unmask.evals.store import CellFolder, cells_of
from unmask.evals.tiny_suite import find, names
from unmask.report.build import read_runs, report

VALUES: dict[str, Any] = {
    "model": "toy",
    "policies": ["threshold", {"name": "fixed", "tokens_per_pass": 8}],
    "settings": {"max_tokens": 16},
    "tasks": ["countdown-3", "sudoku"],
    "limit": 5,
    "batch_size": 2,
    "device": "cpu",
}


def recipe_of(**changes: Any) -> Recipe:
    return parse(VALUES | changes)


def untimed(folder: Path) -> dict[str, Any]:
    """Everything in a run that must not depend on when and how often it was interrupted."""
    found = {}
    for cell in cells_of(folder):
        rows = {number: replace(row, seconds={}) for number, row in cell.generations.items()}
        found[cell.cell.key] = (rows, cell.scores)
    return found


def lines_of(folder: Path, name: str) -> list[int]:
    """The ids of the lines of every such file, so that one done twice would show."""
    text = "".join(path.read_text() for path in sorted(folder.glob(f"cells/*/{name}")))
    return [json.loads(line)["id"] for line in text.splitlines()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    run(recipe_of(), out=folder, command="unmask eval x.yaml")
    return folder


def test_a_run_says_how_it_was_made(whole: Path) -> None:
    about = json.loads((whole / "run.json").read_text())
    assert about["command"] == "unmask eval x.yaml"
    assert about["resolved"]["limit"] == 5
    assert {"unmask", "torch", "python"} <= about["versions"].keys()
    assert about["models"]["toy"].items() >= {"family": "llada", "dtype": "float32", "device": "cpu"}.items()
    for cell in cells_of(whole):
        assert cell.complete
        assert cell.about["device_name"]
        assert "warm_up" in cell.about
        assert cell.cell.settings["max_tokens"] == 16
        assert cell.cell.policy.keys() > {"name"}


def test_a_cell_that_two_models_share_is_listed_once(tmp_path: Path) -> None:
    values = {key: value for key, value in VALUES.items() if key != "model"}
    twice = parse(values | {"models": ["toy", {"path": "toy", "dtype": "float32", "device": "cpu"}], "device": "cpu"})
    for _ in range(2):
        run(twice, out=tmp_path / "run")
        listed = json.loads((tmp_path / "run" / "run.json").read_text())["cells"]
        assert sorted(listed) == sorted(path.name for path in (tmp_path / "run" / "cells").iterdir())


def test_every_item_has_its_tokens_passes_times_and_score(whole: Path) -> None:
    for cell in cells_of(whole):
        items = find(cell.cell.task).generate(cell.cell.seed, cell.cell.items)
        assert cell.generations.keys() == cell.scores.keys() == set(range(5))
        for number, row in cell.generations.items():
            assert row.prompt == items[number].prompt
            assert len(row.token_ids) == 16
            assert 0 < row.passes <= 16
            assert row.tokens_answer <= row.tokens_reference <= 16
            assert row.seconds.keys() == {"model", "policy", "rest"}
            assert row.note == {"kind": items[number].kind}
            assert cell.scores[number] == {"correct": float(find(cell.cell.task).check(items[number], row.text))}
        if cell.cell.policy["name"] == "fixed":
            assert {row.passes for row in cell.generations.values()} == {2}


def test_a_complete_run_is_not_touched_and_loads_no_model(whole: Path) -> None:
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    finished = run(recipe_of(), out=whole, load=lambda checkpoint: pytest.fail("a model was loaded"))
    assert (finished.new_cells, finished.new_items) == (0, 0)
    assert [cell.complete for cell in finished.cells] == [True] * 4
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before


class _Stop(Exception):
    pass


def test_a_run_goes_on_where_it_was_left_and_ends_the_same(whole: Path, tmp_path: Path) -> None:
    out, seen = tmp_path / "run", []

    def stop_in_the_second_cell(now: Progress) -> None:
        seen.append(now)
        if now.number == 2 and now.done:
            raise _Stop

    with pytest.raises(_Stop):
        run(recipe_of(), out=out, on_progress=stop_in_the_second_cell)
    assert sorted(len(cell.scores) for cell in cells_of(out)) == [0, 0, 2, 5]
    finished = run(recipe_of(), out=out, on_progress=seen.append)
    assert finished.new_items == 4 * 5 - 7
    assert (seen[-1].number, seen[-1].cells, seen[-1].share) == (4, 4, 1.0)
    assert untimed(out) == untimed(whole)


def test_half_a_line_is_dropped_and_an_item_without_score_is_scored(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(recipe_of(), out=out)
    for cell in cells_of(out):
        (cell.folder / "done.json").unlink()
        for name, keep in (("items.jsonl", 3), ("scores.jsonl", 2)):
            kept = (cell.folder / name).read_text().splitlines(keepends=True)
            (cell.folder / name).write_text("".join(kept[:keep]) + kept[keep][:9])
    with pytest.warns(UserWarning, match="ends in half a line"):
        finished = run(recipe_of(), out=out)
    assert (finished.new_cells, finished.new_items) == (4, 4 * 2)
    assert untimed(out) == untimed(whole)
    assert sorted(lines_of(out, "items.jsonl")) == sorted(lines_of(out, "scores.jsonl")) == sorted([*range(5)] * 4)


def test_a_cell_that_only_lacks_scores_is_scored_without_decoding(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(recipe_of(), out=out)
    for cell in cells_of(out):
        (cell.folder / "done.json").unlink()
        (cell.folder / "scores.jsonl").unlink()
    finished = run(recipe_of(), out=out)
    assert (finished.new_cells, finished.new_items) == (4, 0)
    assert untimed(out) == untimed(whole)


def test_an_answer_is_the_same_in_any_batch(whole: Path, tmp_path: Path) -> None:
    run(recipe_of(batch_size=5), out=tmp_path / "run")
    texts = [
        {(cell.cell.task, cell.cell.policy["name"]): {n: r.text for n, r in cell.generations.items()} for cell in found}
        for found in (cells_of(whole), cells_of(tmp_path / "run"))
    ]
    assert texts[0] == texts[1]


def test_a_folder_takes_any_recipe_and_lists_the_cells_of_the_latest(tmp_path: Path) -> None:
    out = tmp_path / "run"

    def listed() -> set[tuple[str, int, int]]:
        (read,) = read_runs([out])
        return {(cell.cell.task, cell.cell.items, cell.cell.seed) for cell in read.cells}

    first, other = {"tasks": ["sudoku", "countdown"], "limit": 3}, {"tasks": ["sudoku"], "limit": 2, "seed": 1}
    assert run(recipe_of(**first), out=out).new_cells == 4
    assert run(recipe_of(**other), out=out).new_cells == 2
    assert listed() == {("sudoku", 2, 1)}
    assert run(recipe_of(**first | {"tasks": ["countdown"]}), out=out).new_cells == 0
    assert listed() == {("countdown", 3, 0)}
    finished = run(recipe_of(**first), out=out, load=lambda checkpoint: pytest.fail("a model was loaded"))
    assert finished.new_cells == 0
    assert listed() == {("sudoku", 3, 0), ("countdown", 3, 0)}


def test_another_dtype_is_another_cell_of_the_folder(tmp_path: Path) -> None:
    small: dict[str, Any] = VALUES | {"tasks": ["sudoku"], "policies": ["threshold"], "limit": 1}
    run(parse(small), out=tmp_path)
    finished = run(parse(small, {"dtype": "bfloat16"}), out=tmp_path)
    assert [cell.cell.dtype for cell in finished.cells] == ["bfloat16"]
    assert run(parse(small, {"dtype": "float32"}), out=tmp_path).new_cells == 0


def test_a_recipe_may_grow_in_its_folder_and_only_the_new_cells_are_measured(tmp_path: Path) -> None:
    small, out = {"tasks": ["sudoku"], "policies": ["threshold"], "limit": 2}, tmp_path / "run"
    run(recipe_of(**small), out=out, command="first")
    assert run(recipe_of(**small | {"policies": ["threshold", "random"]}), out=out).new_cells == 1
    assert run(recipe_of(**small | {"policies": ["random", "threshold"], "tasks": ["sudoku", "countdown"]}), out=out)
    grown = small | {"tasks": ["sudoku", "countdown"], "policies": ["threshold", "random"], "limit": 3}
    finished = run(recipe_of(**grown, title="More", table="curves"), out=out, command="last")
    assert finished.new_cells == 4
    about = json.loads((out / "run.json").read_text())
    assert (about["title"], about["table"], about["command"], about["resolved"]["limit"]) == (
        "More",
        "curves",
        "last",
        3,
    )
    assert sorted(about["cells"]) == sorted(cell.cell.key for cell in finished.cells)
    # The cells of two items are still there, and no longer belong to the run.
    assert len(cells_of(out)) == 8
    (reported,) = read_runs([out])
    assert [cell.cell.items for cell in reported.cells] == [3] * 4
    assert run(recipe_of(**grown, title="Other"), out=out).new_cells == 0
    assert json.loads((out / "run.json").read_text())["title"] == "Other"


def test_a_folder_may_grow_by_quantised_weights(tmp_path: Path) -> None:
    one = {"model": "tiny", "tasks": ["countdown-3"], "policies": ["threshold"], "limit": 2}
    out = tmp_path / "run"
    run(recipe_of(**one), out=out)
    loaded: list[str] = []
    assert run(recipe_of(**one), out=out, on_load=loaded.append).new_cells == 0
    grown = recipe_of(**one | {"model": ["tiny", {"path": "tiny", "quantize": "int8"}]})
    finished = run(grown, out=out, on_load=loaded.append)
    assert (loaded, finished.new_cells) == (["tiny+int8"], 1)
    assert [cell.cell.model for cell in finished.cells] == ["tiny", "tiny+int8"]
    # They come from the same file, and so only the name tells them apart.
    assert len({cell.about["weights"] for cell in finished.cells}) == 1
    assert run(grown, out=out, on_load=loaded.append).new_cells == 0
    assert loaded == ["tiny+int8"]


@pytest.mark.slow
def test_quantised_and_plain_results_never_meet(tmp_path: Path) -> None:
    """Neither does a run beside another reuse its cells, nor does a table compare them."""
    given: list[str | None] = []

    def watch(checkpoint: Checkpoint) -> LocalExecutor:
        given.append(checkpoint.quantize)
        return LocalExecutor.load(checkpoint)

    values = VALUES | {"model": "tiny", "tasks": ["countdown-3"], "policies": ["threshold", "fixed"], "limit": 2}
    run(parse(values), out=tmp_path / "plain", load=watch)
    finished = run(parse(values, {"quantize": "int8"}), out=tmp_path / "quantised", load=watch)
    assert (given, finished.reused, finished.new_cells) == ([None, "int8"], {}, 2)
    made = report([tmp_path])
    tables = [table for table in made.tables if table.name.startswith("main-")]
    assert [table.title.partition(":")[0] for table in tables if "duels" not in table.name] == [
        *("tiny, countdown-3", "tiny+int8, countdown-3")
    ]
    keys = {cell["cell"]["model"]: set() for cell in made.to_dict()["cells"]}
    for cell in made.to_dict()["cells"]:
        keys[cell["cell"]["model"]].add(cell["baseline"].split("-countdown")[0])
    assert keys == {"tiny": {"tiny"}, "tiny+int8": {"tiny-int8"}}


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": "no/such/folder"},
        {"device": "nodevice"},
        {"policies": ["wino"], "model": "dream"},
        {"quantize": "int8"},  # of the toy, which has no weights
    ],
)
def test_a_start_that_fails_leaves_nothing_behind(tmp_path: Path, dream_folder: Path, wrong: dict[str, Any]) -> None:
    wrong = wrong | ({"model": str(dream_folder)} if wrong.get("model") == "dream" else {})
    with pytest.raises(UnmaskError):
        run(recipe_of(limit=1, **wrong), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert run(recipe_of(limit=1, tasks=["sudoku"]), out=tmp_path / "run").new_cells == 2


def test_a_folder_in_which_nothing_was_measured_may_be_used_for_anything(tmp_path: Path) -> None:
    def stop(now: Progress) -> None:
        raise _Stop

    with pytest.raises(_Stop):
        run(recipe_of(), out=tmp_path, on_progress=stop)
    assert run(recipe_of(seed=3, limit=1, tasks=["sudoku"]), out=tmp_path).new_cells == 2
    assert len(read_runs([tmp_path])[0].cells) == 2


def test_only_one_process_works_in_a_folder(tmp_path: Path) -> None:
    def run_again(now: Progress) -> None:
        with pytest.raises(WorkFailed, match="another process is at work in"):
            run(recipe_of(), out=tmp_path)

    run(recipe_of(limit=1, tasks=["sudoku"]), out=tmp_path, on_progress=run_again)


def test_what_a_model_cannot_do_is_said_before_anything_runs(tmp_path: Path, dream_folder: Path) -> None:
    recipe = recipe_of(model=str(dream_folder), policies=["threshold", "wino"])
    with pytest.raises(UnmaskError, match="wino"):
        run(recipe, out=tmp_path / "run")
    assert not (tmp_path / "run" / "cells").exists()


@pytest.mark.parametrize("task", ["list_functions", "code_gaps"])
def test_programs_are_refused_before_decoding_where_nothing_contains_them(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise UnmaskError("no sandbox")

    monkeypatch.setattr(sandbox, "require", refuse)
    with pytest.raises(UnmaskError, match="no sandbox"):
        run(recipe_of(tasks=[task]), out=tmp_path / "run")
    assert not (tmp_path / "run" / "cells").exists()


def test_items_are_the_same_for_all_policies_and_grow_with_the_limit(whole: Path) -> None:
    by_task: dict[str, set[tuple[str, ...]]] = {}
    for cell in cells_of(whole):
        by_task.setdefault(cell.cell.task, set()).add(tuple(cell.generations[n].prompt for n in range(5)))
    assert [len(prompts) for prompts in by_task.values()] == [1, 1]
    for name in names():
        assert find(name).generate(0, 4) == find(name).generate(0, 9)[:4]


def test_both_sizes_of_countdown_have_names() -> None:
    assert find("countdown-4") == tasks.get("countdown", numbers=4)
    assert find("countdown") == tasks.get("countdown")


@pytest.mark.slow
def test_a_killed_run_loses_nothing_and_does_nothing_twice(tmp_path: Path) -> None:
    changes = {"limit": 16, "policies": ["fixed"], "settings": {"max_tokens": 48}}
    changes["tasks"] = ["countdown-3", "countdown-4"]
    recipe = recipe_of(**changes)
    whole = tmp_path / "apart" / "whole"  # not beside the other, which would reuse it
    run(recipe, out=whole)
    path = tmp_path / "kill.yaml"
    path.write_text(json.dumps(VALUES | changes))
    out = tmp_path / "killed"
    command = [sys.executable, "-m", "unmask", "eval", str(path), "--out", str(out)]
    for wanted in (4, 20):  # once in the first cell, once in the second
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=os.environ)
        deadline = time.monotonic() + 120
        while len(_complete_lines(out)) < wanted:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    done = len(_complete_lines(out))
    assert done < 32
    finished = run(recipe, out=out)
    assert all(CellFolder(cell.folder).complete for cell in finished.cells)
    assert finished.new_items >= 32 - done
    assert untimed(out) == untimed(whole)
    assert sorted(lines_of(out, "items.jsonl")) == sorted(lines_of(out, "scores.jsonl")) == sorted([*range(16)] * 2)


def _complete_lines(out: Path) -> list[bytes]:
    content = b"".join(path.read_bytes() for path in out.glob("cells/*/items.jsonl"))
    return content.split(b"\n")[:-1]
