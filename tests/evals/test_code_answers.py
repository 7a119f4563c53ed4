"""Scoring of HumanEval and MBPP on small records, and on every reference solution."""

import contextvars
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from unmask import sandbox
from unmask.evals import answers

needs_data = pytest.mark.skipif("UNMASK_DATA_DIR" not in os.environ, reason="UNMASK_DATA_DIR is not set")

TWICE = {
    "task_id": "Own/0",
    "prompt": 'from typing import List\n\n\ndef twice(values: List[int]) -> List[int]:\n    """Double each."""\n',
    "entry_point": "twice",
    "test": "def check(candidate):\n    assert candidate([1, 2]) == [2, 4]\n    assert candidate([]) == []\n",
}
BODY = "    return [2 * value for value in values]\n"
SQUARE = {
    "task_id": 1,
    "text": "Write a function that squares a number.",
    "code": "def square(x):\r\n    return x * x",
    "test_setup_code": "limit = 9",
    "test_list": ["assert square(3) == limit", "assert square(-2) == 4", "assert square(0) == 0"],
}


@pytest.fixture(autouse=True)
def permission() -> Iterator[None]:
    """What runs here is ours; with CI, bubblewrap must be there all the same."""
    if os.environ.get("CI") == "true":
        assert shutil.which("bwrap")
    with sandbox.allow_unsandboxed():
        yield


def records(path: str) -> list[dict[str, Any]]:
    lines = (Path(os.environ["UNMASK_DATA_DIR"]) / path).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    ("text", "plain", "chat"),
    [
        (BODY, 1, 1),
        ("    return values\n", 0, 0),
        (BODY.replace("    ", "\t"), 0, 1),  # a tab after the spaces of the docstring
        (BODY + "\nThat is all there is to it!", 0, 1),
        (f"Here it is:\n```python\n{TWICE['prompt']}{BODY}```\nIt doubles each value.", 0, 1),
        (f"```python\n{TWICE['prompt']}{BODY}\nprint(twice(input()))\n```", 0, 1),
        ("```python\ndef other(x):\n    return x\n```", 0, 0),
        ("", 0, 0),
        ("    import os; os._exit(0)", 0, 0),
        ("    while True: pass", 0, 0),
    ],
)
def test_humaneval_as_it_is_and_cleaned(text, plain, chat, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(answers, "PROGRAM_S", 0.5)
    assert answers.humaneval(TWICE | {"cleaned": False}, [text]) == {"pass@1": plain}
    assert answers.humaneval(TWICE | {"cleaned": True}, [text]) == {"pass@1": chat}


def test_only_what_the_entry_point_needs_is_kept():
    text = """import math
LIMIT, unused = 3, 4
spare: int = 5
class Point:
    pass
def helper(x):
    return min(x, LIMIT)
def silent(x):
    print(x)
def lonely(x):
    return x
def wanted(x):
    return helper(Point and x)
print(wanted(2))
assert wanted(9) == 1"""
    kept = answers.cleaned(text, "wanted")
    assert kept.splitlines()[:2] == ["import math", "LIMIT, unused = (3, 4)"]
    for gone in ("spare", "silent", "lonely", "print", "assert"):
        assert gone not in kept
    for name in ("class Point", "def helper", "def wanted"):
        assert name in kept


def test_a_later_definition_wins():
    text = "def f(x):\n    return 1\n\ndef f(x):\n    return 2"
    assert "return 2" in answers.cleaned(text, "f")
    assert "return 1" not in answers.cleaned(text, "f")


@pytest.mark.parametrize(
    "text",
    [
        "Sure, here you are.\ndef f(x):\n    return 1\nI hope that helps!",
        "def f(x):\r\n\treturn 1\r\n" + "x = (\n" * 300,
        "((((\ndef f(x):\n    return 1\n'''",
    ],
)
def test_the_longest_part_that_parses_is_found(text):
    assert answers.cleaned(text, "f") == "def f(x):\n    return 1"


@pytest.mark.parametrize("text", ["", "no code at all", "\0", "(" * 9999, "def f(x):\n    '\\d'"])
def test_cleaning_takes_any_text(text):
    assert answers.cleaned(text, "f") == ""


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\na\n```\nb\n```python\nc\n```", "a\n"),
        ("a\n```\nb", "a\n"),
        ("a", "a"),
        ("so:\n```python\na", "a"),
    ],
)
def test_the_first_fence_counts(text, code):
    assert answers.fenced(text) == code


def test_mbpp_needs_every_test():
    assert answers.mbpp(SQUARE, [SQUARE["code"]]) == {"pass@1": 1}
    assert answers.mbpp(SQUARE, ["def square(x):\n    return abs(x) * 3"]) == {"pass@1": 0}
    assert answers.mbpp(SQUARE, [""]) == {"pass@1": 0}


def test_the_sanitized_form_of_mbpp_brings_its_imports():
    doc = {"prompt": "...", "test_imports": ["import math"], "test_list": ["assert f() == math.pi"]}
    assert answers.mbpp(doc, ["from math import pi\ndef f():\n    return pi"]) == {"pass@1": 1}


def test_code_is_refused_without_a_sandbox(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(sandbox.NoSandbox):
        contextvars.Context().run(answers.mbpp, SQUARE, [SQUARE["code"]])


@needs_data
def test_every_reference_solution_of_humaneval_passes():
    docs = records("humaneval/HumanEval.jsonl")
    solutions = [doc["canonical_solution"] for doc in docs]
    plain, cleaned = ([doc | {"cleaned": truth} for doc in docs] for truth in (False, True))
    assert failures(answers.humaneval_program, plain, solutions) == []
    # Its tests call encode_shift, which the solution does not: cleaning drops it, as the public scripts do.
    assert failures(answers.humaneval_program, cleaned, solutions) == ["HumanEval/50"]
    nothing = ["    pass\n"] * len(docs)
    assert len(failures(answers.humaneval_program, plain, nothing)) == len(docs)


@needs_data
@pytest.mark.slow
def test_every_reference_solution_of_mbpp_passes():
    docs = [doc for doc in records("mbpp/mbpp.jsonl") if 11 <= doc["task_id"] <= 510]
    assert len(docs) == 500
    assert failures(answers.mbpp_program, docs, [doc["code"] for doc in docs]) == []
    shifted = [doc["code"] for doc in docs[1:] + docs[:1]]
    assert len(failures(answers.mbpp_program, docs, shifted)) == len(docs)


def failures(program: Callable[..., Any], docs: list[dict[str, Any]], texts: list[str]) -> list[Any]:
    programs = [program(doc, text) for doc, text in zip(docs, texts, strict=True)]
    results = sandbox.run_many(programs, timeout_s=20.0)  # not a question of how busy the machine is
    return [doc["task_id"] for doc, result in zip(docs, results, strict=True) if not result.passed]
