"""Benchmarks through the real lm-eval path, offline, on records of our own and on the public ones where they are."""

from __future__ import annotations

import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmark_records import (
    SEPARATOR,
    TASKS,
    THEIRS,
    TOY,
    gsm8k_record,
    humaneval_record,
    math_record,
    mbpp_record,
    open_cell,
    run,
    theirs,
    with_model,
    write_records,
)
from doubles import Watched
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import load_yaml

import unmask
from unmask.engine.generator import Generator
from unmask.errors import UnmaskError
from unmask.evals import harness
from unmask.evals.harness import SHOT_END
from unmask.evals.lm_tasks import loaders
from unmask.evals.store import CellFolder
from unmask.models.base import LoadedModel
from unmask.models.toy import SENTENCE, Toy


@pytest.fixture
def public_data() -> Path:
    if "UNMASK_DATA_DIR" not in os.environ:
        pytest.skip("UNMASK_DATA_DIR is not set")
    return Path(os.environ["UNMASK_DATA_DIR"])


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    write_records(folder)
    return folder


class Knowing(Toy):
    """Answers as it was told, by how the prompt ends."""

    def __init__(self, codec, answers: dict[str, str]) -> None:
        super().__init__(codec, device=torch.device("cpu"), dtype=torch.float32)
        self.codec, self.answers = codec, answers

    def _logits(self, tokens, visible):
        logits = torch.zeros(*tokens.shape, self.spec.vocab_size)
        logits[..., self.spec.eos_id] = 20.0
        for row, line in enumerate(tokens.tolist()):
            begin = line.index(self.separator_id)
            prompt = self.codec.decode(line[:begin])
            told = next((answer for question, answer in self.answers.items() if prompt.endswith(question)), "")
            for place, token in enumerate(self.codec.encode(told, special=False)[: len(line) - begin - 1]):
                logits[row, begin + 1 + place, token] = 40.0
        return logits


@pytest.mark.parametrize("task", TASKS)
def test_five_items_of_every_benchmark_run_offline_and_in_silence(
    task: str, data_dir: Path, tmp_path: Path, capfd, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)  # outside of any repository
    folder = open_cell(tmp_path, task)
    heard: list[tuple[int, int]] = []
    run(folder, data_dir, on_item=lambda done, items: heard.append((done, items)))
    assert heard == [(0, 5), (2, 5), (4, 5), (5, 5)]
    assert capfd.readouterr() == ("", "")
    kept = CellFolder(folder.folder)
    assert sorted(kept.generations) == sorted(kept.scores) == list(range(5))
    assert all(folder.cell.headline in scores for scores in kept.scores.values())
    for generation in kept.generations.values():
        assert generation.text == SENTENCE[:32]
        assert generation.tokens_reference == generation.tokens_answer == len(generation.token_ids) == 32
        assert generation.passes > 0
        assert set(generation.seconds) == {"model", "policy", "rest"}
        assert not generation.truncated


def gold(task: str, row: dict[str, Any]) -> tuple[str, str]:
    """The end of the record's prompt, and an answer that is right, run-on text included."""
    match task:
        case "gsm8k":
            return row["question"] + "\nAnswer:", f" {row['answer']}\n\nQuestion: and more? #### 99"
        case "math" | "math500":
            value = row["solution"].partition("{")[2].partition("}")[0]
            final = f"\nFinal Answer: The final answer is ${value}$. I hope it is correct."
            return row["problem"] + "\n\nSolution:", f" {row['solution']}{final}\n\nProblem: $\\boxed{{99}}$"
        case "humaneval":
            return row["prompt"], row["canonical_solution"] + "\nprint(1 / 0)"
        case _:
            return row["test_list"][2] + "\n[BEGIN]\n", row["code"] + "\n[DONE]\nassert False"


@pytest.mark.parametrize("task", TASKS)
def test_gold_answers_score_one_and_others_zero_through_the_whole_path(task: str, data_dir: Path, tmp_path: Path):
    rows = loaders.records(task, str(data_dir))[:5]
    answers = dict(gold(task, row) for row in rows)
    wrong = gold(task, rows[0])[0]
    answers[wrong] = "I do not know."
    codec = unmask.load("toy").codec
    llm = Generator(LoadedModel(model=Knowing(codec, answers), codec=codec))
    folder = open_cell(tmp_path, task, max_tokens=160)
    run(folder, data_dir, llm=llm)
    assert [folder.scores[number][folder.cell.headline] for number in range(5)] == [0.0, 1.0, 1.0, 1.0, 1.0]


def their_prompts(task: str, splits: dict[str, Any], items: int) -> list[str]:
    """Prompts that lm-eval makes of its own task file, on the same records."""
    file = {"gsm8k": "gsm8k/gsm8k", "humaneval": "humaneval/humaneval", "mbpp": "mbpp/mbpp"}
    name = file.get(task, "minerva_math/minerva_math_algebra")
    config = load_yaml(THEIRS / f"{name}.yaml", resolve_func=False)
    config |= {"custom_dataset": lambda **_: splits, "unsafe_code": False, "metadata": {}, "tag": None}
    config |= {"metric_list": [{"metric": "exact_match"}], "filter_list": None}
    if task in ("math", "math500"):
        config |= dict.fromkeys(("process_docs", "process_results", "training_split"))
        config["doc_to_text"] = theirs("minerva_math/utils.py", "doc_to_text")
        config["doc_to_target"] = "{{'-' if few_shot is undefined else solution}}"
        config["fewshot_config"]["samples"] = theirs("minerva_math/utils.py", "list_fewshot_samples")
    if task == "mbpp":
        config["fewshot_config"]["samples"] = theirs("mbpp/utils.py", "list_fewshot_samples")
    logging.getLogger("lm_eval").setLevel(logging.CRITICAL)
    made = ConfigurableTask(config=config)
    made.set_fewshot_seed(1234)
    made.build_all_requests(limit=items)
    return [request.args[0] for request in made.instances]


def check_prompts(task: str, data: Path, run_folder: Path) -> None:
    folder = open_cell(run_folder, task, items=5, max_tokens=8)
    llm = with_model(lambda model: _roomier(model, 50_000))
    run(folder, data, llm=llm)
    splits = loaders.splits(task=task, data_dir=str(data))
    expected = their_prompts(task, splits, 5)
    assert [folder.generations[number].prompt for number in range(5)] == [text + SEPARATOR for text in expected]


def _roomier(model: Toy, max_length: int) -> Toy:
    model.spec = replace(model.spec, max_length=max_length)
    return model


@pytest.mark.parametrize("task", TASKS)
def test_prompts_are_byte_for_byte_those_of_lm_evals_own_tasks(task: str, data_dir: Path, tmp_path: Path):
    check_prompts(task, data_dir, tmp_path)


@pytest.mark.parametrize("task", TASKS)
def test_prompts_of_the_public_records_are_those_of_lm_evals_own_tasks(task: str, public_data: Path, tmp_path: Path):
    check_prompts(task, public_data, tmp_path)


def test_the_prompt_of_gsm8k_reads_as_the_protocol_says(data_dir: Path, tmp_path: Path):
    folder = open_cell(tmp_path, "gsm8k", items=1, shots=1)
    run(folder, data_dir)
    shot, question = folder.generations[0].prompt.split("\n\n")
    assert shot.startswith("Question: Ann has ")
    assert shot.splitlines()[-1].startswith("#### ")
    assert question == "Question: Ann has 0 pens and buys 3 more. How many has she?\nAnswer:" + SEPARATOR


def test_a_run_that_was_broken_off_goes_on_where_it_stopped(data_dir: Path, tmp_path: Path):
    whole = open_cell(tmp_path / "whole", "gsm8k", batch_size=1)
    run(whole, data_dir)
    broken = open_cell(tmp_path / "broken", "gsm8k", batch_size=1)

    def pull_the_plug(done: int, items: int) -> None:
        on_disk = CellFolder(broken.folder).generations
        assert len(on_disk) == done  # written before it is told
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(broken, data_dir, on_item=pull_the_plug)
    heard: list[int] = []
    again = open_cell(tmp_path / "broken", "gsm8k", batch_size=1)
    run(again, data_dir, on_item=lambda done, items: heard.append(done))
    assert heard == [3, 4, 5]
    assert again.scores == whole.scores
    assert len((again.folder / "items.jsonl").read_text().splitlines()) == 5
    for number, generation in whole.generations.items():
        assert replace(again.generations[number], seconds={}) == replace(generation, seconds={})


def test_a_finished_cell_computes_nothing(data_dir: Path, tmp_path: Path):
    run(open_cell(tmp_path, "humaneval"), data_dir)
    watched: list[Watched] = []
    llm = with_model(lambda model: watched.append(Watched(model)) or watched[0])
    folder = open_cell(tmp_path, "humaneval")
    for name in ("scores.jsonl", "done.json"):
        (folder.folder / name).unlink()
    folder = open_cell(tmp_path, "humaneval")
    run(folder, data_dir, llm=llm)
    assert watched[0].computed == []
    assert sorted(folder.scores) == list(range(5))


def test_long_prompts_lose_shots_and_are_marked(data_dir: Path, tmp_path: Path):
    folder = open_cell(tmp_path, "math500", items=2, max_tokens=32)
    llm = with_model(lambda model: _roomier(model, 800))
    run(folder, data_dir, llm=llm)
    generation = folder.generations[0]
    assert generation.truncated
    assert generation.prompt.startswith("Problem:\nIf the system of equations")  # the last of the four shots
    assert generation.prompt.endswith("$0 \\cdot 2$?\n\nSolution:" + SEPARATOR)
    assert SHOT_END not in generation.prompt


def test_chat_models_get_humaneval_uncut(data_dir: Path, tmp_path: Path):
    prompt = "user: " + humaneval_record(0)["prompt"] + "\n"
    answer = "```python\ndef add0(x):\n    return x + 0\n```\nprint(1)"
    codec = unmask.load("toy").codec
    llm = Generator(LoadedModel(model=Knowing(codec, {prompt: answer}), codec=codec))
    folder = open_cell(tmp_path, "humaneval", items=1, template="chat", max_tokens=80)
    run(folder, data_dir, llm=llm)
    assert folder.generations[0].text == answer
    assert folder.generations[0].tokens_reference == len(answer)
    assert folder.scores[0] == {"pass@1": 1.0}


def test_a_limit_on_math_takes_from_every_subject(public_data: Path):
    rows = loaders.records("math", str(public_data))
    assert len(rows) == 5000
    assert len({row["type"] for row in rows[:100]}) == 7


@pytest.mark.parametrize("task", TASKS)
def test_the_public_files_hold_what_the_protocol_counts(task: str, public_data: Path):
    counted = harness.describe_benchmark(task, TOY, public_data)
    assert counted == harness.describe_benchmark(task, TOY)


def test_benchmarks_are_described_as_the_paper_runs_them():
    chat = replace(TOY, preset="GSAI-ML/LLaDA-8B-Instruct")
    about = {name: harness.describe_benchmark(name, chat) for name in TASKS}
    assert [about[name]["shots"] for name in TASKS] == [5, 0, 4, 4, 3]
    headlines = ["flexible-extract", "pass@1", "exact_match", "exact_match", "pass@1"]
    assert [about[name]["headline"] for name in TASKS] == headlines
    assert {found["template"] for found in about.values()} == {"chat"}
    assert sorted(harness.BENCHMARKS) == TASKS


def test_without_a_folder_the_hub_is_asked_by_name(monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[str, str | None, str]] = []

    def load_dataset(name: str, config: str | None, *, split: str):
        asked.append((name, config, split))
        return [gsm8k_record(1) | math_record(1) | humaneval_record(1) | mbpp_record(11)]

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    for task in loaders.BENCHMARKS:
        assert loaders.records(task, None)
    assert [call for call in asked if "hendrycks" not in call[0]] == [
        ("openai/gsm8k", "main", "test"),
        ("HuggingFaceH4/MATH-500", "default", "test"),
        ("openai/openai_humaneval", None, "test"),
        ("google-research-datasets/mbpp", "full", "test"),
    ]
    assert len({config for name, config, _ in asked if name == "EleutherAI/hendrycks_math"}) == 7


def test_a_hub_out_of_reach_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def load_dataset(*names: str | None, split: str):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    with pytest.raises(
        UnmaskError, match=r"openai/openai_humaneval cannot be read from the hub \(no route to host\)"
    ) as caught:
        run(open_cell(tmp_path, "humaneval"), None)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_too_many_shots_are_told_in_one_line(data_dir: Path, tmp_path: Path):
    with pytest.raises(UnmaskError, match=r"has no gsm8k/test.jsonl, nor gsm8k/test.jsonl.gz"):
        run(open_cell(tmp_path, "gsm8k"), tmp_path)
    with pytest.raises(UnmaskError, match="mbpp has at most 3 shots, got 4"):
        run(open_cell(tmp_path, "mbpp", shots=4), data_dir)
    (data_dir / "math500" / "test.jsonl").write_text('{"problem": "x", "solution": "y"}\nnot json\n')
    with pytest.raises(UnmaskError, match=r"test.jsonl, line 2: is not JSON"):
        run(open_cell(tmp_path, "math500"), data_dir)
    (data_dir / "math500" / "test.jsonl").write_text('{"other": "x"}\n')
    with pytest.raises(UnmaskError, match=r"test.jsonl, line 1: has no problem, solution"):
        run(open_cell(tmp_path, "math500"), data_dir)


def test_a_missing_extra_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = open_cell(tmp_path, "humaneval")
    monkeypatch.setitem(sys.modules, "lm_eval.api", None)
    with pytest.raises(
        UnmaskError, match=r"benchmarks need lm_eval\S*, which is missing: pip install 'unmask\[eval\]'"
    ):
        run(folder, None)


def test_a_dream_checkpoint_runs_with_what_fits_of_the_prompt(dream_folder: Path, data_dir: Path, tmp_path: Path):
    llm = unmask.load(str(dream_folder))
    folder = open_cell(tmp_path, "gsm8k", items=2, family="dream", max_tokens=16)
    run(folder, data_dir, llm=llm)
    assert len(folder.scores) == 2
    for generation in folder.generations.values():
        assert generation.truncated
        assert generation.prompt.startswith("<|beginoftext|>")
        assert generation.prompt.endswith("\nAnswer:")


def test_lm_evals_messages_are_back_after_a_run(data_dir: Path, tmp_path: Path):
    logger = logging.getLogger("lm_eval")
    logger.setLevel(logging.INFO)
    run(open_cell(tmp_path, "humaneval", items=1), data_dir)
    assert logger.level == logging.INFO
