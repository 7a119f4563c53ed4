"""Whatever a model writes, an answer ends in a verdict, and no other item waits for it."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import fuzzing
import pytest
from benchmark_records import TASKS, open_cell, run, write_records
from hypothesis import given
from hypothesis import strategies as st

from unmask import sandbox
from unmask.engine.load import load
from unmask.evals import answers
from unmask.evals.cell import Generation
from unmask.evals.executor import LocalExecutor
from unmask.evals.harness import BenchmarkTask

PROMPT = 'def f(x: int) -> int:\n    """Add one."""\n'
PARTS = (
    *("def f(x):\n", "    return x", " + 1", "-", "not ", "(", "[", "{", ")", "]", "}", "\n", "    ", "\t", "x", ".a"),
    *(
        "lambda x: ",
        "if x:\n",
        "else:\n",
        "class A:\n",
        "0x",
        "f" * 99,
        "9" * 999,
        "1e9",
        "'",
        '"""',
        "f'{",
        "\\",
        "\0",
    ),
    *(
        "\ud800",
        "\u2028",
        "\r",
        "```python\n",
        "```",
        "import os\n",
        "async ",
        "await ",
        "yield ",
        "*",
        "**",
        ":=",
        "@",
        ",",
    ),
    *("match x:\n case ", "x = y = ", "global f\n", "é", "𝐟", "#", "####", "\\boxed{", "$", "\\frac", "1,", "I hope"),
)
DEGENERATE = (
    "    return 1" + " + 1" * 330,
    "    return 0x" + "f" * 5000,
    "    return " + "9" * 5000,
    "    return " + "-" * 9000 + "1",
    "    return x" + ".a" * 9000,
    "    return " + "(" * 5000,
    "    return [" + "[" * 150 + "]" * 150,
    "    return '\ud800'",
    "    return f'{" * 40,
    "".join(" " * depth + "if x:\n" for depth in range(4, 99)),
    "\0" * 9999,
    "#### " + "9" * 9999,
    "Final Answer: The final answer is $" + "\\frac{" * 999 + "$. I hope it is correct.",
)


def mutated(seed: int) -> str:
    """Valid code and fragments, repeated, cut and shuffled."""
    rng = random.Random(seed)
    text = rng.choice((PROMPT, "def f(x):\n    y = [a for a in x if a]\n    return sum(y)\n", ""))
    for _ in range(rng.randint(1, 12)):
        place, part = rng.randint(0, len(text)), rng.choice(PARTS)
        text = text[:place] + part * rng.choice((1, 1, 1, 2, 7, 40)) + text[place + rng.choice((0, 0, 1, 9)) :]
    return text


@pytest.mark.slow
@fuzzing.fuzz(200)
@given(st.one_of(st.integers(0, 2**64).map(mutated), st.lists(st.sampled_from(PARTS)).map("".join), st.text()))
def test_cleaning_gives_code_whatever_the_text(text: str) -> None:
    assert isinstance(answers.cleaned(PROMPT + "\n" + answers.fenced(text), "f"), str)
    answers.gsm8k({"answer": "#### 3"}, [text])
    answers.final_answer(text)
    answers.final_answer(f"Final Answer: The final answer is {text}. I hope it is correct.")


GOOD = ("def f(x):\n    return x + 1", ["assert f(1) == 2"])
TOGETHER = 50
STATEMENTS = """\
x = 1
1 / 0
del f
f = lambda x: 2
os._exit(0)
os.fork()
os.close(1)
os.kill(os.getppid(), 9)
os.remove(__file__)
os.execv('/bin/true', ['true'])
[os.close(number) for number in range(99)]
sys.exit()
sys.stdout.close()
sys.stdin.read()
sys.modules.clear()
sys.setrecursionlimit(9**9)
sys.settrace(lambda *given: 1 / 0)
raise SystemExit(0)
raise KeyboardInterrupt
raise BaseException('\\n' * 999)
print('passed' * 9999)
builtins.print = builtins.len = None
signal.raise_signal(11)
signal.alarm(1)
threading.Thread(target=print).start()
open('a', 'w').write('b')
class int(int): __eq__ = lambda one, other: True
g = lambda: g()
g()
x = [0] * 9**9
__import__('ctypes').string_at(0)
globals().clear()
while x == 7: pass""".split("\n")


def program(seed: int) -> str:
    """A right answer with statements in it that do harm, some letters of which may be wrong."""
    rng = random.Random(seed)
    top = rng.choices(STATEMENTS, k=rng.choice((0, 0, 1, 2)))
    inside = rng.choices(STATEMENTS, k=rng.choice((0, 0, 1, 2)))
    imports = "import builtins, os, signal, sys, threading"
    text = "\n".join([imports, *top, "def f(x):", *(f"    {line}" for line in inside), "    return x + 1", ""])
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        place = rng.randint(0, len(text))
        text = text[:place] + rng.choice(PARTS) + text[place + rng.choice((0, 0, 1)) :]
    return text


@pytest.mark.slow
def test_a_made_up_program_gets_a_verdict_and_changes_none_beside_it() -> None:
    ends, seed = Counter[str](), random.randrange(2**32) if fuzzing.WANTED else 0
    with sandbox.allow_unsandboxed():
        for first in range(seed, seed + fuzzing.cases(2 * TOGETHER), TOGETHER):
            programs = [program(number) for number in range(first, first + TOGETHER)]
            jobs = [job for code in programs for job in ((code, GOOD[1]), GOOD)]
            found = sandbox.run_many([*jobs, ("def f(x):\n    return x", GOOD[1])], timeout_s=5.0)
            assert all(result.passed for result in found[1::2]), first
            assert not found[-1].passed, first
            ends.update(result.reason.partition(":")[0] for result in found[:-1:2])
    assert len(ends) > 1
    fuzzing.tell(ends)


@pytest.mark.parametrize("text", DEGENERATE, ids=range(len(DEGENERATE)))
def test_a_degenerate_answer_is_wrong_in_every_benchmark(text: str) -> None:
    with sandbox.allow_unsandboxed():
        code = {"prompt": PROMPT, "entry_point": "f", "test": "def check(f):\n    assert f(1) == 2\n"}
        assert answers.humaneval(code | {"cleaned": True}, [text]) == {"pass@1": 0}
        assert answers.humaneval(code | {"cleaned": False}, [text]) == {"pass@1": 0}
        assert answers.mbpp({"test_list": ["assert f(1) == 2"]}, [text]) == {"pass@1": 0}
    assert set(answers.gsm8k({"answer": "#### 3"}, [text]).values()) == {0}
    record = {"problem": "", "solution": "It is $\\boxed{3}$."}
    assert answers.minerva_math(record, [text]) == {"exact_match": 0, "math_verify": 0}


@pytest.mark.parametrize("task", ["gsm8k", "humaneval"])
def test_an_answer_that_breaks_the_scoring_stops_no_other_item(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert task in TASKS
    score = getattr(answers, task)

    def fragile(doc: Any, results: list[str]) -> dict[str, int]:
        if results[0] == "odd":
            raise RecursionError
        return score(doc, results)

    monkeypatch.setattr(answers, task, fragile)
    write_records(tmp_path / "data")
    folder = open_cell(tmp_path, task, max_tokens=16)
    with sandbox.allow_unsandboxed():
        run(folder, tmp_path / "data")
        asked = BenchmarkTask(folder.cell, LocalExecutor(load("toy")), tmp_path / "data")
        odd, *others = folder.generations.values()
        rows = [Generation(id=odd.id, prompt="", text="odd", passes=1, seconds={}), *others]
        with pytest.warns(UserWarning, match=rf"count as wrong: items {odd.id} \(RecursionError\)"):
            found = asked.score(rows)
    assert found[odd.id] == dict.fromkeys(folder.scores[odd.id], 0.0)
    assert {number: found[number] for number in found if number != odd.id} == {
        number: scores for number, scores in folder.scores.items() if number != odd.id
    }
