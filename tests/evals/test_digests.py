"""Code and questions that changed: what is noted of them, what is refused, and what is measured anew."""

from __future__ import annotations

import gzip
import importlib
import json
import logging
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmark_records import write_records

from unmask import cli
from unmask.errors import UnmaskError
from unmask.evals.cell import FOLDERS, code_digest, records_digest
from unmask.evals.harness import questions_of
from unmask.evals.lm_tasks import loaders
from unmask.evals.recipe import parse
from unmask.evals.run import Job, Progress, run
from unmask.evals.store import cells_of
from unmask.policies.fixed import Fixed

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


def measure(out: Path, *, fresh: bool = False, **changes: Any) -> Job:
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


def as_if_edited(out: Path) -> None:
    """Let the cells of a run say that they come from other code: as good as an edit of ours since."""
    for path in out.glob("cells/*/cell.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"code": "of another day"}))


def test_every_file_that_decodes_or_scores_counts(tmp_path: Path) -> None:
    names = [*(f"{folder}/deep/a.py" for folder in FOLDERS), "evals/lm_tasks/a.yaml"]

    def digest_of(edited: str | None, *others: str) -> str:
        package = Path(tempfile.mkdtemp(dir=tmp_path)) / "unmask"
        for name in (*names, *others):
            (package / name).parent.mkdir(parents=True)
            (package / name).write_text("x = 2\n" if name == edited else "x = 1\n")
        return code_digest(Fixed, package)

    plain = digest_of(None)
    assert digest_of(None) == plain
    assert digest_of(None, "report/a.py", "rules/deeper/notes.txt") == plain
    assert len({plain, *map(digest_of, names)}) == 1 + len(names)


def test_a_policy_from_elsewhere_counts_with_its_own_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def digest_of(module: str, **files: str) -> str:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        for name, text in files.items():
            path = folder.joinpath(*name.split("__")).with_suffix(".py")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        with monkeypatch.context() as patch:
            patch.syspath_prepend(folder)
            try:
                policy = importlib.import_module(module).Mine()
                before = code_digest(type(policy))
                path.write_text("# edited meanwhile\n")
                assert code_digest(type(policy)) == before  # of what this process runs
            finally:
                for name in [name for name in sys.modules if name.startswith("some_")]:
                    del sys.modules[name]
        return before

    ours = code_digest(Fixed)
    alone = digest_of("some_plugin", some_plugin=PLUGIN)
    edited = digest_of("some_plugin", some_plugin=PLUGIN + "# edited\n")
    files = {"some_package__init": "", "some_package__policy": PLUGIN}
    package = digest_of("some_package.policy", **files, some_package__helper="x = 1\n")
    helped = digest_of("some_package.policy", **files, some_package__helper="x = 2\n")
    assert len({ours, alone, edited, package, helped}) == 5
    assert digest_of("some_plugin", some_plugin=PLUGIN) == alone


def test_cells_note_the_code_and_other_code_is_measured_anew(tmp_path: Path) -> None:
    measure(tmp_path / "first")
    assert {cell.about["code"] for cell in cells_of(tmp_path / "first")} == {code_digest(Fixed)}
    assert measure(tmp_path / "second").reused == {"first": 2}
    for run_folder in ("first", "second"):
        as_if_edited(tmp_path / run_folder)
    assert measure(tmp_path / "third").reused == {}


def test_a_run_begun_with_other_code_is_refused_until_it_is_begun_anew(tmp_path: Path) -> None:
    out = tmp_path / "run"
    begin(out)
    as_if_edited(out)
    said = r"run holds results of toy with other code; choose another --out, or discard them with --fresh$"
    with pytest.raises(UnmaskError, match=said):
        measure(out)
    finished = measure(out, fresh=True)
    assert (finished.new_cells, finished.new_items, finished.changed) == (2, 4, [])
    assert {cell.about["code"] for cell in cells_of(out)} == {code_digest(Fixed)}


def test_a_cell_that_was_opened_and_not_begun_goes_on_with_the_code_of_today(tmp_path: Path) -> None:
    out = tmp_path / "run"
    begin(out)
    done = next(cell for cell in cells_of(out) if cell.complete)
    as_if_edited(out)
    for name in ("done.json", "items.jsonl", "scores.jsonl"):
        (done.folder / name).unlink()
    assert measure(out).new_cells == 2
    assert {cell.about["code"] for cell in cells_of(out)} == {code_digest(Fixed)}


def test_fresh_reuses_nothing_and_leaves_other_cells_alone(tmp_path: Path) -> None:
    measure(tmp_path / "first")
    measure(tmp_path / "second", limit=1)
    assert measure(tmp_path / "second", fresh=True).reused == {}
    assert sorted(cell.cell.items for cell in cells_of(tmp_path / "second")) == [1, 1, 2, 2]
    assert measure(tmp_path / "second", fresh=True).new_items == 4


def test_a_complete_run_is_kept_and_the_command_says_that_the_code_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, out = tmp_path / "small.yaml", tmp_path / "run"
    recipe.write_text(json.dumps(VALUES))  # JSON is YAML
    command = ["eval", str(recipe), "--out", str(out)]
    assert cli.run(command) == 0
    assert "changed" not in capsys.readouterr().err
    as_if_edited(out)
    assert cli.run(command) == 0
    said = capsys.readouterr().err
    assert f"nothing left to do: {out} is complete\n" in said
    assert "since it was measured, the code changed; --fresh measures it anew\n" in said
    assert cli.run([*command, "--fresh"]) == 0
    assert "changed" not in capsys.readouterr().err


def test_a_run_of_old_and_new_code_is_refused_for_a_model_that_is_added(tmp_path: Path) -> None:
    out = tmp_path / "run"
    measure(out)
    as_if_edited(out)
    values = {key: value for key, value in VALUES.items() if key != "model"}
    with pytest.raises(UnmaskError, match="run holds results of toy with other code; choose another --out"):
        run(parse(values | {"models": ["toy", "tiny"]}), out=out)


def questions_digest(task: str, data_dir: Path | None) -> str:
    return records_digest(questions_of(task, data_dir))


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
    before = {task: questions_digest(task, data_dir) for task in loaders.BENCHMARKS}
    assert before == {task: questions_digest(task, data_dir) for task in loaders.BENCHMARKS}
    edit_first(data_dir / "gsm8k" / "train.jsonl.gz", "question")
    edit_first(data_dir / "humaneval" / "HumanEval.jsonl", "test")
    edit_first(data_dir / "math500" / "test.jsonl", "subject")
    changed = {task for task in loaders.BENCHMARKS if questions_digest(task, data_dir) != before[task]}
    assert changed == {"gsm8k", "humaneval"}


@pytest.mark.slow
def test_other_questions_are_neither_reused_nor_resumed(data_dir: Path, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"tasks": ["gsm8k"], "data_dir": str(data_dir), "shots": 1}
    measure(tmp_path / "first", **asked)
    assert measure(tmp_path / "second", **asked).reused == {"first": 2}
    begin(tmp_path / "apart" / "begun", **asked)
    edit_first(data_dir / "gsm8k" / "test.jsonl", "question")
    assert measure(tmp_path / "third", **asked).reused == {}
    with pytest.raises(UnmaskError, match=r"begun holds results of toy with other questions; choose another --out"):
        measure(tmp_path / "apart" / "begun", **asked)
    finished = measure(tmp_path / "first", **asked)
    assert (finished.new_cells, finished.changed) == (0, ["questions"])


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


def out_of_reach(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """A hub that refuses connections, and nothing downloaded before."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    for module in ("datasets.config", "huggingface_hub.constants"):
        monkeypatch.setattr(f"{module}.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", cache)


def test_a_hub_that_does_not_answer_is_asked_once_in_silence(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out_of_reach(monkeypatch, tmp_path)
    level = logging.getLogger("huggingface_hub").level
    with pytest.raises(
        UnmaskError, match=r"openai/gsm8k cannot be read from the hub \(it does not answer, .*--data-dir"
    ):
        loaders.records("gsm8k", None)
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("huggingface_hub").level == level


def test_a_task_on_a_hub_that_does_not_answer_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out_of_reach(monkeypatch, tmp_path)
    path = tmp_path / "sums.yaml"
    path.write_text("task: sums\ndataset_path: some/sums\ntest_split: test\noutput_type: generate_until\n")
    with pytest.raises(UnmaskError, match=r"could not be loaded: .*\(the hub does not answer\)"):
        questions_digest(str(path), None)


def test_what_cannot_be_read_is_told_before_a_model_is_loaded(tmp_path: Path) -> None:
    recipe = parse(VALUES | {"tasks": ["gsm8k"], "data_dir": str(tmp_path)})
    with pytest.raises(UnmaskError, match=r"has no gsm8k/test.jsonl"):
        run(recipe, out=tmp_path / "run", load=lambda checkpoint: pytest.fail("a model was loaded"))
    assert not (tmp_path / "run").exists()
