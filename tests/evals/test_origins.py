"""Code and questions that changed: what is noted of them, what is refused, and what is measured anew."""

from __future__ import annotations

import gzip
import importlib
import json
import logging
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmark_records import write_records

from unmask import cli, policies
from unmask.errors import UnmaskError
from unmask.evals import hub, origins
from unmask.evals import run as runs
from unmask.evals.harness import questions_digest
from unmask.evals.lm_tasks import loaders
from unmask.evals.recipe import parse
from unmask.evals.run import Finished, Progress, run
from unmask.evals.store import cells_of

VALUES: dict[str, Any] = {
    "model": "toy",
    "policies": ["threshold", {"name": "fixed", "tokens_per_pass": 8}],
    "settings": {"max_tokens": 16},
    "tasks": ["sudoku"],
    "limit": 2,
    "device": "cpu",
}

PLUGIN = """
from dataclasses import dataclass
from unmask.policies.fixed import Fixed

@dataclass(frozen=True, slots=True, kw_only=True)
class Mine(Fixed):
    pass
"""


def measure(out: Path, *, fresh: bool = False, **changes: Any) -> Finished:
    return run(parse(VALUES | changes), out=out, fresh=fresh)


class _Stop(Exception):
    pass


def begin(out: Path, **changes: Any) -> None:
    """A run that ends behind its first cell."""

    def stop(now: Progress) -> None:
        if now.number == 2:
            raise _Stop

    with pytest.raises(_Stop):
        run(parse(VALUES | changes), out=out, on_progress=stop)


@pytest.fixture
def edited(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Calling it is as good as an edit of our source."""
    return lambda: monkeypatch.setattr(runs, "code_digest", lambda policy: "edited")


def test_our_code_is_digested_in_no_time_and_once() -> None:
    origins._digest_of_code.cache_clear()
    began = time.perf_counter()
    first = origins.code_digest(policies.get("mean_field"))
    assert time.perf_counter() - began < 0.25
    assert origins.code_digest(policies.get("fixed")) == first
    assert origins._digest_of_code.cache_info().misses == 1


def test_the_digest_covers_rules_and_what_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*(f"{folder}/a.py" for folder in origins.FOLDERS), *(f"evals/{file}" for file in origins.FILES)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")
    monkeypatch.setattr(origins, "PACKAGE", tmp_path)
    found = set()
    for path in [None, *sorted(tmp_path.rglob("*.py"))]:
        if path is not None:
            path.write_text("x = 2\n")
        origins._digest_of_code.cache_clear()
        found.add(origins.code_digest(policies.get("fixed")))
    origins._digest_of_code.cache_clear()
    assert len(found) == 1 + len(origins.FOLDERS) + len(origins.FILES)


def test_a_policy_from_elsewhere_counts_with_its_own_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "some_plugin.py").write_text(PLUGIN)
    package = tmp_path / "some_package"
    package.mkdir()
    for name, text in (("__init__", ""), ("policy", PLUGIN), ("helper", "x = 1\n")):
        (package / f"{name}.py").write_text(text)
    ours = origins.code_digest(policies.get("fixed"))
    for name, file in (("some_plugin", "some_plugin.py"), ("some_package.policy", "some_package/helper.py")):
        policy = importlib.import_module(name).Mine()
        before = origins.code_digest(policy)
        (tmp_path / file).write_text((tmp_path / file).read_text() + "# edited\n")
        assert origins.code_digest(policy) == before  # of what this process runs
        origins._digest_of_code.cache_clear()
        assert len({ours, before, origins.code_digest(policy)}) == 3
        del sys.modules[name]
    assert origins.code_digest(policies.get("fixed")) == ours


def test_cells_note_the_code_and_other_code_is_measured_anew(tmp_path: Path, edited: Any) -> None:
    measure(tmp_path / "first")
    assert {cell.about["code"] for cell in cells_of(tmp_path / "first")} == {origins.code_digest(policies.get("fixed"))}
    assert measure(tmp_path / "second").taken == {"first": 2}
    edited()
    assert measure(tmp_path / "third").taken == {}
    for path in (tmp_path / "third").glob("cells/*/cell.json"):  # as an older release left it
        about = json.loads(path.read_text())
        del about["code"]
        path.write_text(json.dumps(about))
    assert measure(tmp_path / "fourth").taken == {}


def test_a_run_begun_with_other_code_is_refused_until_it_is_begun_anew(tmp_path: Path, edited: Any) -> None:
    out = tmp_path / "run"
    begin(out)
    edited()
    said = r"run holds results of toy with other code; choose another --out, or discard them with --fresh$"
    with pytest.raises(UnmaskError, match=said):
        measure(out)
    finished = measure(out, fresh=True)
    assert (finished.new_cells, finished.new_items, finished.changed) == (2, 4, ())
    assert {cell.about["code"] for cell in cells_of(out)} == {"edited"}


def test_a_cell_that_was_opened_and_not_begun_goes_on_with_the_code_of_today(tmp_path: Path, edited: Any) -> None:
    out = tmp_path / "run"
    begin(out)
    done = next(cell for cell in cells_of(out) if cell.complete)
    edited()
    (done.folder / "done.json").unlink()
    (done.folder / "items.jsonl").unlink()
    (done.folder / "scores.jsonl").unlink()
    assert measure(out).new_cells == 2
    assert {cell.about["code"] for cell in cells_of(out)} == {"edited"}


def test_fresh_takes_nothing_from_other_runs_and_leaves_other_cells_alone(tmp_path: Path) -> None:
    measure(tmp_path / "first")
    measure(tmp_path / "second", limit=1)
    assert measure(tmp_path / "second", fresh=True).taken == {}
    assert sorted(cell.cell.items for cell in cells_of(tmp_path / "second")) == [1, 1, 2, 2]
    assert measure(tmp_path / "second", fresh=True).new_items == 4


def test_a_complete_run_is_kept_and_the_command_says_that_the_code_changed(
    tmp_path: Path, edited: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, out = tmp_path / "small.yaml", tmp_path / "run"
    recipe.write_text(json.dumps(VALUES))  # JSON is YAML
    command = ["eval", str(recipe), "--out", str(out)]
    assert cli.run(command) == 0
    assert "changed" not in capsys.readouterr().err
    edited()
    assert cli.run(command) == 0
    said = capsys.readouterr().err
    assert f"nothing left to do: {out} is complete\n" in said
    assert "since it was measured, the code changed; --fresh measures it anew\n" in said
    assert cli.run([*command, "--fresh"]) == 0
    assert "changed" not in capsys.readouterr().err


def test_a_run_of_old_and_new_code_is_refused_for_a_model_that_is_added(tmp_path: Path, edited: Any) -> None:
    out = tmp_path / "run"
    measure(out)
    edited()
    values = {key: value for key, value in VALUES.items() if key != "model"}
    with pytest.raises(UnmaskError, match="run holds results with other code; choose another --out"):
        run(parse(values | {"models": ["toy", "tiny"]}), out=out)


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    write_records(tmp_path / "data")
    return tmp_path / "data"


def edit_first(path: Path, field: str) -> None:
    """In place, in a file that may be packed."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt") as file:
        first, *rest = file.read().splitlines()
    with opened(path, "wt") as file:
        file.write("\n".join([json.dumps(json.loads(first) | {field: "Edited?"}), *rest]) + "\n")


def test_questions_and_shots_are_told_apart_and_other_fields_are_not(data_dir: Path) -> None:
    before = {task: questions_digest(task, data_dir) for task in loaders.ROWS}
    assert before == {task: questions_digest(task, data_dir) for task in loaders.ROWS}
    edit_first(data_dir / "gsm8k" / "train.jsonl.gz", "question")
    edit_first(data_dir / "humaneval" / "HumanEval.jsonl", "test")
    edit_first(data_dir / "math500" / "test.jsonl", "subject")
    changed = {task for task in loaders.ROWS if questions_digest(task, data_dir) != before[task]}
    assert changed == {"gsm8k", "humaneval"}


@pytest.mark.slow
def test_other_questions_are_neither_taken_over_nor_resumed(data_dir: Path, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"tasks": ["gsm8k"], "data_dir": str(data_dir), "shots": 1}
    measure(tmp_path / "first", **asked)
    assert measure(tmp_path / "second", **asked).taken == {"first": 2}
    begin(tmp_path / "apart" / "begun", **asked)
    edit_first(data_dir / "gsm8k" / "test.jsonl", "question")
    assert measure(tmp_path / "third", **asked).taken == {}
    with pytest.raises(UnmaskError, match=r"begun holds results of toy with other questions; choose another --out"):
        measure(tmp_path / "apart" / "begun", **asked)
    finished = measure(tmp_path / "first", **asked)
    assert (finished.new_cells, finished.changed) == (0, ("questions",))


@pytest.mark.slow
@pytest.mark.parametrize("task", ["gsm8k", "countdown"])
def test_a_raised_limit_goes_on_from_items_that_were_decoded_one_by_one(
    task: str, data_dir: Path, tmp_path: Path
) -> None:
    asked: dict[str, Any] = {"tasks": [task], "policies": VALUES["policies"][1:], "batch_size": 1}
    asked |= {"shots": 1, "data_dir": str(data_dir)} if task == "gsm8k" else {}
    measure(tmp_path / "run", **asked)
    assert measure(tmp_path / "run", **asked | {"limit": 4}).new_items == 2
    (grown,) = [cell for cell in cells_of(tmp_path / "run") if cell.cell.items == 4]
    measure(tmp_path / "apart" / "whole", **asked | {"limit": 4})
    (whole,) = cells_of(tmp_path / "apart" / "whole")
    assert grown.complete
    assert grown.scores == whole.scores
    for number, row in whole.generations.items():
        assert replace(grown.generations[number], seconds={}) == replace(row, seconds={})


def test_items_that_were_decoded_together_are_decoded_again_for_a_raised_limit(tmp_path: Path) -> None:
    assert measure(tmp_path / "run", batch_size=2).new_items == 4
    assert measure(tmp_path / "run", batch_size=2, limit=3).new_items == 6


def test_an_edited_task_file_is_another_task(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"q": "one", "a": "1"}\n{"q": "two", "a": "2"}\n')
    path = tmp_path / "own.yaml"
    text = f"""
task: own
dataset_path: json
dataset_kwargs: {{data_files: {{test: {tmp_path / "rows.jsonl"}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{q}}}}"
doc_to_target: "{{{{a}}}}"
"""
    path.write_text(text)
    first = questions_digest(str(path), None)
    assert questions_digest(str(path), None) == first
    path.write_text(text.replace('"{{q}}"', '"Q: {{q}}"'))
    assert questions_digest(str(path), None) != first


def test_a_hub_that_does_not_answer_is_asked_once_in_silence(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(hub, "_answers", lambda: False)
    for module in ("datasets.config", "huggingface_hub.constants"):
        monkeypatch.setattr(f"{module}.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    level = logging.getLogger("huggingface_hub").level
    began = time.perf_counter()
    with pytest.raises(
        UnmaskError, match=r"openai/gsm8k cannot be read from the hub \(it does not answer, .*--data-dir"
    ):
        loaders.gsm8k_rows(None)
    assert time.perf_counter() - began < 5
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("huggingface_hub").level == level


def test_what_cannot_be_read_is_told_before_a_model_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "load", lambda *args, **options: pytest.fail("a model was loaded"))
    with pytest.raises(UnmaskError, match=r"has no gsm8k/test.jsonl"):
        measure(tmp_path / "run", tasks=["gsm8k"], data_dir=str(tmp_path))
    assert not (tmp_path / "run").exists()
