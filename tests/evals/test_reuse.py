"""Cells that a run beside this one holds: reused where the answers would be the same, else measured here."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unmask import cli
from unmask.errors import UnmaskError
from unmask.evals.recipe import parse
from unmask.evals.run import Job, Progress, run
from unmask.evals.store import CellFolder, cells_of, reuse

VALUES: dict[str, Any] = {
    "model": "toy",
    "policies": ["threshold", {"name": "fixed", "tokens_per_pass": 8}],
    "settings": {"max_tokens": 16},
    "tasks": ["sudoku"],
    "limit": 3,
    "device": "cpu",
}


def measure(out: Path, **changes: Any) -> Job:
    return run(parse(VALUES | changes), out=out)


def by_policy(out: Path) -> dict[str, CellFolder]:
    return {cell.cell.policy["name"]: cell for cell in cells_of(out)}


@pytest.fixture
def first(tmp_path: Path) -> Path:
    """A finished run of the policy that the others share."""
    measure(tmp_path / "first", policies=["threshold"])
    return tmp_path / "first"


def test_a_cell_is_measured_once_and_says_where(first: Path, tmp_path: Path) -> None:
    finished = measure(tmp_path / "second")
    assert (finished.reused, finished.new_cells, finished.new_items) == ({"first": 1}, 1, 3)
    cells = by_policy(tmp_path / "second")
    assert cells["threshold"].about["taken_from"] == "first"
    assert "taken_from" not in cells["fixed"].about
    assert cells["threshold"].generations == by_policy(first)["threshold"].generations
    assert [cell.complete for cell in finished.cells] == [True, True]
    assert measure(tmp_path / "second").reused == {}
    # A copy may be reused again: the name is that of the run that measured it.
    shutil.rmtree(first)
    assert measure(tmp_path / "third", policies=["threshold"]).reused == {"first": 1}


def test_another_number_of_items_is_another_cell(first: Path, tmp_path: Path) -> None:
    assert measure(tmp_path / "second", limit=2).reused == {}


def test_a_part_of_a_cell_makes_room_for_the_whole(first: Path, tmp_path: Path) -> None:
    out = tmp_path / "second"
    shutil.copytree(first, out)
    (cell,) = cells_of(out)
    (cell.folder / "done.json").unlink()
    for name in ("items.jsonl", "scores.jsonl"):
        lines = (cell.folder / name).read_text().splitlines(keepends=True)
        (cell.folder / name).write_text(lines[0] + lines[1][:5])
    with pytest.warns(UserWarning, match="ends in half a line"):
        finished = measure(out, policies=["threshold"])
    assert (finished.reused, finished.new_items) == ({"first": 1}, 0)
    assert by_policy(out)["threshold"].generations == by_policy(first)["threshold"].generations


def test_a_cell_that_is_finished_while_another_is_decoded_is_reused_too(tmp_path: Path) -> None:
    seen: list[Progress] = []

    def finish_the_next(now: Progress) -> None:
        seen.append(now)
        if now.number == 1 and now.done == now.items:
            measure(tmp_path / "first", policies=[{"name": "fixed", "tokens_per_pass": 8}])

    finished = run(parse(VALUES), out=tmp_path / "second", on_progress=finish_the_next)
    assert (finished.reused, finished.new_cells) == ({"first": 1}, 1)
    assert [now.reused for now in seen] == [0] * len(seen)
    assert all(cell.complete for cell in finished.cells)


def test_a_cell_measured_otherwise_is_left_where_it_is(first: Path, tmp_path: Path) -> None:
    (cell,) = cells_of(first)
    changes: list[dict[str, Any]] = [
        {"weights": "others"},
        {"code": "edited"},
        {"questions": "others"},
        {"device_name": "another"},
        {"threads": 99},
        {"versions": {"unmask": "0.0.1"}},
    ]
    for number, change in enumerate(changes):
        own = CellFolder.open(tmp_path / f"own-{number}", cell.cell, cell.about | change)
        assert reuse(own, shared=False) is None
    equal = CellFolder.open(tmp_path / "equal", cell.cell, cell.about)
    content = (cell.folder / "cell.json").read_text()
    (cell.folder / "cell.json").write_text("{")
    assert reuse(equal, shared=False) is None
    assert not equal.complete
    (cell.folder / "cell.json").write_text(content)
    assert reuse(equal, shared=False) == "first"
    assert equal.complete


def test_times_of_a_shared_device_do_not_reach_a_run_that_has_it_alone(tmp_path: Path) -> None:
    measure(tmp_path / "first", policies=["threshold"], shared=True)
    assert by_policy(tmp_path / "first")["threshold"].about["shared"] is True
    assert measure(tmp_path / "alone").reused == {}
    shutil.rmtree(tmp_path / "alone")
    assert measure(tmp_path / "also-shared", shared=True).reused == {"first": 1}


def test_a_cell_whose_last_items_came_from_a_shared_device_says_so(first: Path) -> None:
    assert measure(first, policies=["threshold"], shared=True).new_cells == 0
    (cell,) = cells_of(first)
    assert "shared" not in cell.about  # nothing was measured
    (cell.folder / "done.json").unlink()
    (cell.folder / "scores.jsonl").write_text((cell.folder / "scores.jsonl").read_text().splitlines(True)[0])
    measure(first, policies=["threshold"], shared=True)
    assert cells_of(first)[0].about["shared"] is True


def test_other_weights_are_refused_before_anything_is_added(make_llada: Callable[..., Path], tmp_path: Path) -> None:
    model, other = make_llada(), make_llada(seed=1)
    asked: dict[str, Any] = {"model": str(model), "policies": ["threshold"], "tasks": ["countdown-3"]}
    measure(tmp_path / "run", **asked)
    (cell,) = cells_of(tmp_path / "run")
    (cell.folder / "done.json").unlink()
    (cell.folder / "scores.jsonl").write_text("")
    shutil.copy(other / "model.safetensors", model / "model.safetensors")
    with pytest.raises(UnmaskError, match=r"holds results of .* with other weights; choose another --out, or "):
        measure(tmp_path / "run", **asked)
    assert cells_of(tmp_path / "run")[0].scores == {}
    assert measure(tmp_path / "other", **asked).reused == {}


def test_the_command_says_how_many_cells_were_reused(
    first: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "small.yaml"
    recipe.write_text(json.dumps(VALUES))  # JSON is YAML
    assert cli.run(["eval", str(recipe), "--shared", "--out", str(tmp_path / "second")]) == 0
    said = capsys.readouterr().err
    assert "cell 2 of 2 (1 reused): sudoku, fixed (tokens_per_pass=8), 3 items, 100 % done" in said
    assert "cells reused: 1 from first" in said
    resolved = json.loads((tmp_path / "second" / "run.json").read_text())["resolved"]
    assert resolved["shared"] is True
    assert by_policy(tmp_path / "second")["fixed"].about["shared"] is True
    # Whether the device was shared is no reason to refuse to go on.
    assert cli.run(["eval", str(recipe), "--out", str(tmp_path / "second")]) == 0
