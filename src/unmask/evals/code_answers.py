"""Whether an answer to HumanEval or MBPP is right: it is run in the sandbox, against the tests of its record.

HumanEval of chat models is cleaned first, as the public scripts of LLaDA and Dream do it: the fenced code, after the
prompt, without what does not parse and what the wanted function does not use. That last step also drops the helper
which only the tests of HumanEval/50 call, so that one task can hardly be solved in this form, there and here.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from unmask import sandbox

TIMEOUT_S = 3.0
CLEANED_LINES = 100

Doc = Mapping[str, Any]
Program = tuple[str, list[str]]


def humaneval(doc: Doc, text: str, *, chat: bool) -> dict[str, int]:
    """pass@1 of one answer; `chat` cleans it first, otherwise it continues the prompt as it is."""
    return humaneval_many([doc], [text], chat=chat)[0]


def humaneval_many(docs: Sequence[Doc], texts: Sequence[str], *, chat: bool) -> list[dict[str, int]]:
    """`humaneval` for each pair, in as few interpreters as there are cores."""
    return _passes([_humaneval_program(doc, text, chat) for doc, text in zip(docs, texts, strict=True)])


def mbpp(doc: Doc, text: str) -> dict[str, int]:
    """pass@1 of one answer, on the tests that its prompt showed."""
    return mbpp_many([doc], [text])[0]


def mbpp_many(docs: Sequence[Doc], texts: Sequence[str]) -> list[dict[str, int]]:
    """`mbpp` for each pair, in as few interpreters as there are cores."""
    return _passes([_mbpp_program(doc, text) for doc, text in zip(docs, texts, strict=True)])


def _passes(programs: list[Program]) -> list[dict[str, int]]:
    return [{"pass@1": int(result.passed)} for result in sandbox.run_many(programs, timeout_s=TIMEOUT_S)]


def _humaneval_program(doc: Doc, text: str, chat: bool) -> Program:
    code = cleaned(doc["prompt"] + "\n" + fenced(text), doc["entry_point"]) if chat else doc["prompt"] + text
    return code, [doc["test"], f"check({doc['entry_point']})"]


def _mbpp_program(doc: Doc, text: str) -> Program:
    """The set-up is `test_setup_code` in the full set, `test_imports` in the sanitized one."""
    setup = [doc.get("test_setup_code") or "", *(doc.get("test_imports") or [])]
    return text, [*filter(None, setup), *doc["test_list"]]


def fenced(text: str) -> str:
    """What follows the first ```python fence, or everything, up to the next fence."""
    return text.split("```python\n", 1)[-1].split("```")[0]


def cleaned(text: str, entry_point: str) -> str:
    """Of the longest part that parses: imports, classes, assignments and functions that return something, as far as the
    entry point needs them."""
    text = text.replace("\t", "    ").replace("\r\n", "\n").replace("\r", "\n").strip()
    body = _longest_that_parses(text.splitlines()[:CLEANED_LINES])
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    defined = {name: node for node in body for name in _defines(node)}  # a later definition wins
    needed = _reachable(entry_point, defined)
    kept = dict.fromkeys(node for name, node in defined.items() if name in needed)
    return "\n".join(ast.unparse(node) for node in (*imports, *kept))


def _longest_that_parses(lines: list[str]) -> list[ast.stmt]:
    """By the count of lines that are not blank; the first of equals."""
    filled = [0]
    for line in lines:
        filled.append(filled[-1] + bool(line.strip()))
    runs = [(start, end) for start in range(len(lines)) for end in range(start + 1, len(lines) + 1)]
    for start, end in sorted(runs, key=lambda run: filled[run[0]] - filled[run[1]]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as those on invalid escapes, which are no business of ours
            try:
                return ast.parse("\n".join(lines[start:end])).body
            except (SyntaxError, ValueError, MemoryError, RecursionError):
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
