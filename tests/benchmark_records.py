"""Benchmarks in miniature: records in the form of the public ones, and the shortest way to run a cell of them."""

from __future__ import annotations

import ast
import gzip
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lm_eval.tasks

import unmask
from unmask import policies
from unmask.engine.generator import Generator
from unmask.evals import harness
from unmask.evals.cell import Cell, ModelInfo
from unmask.evals.executor import LocalExecutor
from unmask.evals.run import measure
from unmask.evals.store import CellFolder
from unmask.models.base import LoadedModel
from unmask.settings import Settings

TASKS = ["gsm8k", "humaneval", "math", "math500", "mbpp"]
THEIRS = Path(inspect.getfile(lm_eval.tasks)).parent
POLICY = policies.get("threshold")
TOY = ModelInfo(family="llada", preset="toy", dtype="float32", device="cpu")
SEPARATOR = "<|answer|>"  # what the toy's tokenizer puts behind every prompt


def gsm8k_record(number: int) -> dict[str, Any]:
    return {
        "question": f"Ann has {number} pens and buys 3 more. How many has she?",
        "answer": f"She has {number}+3=<<{number}+3={number + 3}>>{number + 3} pens.\n#### {number + 3}",
    }


def math_record(number: int) -> dict[str, Any]:
    return {
        "problem": f"What is ${number} \\cdot 2$?",
        "level": "Level 1",
        "type": "Algebra",
        "solution": f"It is $\\boxed{{{number * 2}}}$.",
    }


def humaneval_record(number: int) -> dict[str, Any]:
    return {
        "task_id": f"HumanEval/{number}",
        "prompt": f'def add{number}(x):\n    """Add {number} to x."""\n',
        "entry_point": f"add{number}",
        "canonical_solution": f"    return x + {number}\n",
        "test": f"def check(candidate):\n    assert candidate(1) == {number + 1}\n",
    }


def mbpp_record(task_id: int) -> dict[str, Any]:
    return {
        "text": f"Write a function to multiply by {task_id}.",
        "code": f"def times{task_id}(x):\r\n    return x * {task_id}",
        "task_id": task_id,
        "test_setup_code": "",
        "test_list": [f"assert times{task_id}({x}) == {x * task_id}" for x in (1, 2, 3)],
        "challenge_test_list": [],
    }


def theirs(path: str, function: str) -> Any:
    """A function of one of lm-eval's task modules, without the imports that the module would make."""
    tree = ast.parse((THEIRS / path).read_text(encoding="utf-8"))
    found = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function]
    names: dict[str, Any] = {}
    exec(compile(ast.Module(body=found, type_ignores=[]), path, "exec"), names)
    return names[function]


def write_records(folder: Path) -> None:
    """Eight records or so of every benchmark, in the public form; one file is compressed."""
    shots = [{"test_setup_code": "", "challenge_test_list": []} | shot for shot in mbpp_shots()]
    files = {
        "gsm8k/test.jsonl": [gsm8k_record(number) for number in range(8)],
        "gsm8k/train.jsonl.gz": [gsm8k_record(number) for number in range(50, 70)],
        "math/test.jsonl.gz": [math_record(number) for number in range(8)],
        "math500/test.jsonl": [math_record(number) for number in range(8)],
        "humaneval/HumanEval.jsonl": [humaneval_record(number) for number in range(8)],
        "mbpp/mbpp.jsonl": [mbpp_record(1), *shots, *(mbpp_record(number) for number in (5, *range(11, 19), 511))],
    }
    for name, rows in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with gzip.open(path, "wt") if path.suffix == ".gz" else path.open("w") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def mbpp_shots() -> list[dict[str, Any]]:
    shots = theirs("mbpp/utils.py", "list_fewshot_samples")()
    return [{key: value for key, value in shot.items() if key != "is_fewshot"} for shot in shots]


def open_cell(
    run: Path, task: str, *, items: int = 5, batch_size: int = 2, max_tokens: int = 32, **changes
) -> CellFolder:
    about = harness.describe_benchmark(task, TOY) if task in TASKS else {"headline": "acc", "shots": 0}
    cell = Cell(
        model="toy",
        policy=policies.describe(POLICY),
        settings=Settings(max_tokens=max_tokens, block_size=16).to_dict(),
        task=task,
        batch_size=batch_size,
        **about | {"family": "llada", "items": items} | changes,
    )
    return CellFolder.open(run, cell, {})


def run(
    folder: CellFolder, data: Path | None, *, llm: Generator | None = None, on_item=lambda done, items: None
) -> None:
    executor = LocalExecutor(llm or unmask.load("toy"))
    task = harness.BenchmarkTask(folder.cell, executor, data)
    for done, items in measure(executor, task, folder):
        on_item(done, items)


def with_model(change: Callable[[Any], Any]) -> Generator:
    llm = unmask.load("toy")
    return Generator(LoadedModel(model=change(llm.model), codec=llm.codec))
