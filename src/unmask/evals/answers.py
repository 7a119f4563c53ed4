"""Whether an answer is right: GSM8K and MATH as lm-eval 0.4.13 decides them (`gsm8k` 3.0, `minerva_math` 3.1).

GSM8K asks for a number: after `####` (strict), or the last one in the text (flexible). MATH asks for a formula: that of
the closing sentence, compared with the gold answer after Minerva's clean-up (exact_match), or the one that math-verify
finds in the text (math_verify). Formulas are compared in a worker process, because sympy may take for ever.

Two things differ from the version behind the published MATH numbers (`minerva_math` 2.0). An answer that equals the
gold answer to the letter counts, even if it is a tuple, an interval or a matrix, which the older version could not
read. Formulas are read by latex2sympy2-extended, since sympy's own reader needs an older antlr than the installed one.

HumanEval and MBPP ask for code, which is run in the sandbox against the tests of its record. HumanEval of chat models
is cleaned first, as the public scripts of LLaDA and Dream do it: the fenced code, after the prompt, without lines that
do not parse and definitions that the wanted function does not use. The last step also drops the helper that only the
tests of HumanEval/50 call: with this clean-up that task can hardly be solved.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from importlib.util import find_spec
from itertools import accumulate, combinations
from types import SimpleNamespace
from typing import Any

from unmask import sandbox
from unmask.errors import UnmaskError
from unmask.worker_process import WorkerProcess

Doc = Mapping[str, Any]
TIMEOUT_S, PROGRAM_S = 10.0, 3.0  # for one comparison of formulas, and for one program
CLEANED_LINES = 100
UNFIT = (SyntaxError, ValueError, MemoryError, RecursionError)  # what code that is too odd for `ast` raises

formulas = WorkerProcess("unmask.evals.formulas", name="the process that compares formulas", memory_mib=4096)

_STRICT_NUMBER = re.compile(r"#### (-?[0-9.,]+)")
_ANY_NUMBER = re.compile(r"-?[$0-9.,]{2,}|-?[0-9]+")
_BEFORE_NUMBER = re.compile(r".*#### ", re.DOTALL)


def gsm8k(doc: Doc, results: list[str]) -> dict[str, int]:
    """1 if the number found is the one after `####` in the gold answer, under lm-eval's names of both filters."""
    gold = _plain_number(doc["answer"])
    strict, every = _STRICT_NUMBER.search(results[0]), _ANY_NUMBER.findall(results[0])
    return {
        "flexible-extract": int(bool(every) and _plain_number(every[-1]) == gold),
        "strict-match": int(bool(strict) and _plain_number(strict[1]) == gold),
    }


def _plain_number(text: str) -> str:
    text = _BEFORE_NUMBER.sub("", text.replace(",", "").replace("$", ""))
    return re.sub(r"\.$", "", text).strip().lower()


@cache
def minerva() -> SimpleNamespace:
    """The functions of lm-eval's file for MATH: its four shots, and Minerva's clean-up.

    The file is run without its imports of sympy's reader, which needs an older antlr than the installed one.
    """
    path = resources.files("lm_eval.tasks") / "minerva_math" / "utils.py"
    file, names = ast.parse(path.read_text(encoding="utf-8")), {"__name__": "minerva_math"}
    file.body = [node for node in file.body if not isinstance(node, ast.Try)]
    exec(compile(file, str(path), "exec"), names)
    used = {"list_fewshot_samples", "get_unnormalized_answer", "normalize_final_answer", "last_boxed_only_string"}
    if missing := used - names.keys():
        raise UnmaskError(f"{path} has no {', '.join(sorted(missing))}, unlike that of lm-eval 0.4.13")
    return SimpleNamespace(**names)


def minerva_shots() -> list[dict[str, str]]:
    return minerva().list_fewshot_samples()


def minerva_math(doc: Doc, results: list[str]) -> dict[str, int]:
    """1 if the text reaches the gold answer of the record, under both metrics."""
    gold, answer = minerva().normalize_final_answer(gold_answer(doc)), final_answer(results[0])
    exact = bool(answer) and (answer == gold or compared("equivalent", answer, gold))
    verified = compared("verified", doc["solution"], results[0])
    return {"exact_match": int(exact), "math_verify": int(verified)}


def compared(question: str, first: str, second: str, *, timeout_s: float = TIMEOUT_S) -> bool:
    """What `formulas.py` answers; a comparison that hangs or takes too much memory counts as no."""
    if find_spec("math_verify") is None:
        raise UnmaskError("math-verify, which compares formulas, is not installed: pip install 'unmask[eval]'")
    return formulas.ask([question, first, second], seconds=timeout_s) is True


def gold_answer(doc: Doc) -> str:
    """The record's `answer` where it has one (MATH-500), else what its solution puts into the last box."""
    if doc.get("answer"):
        return doc["answer"]
    boxed = minerva().last_boxed_only_string(doc["solution"])
    if boxed is None:
        raise UnmaskError(f"a MATH record has neither an answer nor a \\boxed one in its solution: {doc['problem']!r}")
    # A \boxed, or an \fbox, which lm-eval's remove_boxed does not take.
    return boxed.removeprefix("\\boxed ") if boxed.startswith("\\boxed ") else boxed[boxed.index("{") + 1 : -1]


def final_answer(text: str) -> str:
    """What the closing sentence of the Minerva prompt names, cleaned up; empty if there is no such sentence."""
    found = minerva().get_unnormalized_answer(text)
    return "" if found == "[invalidanswer]" else minerva().normalize_final_answer(found)


def humaneval(doc: Doc, results: list[str]) -> dict[str, int]:
    """pass@1 of an answer. It is cleaned first if the record says `cleaned`; else it continues the prompt as it is."""
    return _passed(humaneval_program(doc, results[0]))


def mbpp(doc: Doc, results: list[str]) -> dict[str, int]:
    """pass@1 of an answer, on the tests that its prompt showed."""
    return _passed(mbpp_program(doc, results[0]))


def _passed(program: tuple[str, list[str]]) -> dict[str, int]:
    (result,) = sandbox.run_many([program], timeout_s=PROGRAM_S)
    return {"pass@1": int(result.passed)}


def humaneval_program(doc: Doc, text: str) -> tuple[str, list[str]]:
    """The code of an answer, and the statements that test it."""
    code = doc["prompt"] + text
    if doc["cleaned"]:
        code = cleaned(doc["prompt"] + "\n" + fenced(text), doc["entry_point"])
    return code, [doc["test"], f"check({doc['entry_point']})"]


def mbpp_program(doc: Doc, text: str) -> tuple[str, list[str]]:
    """The code and its tests; the set-up is `test_setup_code` in the full set, `test_imports` in the sanitized one."""
    setup = [*filter(None, [doc.get("test_setup_code"), *(doc.get("test_imports") or [])])]
    return "\n".join([text, *setup]), [*setup, *doc["test_list"]]  # code and tests are apart, and both may need it


def fenced(text: str) -> str:
    """What follows the first ```python fence, or everything, up to the next fence."""
    return text.split("```python\n", 1)[-1].split("```")[0]


def cleaned(text: str, entry_point: str) -> str:
    """What the entry point needs of the longest part that parses.

    Imports are kept; classes, assignments and functions that return something are kept if the entry point uses them.
    Nothing is left of code that parses but cannot be written down again: too deep a nesting, too long a number.
    """
    text = text.replace("\t", "    ").replace("\r\n", "\n").replace("\r", "\n").strip()
    body = _longest_that_parses(text.splitlines()[:CLEANED_LINES])
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    defined = {name: node for node in body for name in _defines(node)}  # a later definition wins
    needed = _reachable(entry_point, defined)
    kept = dict.fromkeys(node for name, node in defined.items() if name in needed)
    try:
        return "\n".join(ast.unparse(node) for node in (*imports, *kept))
    except UNFIT:
        return ""


def _longest_that_parses(lines: list[str]) -> list[ast.stmt]:
    """The statements of the run of lines that parses and has most lines that are not blank; the first of equal runs."""
    filled = [0, *accumulate(bool(line.strip()) for line in lines)]
    runs = combinations(range(len(lines) + 1), 2)
    for start, end in sorted(runs, key=lambda run: filled[run[0]] - filled[run[1]]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the answer's code, such as invalid escapes
            try:
                return ast.parse("\n".join(lines[start:end])).body
            except UNFIT:
                continue
    return []


def _defines(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.ClassDef(name=name):
            yield name
        case ast.FunctionDef(name=name) if any(isinstance(part, ast.Return) for part in ast.walk(node)):
            yield name
        case ast.Assign(targets=targets):
            for target in targets:
                yield from (part.id for part in ast.walk(target) if isinstance(part, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name


def _reachable(entry_point: str, defined: Mapping[str, ast.stmt]) -> set[str]:
    found, waiting = {entry_point}, [entry_point]
    while waiting:
        node = defined.get(waiting.pop())
        used = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} if node else set()
        waiting += used - found
        found |= used
    return found
