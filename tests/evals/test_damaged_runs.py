"""A run whose files something else has damaged: what is not whole is named, kept aside and measured again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from unmask.errors import UnmaskError
from unmask.evals.recipe import parse
from unmask.evals.run import run
from unmask.evals.store import cells_of
from unmask.report.build import read_runs

SMALL = {"tasks": ["countdown-3"], "limit": 4, "batch_size": 2, "settings": {"max_tokens": 8}}
RECIPE = parse({"model": "toy", "policy": "threshold", **SMALL})


def cut(content: bytes) -> bytes:
    return content[:-9]


def emptied(content: bytes) -> bytes:
    return b""


def zeroed(content: bytes) -> bytes:
    return bytes(len(content))


def edited(content: bytes) -> bytes:
    """Still one valid line for each item, with other values."""
    rows = [json.loads(line) for line in content.splitlines()]
    changed = [row | ({"text": "x"} if "text" in row else {"scores": {"correct": 1.0}}) for row in rows]
    return "".join(json.dumps(row) + "\n" for row in changed).encode()


def garbled(content: bytes) -> bytes:
    return b'{"id": [[' + content[9:]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run(RECIPE, out=tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("name", ["items.jsonl", "scores.jsonl"])
@pytest.mark.parametrize("damage", [cut, emptied, zeroed, edited, garbled])
def test_a_damaged_cell_is_named_kept_and_measured_again(
    folder: Path, name: str, damage: Callable[[bytes], bytes]
) -> None:
    (before,) = cells_of(folder)
    path = before.folder / name
    path.write_bytes(damaged := damage(path.read_bytes()))
    said: list[str] = []
    finished = run(RECIPE, out=folder, say=said.append)
    assert (finished.new_cells, finished.new_items) == (1, 4)
    (line,) = said
    assert "is damaged" in line
    assert "\n" not in line
    (aside,) = folder.glob(f"damaged/*/{name}")
    assert str(aside.parent) in line
    assert aside.read_bytes() == damaged
    (after,) = cells_of(folder)
    assert after.complete
    assert after.scores == before.scores
    assert run(RECIPE, out=folder).new_cells == 0


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"items": 3}', '{"items": 4, "digest": "00"}'])
def test_a_count_or_digest_that_does_not_fit_is_no_proof(folder: Path, content: str) -> None:
    (cell,) = cells_of(folder)
    (cell.folder / "done.json").write_text(content)
    with pytest.warns(UserWarning, match=r"is damaged.* measured again"):
        assert run(RECIPE, out=folder).new_items == 4
    assert cells_of(folder)[0].complete


def test_a_complete_cell_of_an_older_version_has_a_count_alone_and_keeps_its_items(folder: Path) -> None:
    (cell,) = cells_of(folder)
    (cell.folder / "done.json").write_text('{"items": 4}')
    finished = run(RECIPE, out=folder, load=lambda checkpoint: pytest.fail("a model was loaded"))
    assert (finished.new_cells, finished.new_items) == (0, 0)
    assert cells_of(folder)[0].complete


def test_a_damaged_cell_of_a_run_beside_is_not_reused(folder: Path) -> None:
    (cell,) = cells_of(folder)
    path = cell.folder / "items.jsonl"
    path.write_bytes(edited(path.read_bytes()))
    assert run(RECIPE, out=folder.parent / "second").reused == {}


def test_half_a_line_of_an_unfinished_cell_is_dropped_with_a_word(folder: Path) -> None:
    (cell,) = cells_of(folder)
    (cell.folder / "done.json").unlink()
    path = cell.folder / "items.jsonl"
    path.write_bytes(cut(path.read_bytes()))
    with pytest.warns(UserWarning, match=r"items\.jsonl ends in half a line"):
        assert run(RECIPE, out=folder).new_items == 1
    assert cells_of(folder)[0].complete


def test_a_report_shows_the_rest_of_a_run_with_an_odd_cell(tmp_path: Path) -> None:
    out = tmp_path / "run"
    run(parse({"model": "toy", "policies": ["threshold", "fixed", "entropy"], **SMALL}), out=out)
    cut_short, renamed, whole = cells_of(out)
    path = cut_short.folder / "scores.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    renamed.folder.rename(renamed.folder.with_name("copy"))
    found = {cell.cell.key: (cell.done, cell.complete) for cell in read_runs([out])[0].cells}
    assert found == {cut_short.key: (3, False), whole.key: (4, True)}


@pytest.mark.parametrize("value", [None, 3, "x"])
def test_a_run_json_without_its_models_is_named_in_one_line(folder: Path, value: object) -> None:
    path = folder / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"models": value}))
    with pytest.raises(UnmaskError, match=r"run\.json is damaged") as error:
        run(RECIPE, out=folder)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["resolved", "cells"])
@pytest.mark.parametrize("value", [None, 3, "x"])
def test_a_run_json_with_another_recipe_or_other_cells_is_written_anew(folder: Path, key: str, value: object) -> None:
    path = folder / "run.json"
    whole = json.loads(path.read_text())
    path.write_text(json.dumps(whole | {key: value}))
    assert run(RECIPE, out=folder).new_cells == 0
    assert json.loads(path.read_text()) == whole


@pytest.mark.parametrize("info", [{}, 3, {"family": "llada"}, {"toy": {}}])
def test_a_run_json_that_does_not_describe_its_model_is_named_in_one_line(folder: Path, info: object) -> None:
    path = folder / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"models": {"toy": info}}))
    with pytest.raises(UnmaskError, match=r"run\.json is damaged") as error:
        run(RECIPE, out=folder)
    assert "\n" not in str(error.value)
