"""Whether an answer to GSM8K or MATH is right, as lm-eval 0.4.13 decides it (`gsm8k` 3.0, `minerva_math` 3.1).

GSM8K asks for a number: after `####` (strict), or the last one in the text (flexible). MATH asks for a formula: that of
the closing sentence, compared with the gold answer after Minerva's clean-up (exact_match), or the one that math-verify
finds in the text (math_verify). Formulas are compared in a worker process, because sympy may take for ever.

Two things differ from the version behind the published MATH numbers (`minerva_math` 2.0). An answer that equals the
gold answer to the letter counts, even if it is a tuple, an interval or a matrix, which the older version could not
read. Formulas are read by latex2sympy2-extended, since sympy's own reader needs an older antlr than the installed one.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from functools import cache
from importlib import resources
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

from unmask.errors import UnmaskError
from unmask.worker_process import WorkerProcess

Doc = Mapping[str, Any]
TIMEOUT_S = 10.0  # for one comparison of formulas

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
    used = ("list_fewshot_samples", "get_unnormalized_answer", "normalize_final_answer")
    if missing := {*used, "last_boxed_only_string", "remove_boxed"} - names.keys():
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
    return minerva().remove_boxed(boxed)


def final_answer(text: str) -> str:
    """What the closing sentence of the Minerva prompt names, cleaned up; empty if there is no such sentence."""
    found = minerva().get_unnormalized_answer(text)
    return "" if found == "[invalidanswer]" else minerva().normalize_final_answer(found)
