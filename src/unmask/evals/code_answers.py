"""Whether an answer to HumanEval or MBPP is right: it is run in the sandbox, against the tests of its record.

HumanEval of chat models is cleaned first, as the public scripts of LLaDA and Dream do it: the fenced code, after the
prompt, without lines that do not parse and definitions that the wanted function does not use. The last step also drops
the helper that only the tests of HumanEval/50 call: with this clean-up that task can hardly be solved.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping
from itertools import accumulate, combinations
from typing import Any

from unmask import sandbox

TIMEOUT_S = 3.0
CLEANED_LINES = 100
UNFIT = (SyntaxError, ValueError, MemoryError, RecursionError)  # what code that is too odd for `ast` raises

Doc = Mapping[str, Any]


def humaneval(doc: Doc, results: list[str]) -> dict[str, int]:
    """pass@1 of an answer. It is cleaned first if the record says `cleaned`; else it continues the prompt as it is."""
    return _passed(humaneval_program(doc, results[0]))


def mbpp(doc: Doc, results: list[str]) -> dict[str, int]:
    """pass@1 of an answer, on the tests that its prompt showed."""
    return _passed(mbpp_program(doc, results[0]))


def _passed(program: tuple[str, list[str]]) -> dict[str, int]:
    (result,) = sandbox.run_many([program], timeout_s=TIMEOUT_S)
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
