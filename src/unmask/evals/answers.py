"""Whether an answer to GSM8K or MATH is right, as lm-eval 0.4.13 decides it (`gsm8k` 3.0, `minerva_math` 3.1).

GSM8K asks for a number: after `####` (strict), or the last one in the text (flexible). MATH asks for a formula: the one
of the closing sentence, compared with the gold answer after Minerva's clean-up (exact_match), or whatever math-verify
finds (math_verify). Formulas are compared in another process, because sympy may take for ever.

Two things differ from what made the published MATH numbers (`minerva_math` 2.0). An answer that is the gold answer to
the letter counts, even if it is a tuple, an interval or a matrix, which the older version could not read. Formulas are
read by latex2sympy2-extended, since sympy's own reader wants an antlr that math-verify cannot use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from unmask.errors import UnmaskError
from unmask.evals import math_workers
from unmask.evals.lm_tasks import minerva

Doc = Mapping[str, Any]

_STRICT_NUMBER = re.compile(r"#### (-?[0-9.,]+)")
_ANY_NUMBER = re.compile(r"-?[$0-9.,]{2,}|-?[0-9]+")
_BEFORE_NUMBER = re.compile(r".*#### ", re.DOTALL)
_NO_ANSWER = "[invalidanswer]"  # what lm-eval finds in a text without the closing sentence


def gsm8k(doc: Doc, results: list[str]) -> dict[str, int]:
    """Under lm-eval's names of both filters: 1 if the number found is the one after `####` in the gold answer."""
    gold = _plain_number(doc["answer"])
    strict, every = _STRICT_NUMBER.search(results[0]), _ANY_NUMBER.findall(results[0])
    return {
        "flexible-extract": int(bool(every) and _plain_number(every[-1]) == gold),
        "strict-match": int(bool(strict) and _plain_number(strict[1]) == gold),
    }


def _plain_number(text: str) -> str:
    text = _BEFORE_NUMBER.sub("", text.replace(",", "").replace("$", ""))
    return re.sub(r"\.$", "", text).strip().lower()


def minerva_math(doc: Doc, results: list[str]) -> dict[str, int]:
    """Under both metrics: 1 if the text reaches the gold answer of the record."""
    normal_form, found = minerva.definition("normalize_final_answer"), _final_answer(results[0])
    gold, answer = normal_form(gold_answer(doc)), normal_form(found)
    exact = bool(answer) and (answer == gold or math_workers.ask("equivalent", answer, gold))
    verified = math_workers.ask("verified", doc["solution"], results[0])
    return {"exact_match": int(exact), "math_verify": int(verified)}


def _final_answer(text: str) -> str:
    """What the closing sentence names; nothing where there is none. Its last words may be cut off."""
    found = minerva.definition("get_unnormalized_answer")(text)
    return "" if found == _NO_ANSWER else found


def gold_answer(doc: Doc) -> str:
    """The record's `answer` where it has one (MATH-500), else what its solution puts into the last box."""
    if doc.get("answer"):
        return doc["answer"]
    box = minerva.definition("last_boxed_only_string")(doc["solution"])
    if box is None:
        raise UnmaskError(f"a MATH record has neither an answer nor a \\boxed one in its solution: {doc['problem']!r}")
    return box.partition(" ")[2] if box.startswith("\\boxed ") else box.partition("{")[2][:-1]
