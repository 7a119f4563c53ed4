"""Any executor gives the same run: batches and answers are plain data, and their order does not matter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from benchmark_records import write_records
from executors import Backwards, Pickled, Spawned

from unmask import policies
from unmask.errors import UnmaskError
from unmask.evals.executor import LocalExecutor, Question, backends, batches
from unmask.evals.recipe import parse
from unmask.evals.run import Progress, run
from unmask.evals.store import cells_of
from unmask.settings import Settings

CHOICES = """
task: recite
custom_dataset: !function records.sentences
output_type: multiple_choice
test_split: test
num_fewshot: 0
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: gold
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
"""
RECORDS = """
from datasets import Dataset

def sentences(**_):
    rows = [{"question": question, "choices": ["Every maske", "zebra"], "gold": 0} for question in ("Say:", "Recite:")]
    return {"test": Dataset.from_list(rows)}
"""


@pytest.fixture
def asked(tmp_path: Path) -> dict[str, Any]:
    """A recipe with every kind of task."""
    write_records(tmp_path / "data")
    (tmp_path / "records.py").write_text(RECORDS)
    (tmp_path / "recite.yaml").write_text(CHOICES)
    return {
        "model": "toy",
        "policy": "threshold",
        "settings": {"max_tokens": 24},
        "tasks": ["countdown-3", "gsm8k", "humaneval", str(tmp_path / "recite.yaml")],
        "data_dir": str(tmp_path / "data"),
        "limit": 3,
        "batch_size": 2,
        "device": "cpu",
    }


def untimed(folder: Path) -> dict[str, Any]:
    return {
        cell.cell.key: ({row.id: replace(row, seconds={}) for row in cell.generations.values()}, cell.scores)
        for cell in cells_of(folder)
    }


@pytest.mark.parametrize("kind", [Backwards, Pickled, pytest.param(Spawned, marks=pytest.mark.slow)])
def test_another_executor_gives_the_same_run_item_by_item(kind: Any, asked: dict[str, Any], tmp_path: Path) -> None:
    run(parse(asked), out=tmp_path / "local" / "run")
    finished = run(parse(asked), out=tmp_path / "other" / "run", load=kind.load)
    assert finished.new_items == 3 * 3 + 2
    assert all(cell.complete for cell in finished.cells)
    assert untimed(tmp_path / "other" / "run") == untimed(tmp_path / "local" / "run")


class _Stop(Exception):
    pass


def test_a_run_goes_on_with_another_executor(asked: dict[str, Any], tmp_path: Path) -> None:
    def stop(now: Progress) -> None:
        if now.number == 3 and now.done:
            raise _Stop

    run(parse(asked), out=tmp_path / "local" / "run")
    with pytest.raises(_Stop):
        run(parse(asked), out=tmp_path / "other" / "run", load=Backwards.load, on_progress=stop)
    run(parse(asked), out=tmp_path / "other" / "run", load=Pickled.load)
    assert untimed(tmp_path / "other" / "run") == untimed(tmp_path / "local" / "run")


def test_a_batch_of_which_a_part_is_there_is_decoded_whole_and_the_part_is_kept(
    asked: dict[str, Any], tmp_path: Path
) -> None:
    """In other company an item might come out differently."""
    seen: list[list[int]] = []

    class Watching(LocalExecutor):
        def map(self, batches: Any) -> Any:
            seen.extend([question.id for question in batch.questions] for batch in batches)
            return super().map(batches)

    recipe = parse(asked | {"tasks": ["countdown-3"], "limit": 5})
    run(recipe, out=tmp_path / "run", load=Watching.load)
    first, second, _ = seen
    (cell,) = cells_of(tmp_path / "run")
    (cell.folder / "done.json").unlink()
    for name in ("items.jsonl", "scores.jsonl"):
        lines = (cell.folder / name).read_text().splitlines(keepends=True)
        (cell.folder / name).write_text("".join(lines[:3]) + lines[3][:7])
    before = untimed(tmp_path / "run")
    seen.clear()
    with pytest.warns(UserWarning, match="ends in half a line"):
        assert run(recipe, out=tmp_path / "run", load=Watching.load).new_items == 2
    assert first not in seen
    assert seen[0] == second
    after = untimed(tmp_path / "run")[cell.cell.key]
    assert len(after[0]) == 5
    assert before[cell.cell.key][0].items() <= after[0].items()


def test_the_longest_questions_come_first_and_stop_strings_do_not_mix() -> None:
    def question(number: int, length: int, **more: Any) -> Question:
        return Question(id=number, text="", prompts=([1] * length,), **more)

    asked = [question(0, 3), question(1, 9, stop=("x",)), question(2, 5), question(3, 4)]
    asked.append(question(4, 1, continuations=([1],)))
    asked.append(question(5, 1, continuations=([1],)))
    cut = batches(asked, policy=policies.get("fixed"), settings=Settings(), batch_size=2)
    assert [[each.id for each in batch.questions] for batch in cut] == [[2, 3], [0], [1], [4], [5]]


def test_a_backend_is_looked_up_among_the_installed_ones() -> None:
    assert backends.find("local") is LocalExecutor
    with pytest.raises(UnmaskError, match="unknown backend 'locl'; did you mean 'local'"):
        backends.find("locl")
