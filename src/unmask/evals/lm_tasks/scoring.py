"""How each benchmark scores one answer: the shape lm-eval wants around our own checkers."""

from __future__ import annotations

from typing import Any

from unmask.evals import answers, code_answers

Doc = dict[str, Any]
Scores = dict[str, float]


def gsm8k(doc: Doc, results: list[str]) -> Scores:
    """Under the names that lm-eval gives to the two ways to find the number."""
    found = answers.gsm8k(doc, results[0])
    return {"flexible-extract": float(found["flexible"]), "strict-match": float(found["strict"])}


def math(doc: Doc, results: list[str]) -> Scores:
    return _floats(answers.minerva_math(doc, results[0]))


def humaneval(doc: Doc, results: list[str]) -> Scores:
    return _floats(code_answers.humaneval(doc, results[0], chat=doc["cleaned"]))


def mbpp(doc: Doc, results: list[str]) -> Scores:
    return _floats(code_answers.mbpp(doc, results[0]))


def _floats(scores: dict[str, Any]) -> Scores:
    return {name: float(value) for name, value in scores.items()}
