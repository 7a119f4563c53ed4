"""Our models behind lm-eval's interface: likelihoods for multiple choice, and the class as lm-eval makes it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import lm_eval.tasks
import pytest
from benchmark_records import SEPARATOR, TOY, open_cell, run, with_model
from doubles import Watched
from lm_eval.api.instance import Instance
from lm_eval.api.registry import get_model

import unmask
from unmask.errors import UnmaskError
from unmask.evals import harness
from unmask.evals.harness import question_of
from unmask.lm_eval import UnmaskLM, main

CHOICES = """
task: which_sentence
custom_dataset: !function records.sentences
output_type: {kind}
test_split: test
fewshot_split: test
num_fewshot: 0
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: gold
target_delimiter: ""
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
"""
RECORDS = """
from datasets import Dataset

ROWS = [
    {"question": "Recite:", "choices": ["zebra zebra", "Every maske"], "gold": 1},
    {"question": "Recite it:", "choices": ["Every maske", "Every mosko"], "gold": 0},
    {"question": "Lie:", "choices": ["Every maske", "qqqqq qqqqq"], "gold": 1},
]


def sentences(**_):
    return {"test": Dataset.from_list(ROWS)}
"""


def choice_task(folder: Path, kind: str = "multiple_choice") -> str:
    (folder / "records.py").write_text(RECORDS)
    path = folder / "which_sentence.yaml"
    path.write_text(CHOICES.format(kind=kind))
    return str(path)


def test_multiple_choice_tasks_go_through_the_likelihood(tmp_path: Path, capfd):
    task = choice_task(tmp_path)
    about = harness.describe_benchmark(task, replace(TOY, preset="x-instruct"))
    assert about == {"headline": "acc", "shots": 0, "template": "none", "items": 3}
    folder = open_cell(tmp_path, task, items=3)
    heard: list[int] = []
    run(folder, None, on_item=lambda done, items: heard.append(done))
    assert heard == [0, 1, 2, 3]
    assert folder.scores == {0: {"acc": 1.0}, 1: {"acc": 1.0}, 2: {"acc": 0.0}}
    assert [folder.generations[number].text.strip() for number in range(3)] == ["Every maske"] * 3
    assert all(len(found.note["loglikelihoods"]) == 2 for found in folder.generations.values())
    assert capfd.readouterr() == ("", "")

    watched: list[Watched] = []
    llm = with_model(lambda model: watched.append(Watched(model)) or watched[0])
    for name in ("scores.jsonl", "done.json"):  # as if the run had been killed before the scores were written
        (folder.folder / name).unlink()
    again = open_cell(tmp_path, task, items=3)
    run(again, None, llm=llm)
    assert watched[0].computed == []
    assert again.scores == folder.scores


def test_a_limit_leaves_out_the_last_choices(tmp_path: Path):
    folder = open_cell(tmp_path, choice_task(tmp_path), items=2)
    run(folder, None)
    assert sorted(folder.scores) == [0, 1]


@pytest.fixture
def few_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """lm-eval with no tasks but those in the folder."""
    manager = partial(lm_eval.tasks.TaskManager, include_path=str(tmp_path), include_defaults=False)
    monkeypatch.setattr(lm_eval.tasks, "TaskManager", manager)
    harness.every_task.cache_clear()
    yield
    harness.every_task.cache_clear()


@pytest.mark.usefixtures("few_tasks")
def test_items_of_a_group_of_tasks_are_numbered_through(tmp_path: Path):
    first = Path(choice_task(tmp_path))
    second = first.read_text().replace("which_sentence", "once_more")
    (tmp_path / "once_more.yaml").write_text(second)
    (tmp_path / "pair.yaml").write_text("group: pair\ntask: [which_sentence, once_more]\n")
    assert harness.describe_benchmark("pair", TOY)["items"] == 6
    whole = open_cell(tmp_path / "whole", "pair", items=6)
    run(whole, None)
    assert [whole.scores[number]["acc"] for number in range(6)] == [1.0, 1.0, 0.0, 1.0, 1.0, 0.0]
    part = open_cell(tmp_path / "part", "pair", items=4)
    run(part, None)
    assert sorted(part.scores) == [0, 1, 3, 4]


@pytest.mark.usefixtures("few_tasks")
def test_an_unknown_task_is_told_with_a_near_match(tmp_path: Path):
    choice_task(tmp_path)
    for wrong, near in (("gsm8kk", "gsm8k"), ("which_sentences", "which_sentence")):
        with pytest.raises(UnmaskError, match=f"unknown task '{wrong}'; did you mean '{near}'"):
            harness.describe_benchmark(wrong, TOY)


def test_a_lone_continuation_is_right_if_greedy_decoding_gives_it(tmp_path: Path):
    rows = [{"question": "Recite:", "gold": "Every maske"}, {"question": "Recite:", "gold": "Every mosko"}]
    records = RECORDS.partition("ROWS")[0] + f"ROWS = {rows}\n" + RECORDS.partition("]\n\n")[2]
    (tmp_path / "records.py").write_text(records)
    task = tmp_path / "lone.yaml"
    task.write_text(CHOICES.format(kind="loglikelihood").replace('doc_to_choice: "{{choices}}"\n', ""))
    folder = open_cell(tmp_path, str(task), items=2)
    run(folder, None)
    assert [folder.generations[number].note["greedy"] for number in (0, 1)] == [[True], [False]]
    assert folder.scores == {0: {"acc": 1.0}, 1: {"acc": 0.0}}


def test_spaces_between_context_and_continuation_go_with_the_continuation():
    request = Instance(request_type="loglikelihood", doc={}, arguments=("Recite: ", "Every"), idx=0)
    llm = unmask.load("toy")
    question = question_of([request], llm, id=0, template="none", new_tokens=8)
    assert question.text == "Recite:" + SEPARATOR
    assert question.continuations == (llm.codec.encode(" Every", special=False),)


def test_running_text_is_refused_in_one_line(tmp_path: Path):
    with pytest.raises(UnmaskError, match="which_sentence wants the perplexity of running text"):
        harness.describe_benchmark(choice_task(tmp_path, "loglikelihood_rolling"), TOY)
    with pytest.raises(NotImplementedError, match="perplexity of running text"):
        UnmaskLM("toy").loglikelihood_rolling([])


def test_code_that_would_run_outside_the_sandbox_is_refused(tmp_path: Path):
    path = Path(choice_task(tmp_path))
    path.write_text(path.read_text() + "unsafe_code: true\n")
    with pytest.raises(UnmaskError, match="which_sentence runs code that a model wrote, outside our sandbox"):
        run(open_cell(tmp_path, str(path)), None)


def test_lm_eval_finds_the_model_by_name_and_makes_it_from_its_own_arguments():
    assert get_model("unmask") is UnmaskLM
    arguments = {"batch_size": "4", "device": "cpu", "max_batch_size": None}
    model = UnmaskLM.create_from_arg_string("pretrained=toy,policy=fixed,max_tokens=8", arguments)
    assert model.batch_size == 4
    request = {"request_type": "generate_until", "doc": {}, "idx": 0}
    requests = [
        Instance(arguments=("Say:", {"until": ["y"]}), metadata=("t", number, 1), **request) for number in (0, 0, 1)
    ]
    assert model.generate_until(requests) == ["Ever"] * 3
    with pytest.raises(UnmaskError, match="batch_size must be a whole number of at least 1, got 'auto'"):
        UnmaskLM("toy", batch_size="auto")


def answer_to(doc: dict, *, until: list[str], template: str = "none", **settings) -> str:
    request = Instance(
        request_type="generate_until", doc=doc, arguments=("def f():", {"until": until}), idx=0, metadata=("t", 0, 1)
    )
    model = UnmaskLM("toy", policy="fixed", template=template, max_tokens=32, block_size=8, **settings)
    return model.generate_until([request])[0]


@pytest.mark.parametrize("early_stop", [False, True])
def test_what_a_chat_model_writes_for_humaneval_is_not_cut(early_stop: bool):
    doc = {"task_id": "HumanEval/0"}
    text = answer_to(doc, until=[" letter"], template="chat", early_stop=early_stop)
    assert text == "Every masked letter is guessed a"
    assert answer_to(doc, until=[" letter"], early_stop=early_stop) == "Every masked"


def test_the_settings_own_stops_apply_to_benchmarks_too():
    assert answer_to({}, until=["guess"], stop=(" letter",)) == "Every masked"
    full_stop = unmask.load("toy").codec.encode("m", special=False)[0]
    assert answer_to({}, until=["guess"], stop_token_ids=(full_stop,)) == "Every "


COMMAND = ["--model", "unmask", "--device", "cpu", "--model_args"]


@pytest.mark.slow
def test_lm_evals_own_command_knows_our_model(tmp_path: Path):
    flags = [*COMMAND, "pretrained=toy,policy=threshold,max_tokens=16", "--tasks", choice_task(tmp_path)]
    offline = os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "unmask.lm_eval", *flags]
    done = subprocess.run(command, capture_output=True, text=True, env=offline, check=False)
    assert done.returncode == 0, done.stderr
    assert "which_sentence" in done.stdout


@pytest.mark.usefixtures("few_tasks")
def test_lm_evals_own_command_ends_with_one_line_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    flags = [*COMMAND, "pretrained=toy,policy=tresholds", "--tasks", choice_task(tmp_path)]
    monkeypatch.setattr("sys.argv", ["lm_eval", *flags])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("unmask: unknown policy 'tresholds'; did you mean 'threshold'?")


def test_a_module_that_lm_evals_own_command_needs_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "lm_eval.__main__", None)
    with pytest.raises(SystemExit, match=r"^unmask: lm-eval needs lm_eval.__main__, which is missing: pip install '"):
        main()

    def lacking() -> None:
        raise ModuleNotFoundError("No module named 'sacrebleu'", name="sacrebleu")

    monkeypatch.setitem(sys.modules, "lm_eval.__main__", SimpleNamespace(cli_evaluate=lacking))
    with pytest.raises(SystemExit, match=r"^unmask: lm-eval needs sacrebleu, which is missing: pip install '"):
        main()
