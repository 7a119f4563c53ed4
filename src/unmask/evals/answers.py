"""Whether an answer to GSM8K or MATH is right, as lm-eval 0.4.13 decides it (`gsm8k` 3.0, `minerva_math` 3.1).

GSM8K asks for a number: after `####` (strict), or the last one in the text (flexible). MATH asks for a formula: that of
the closing sentence, compared with the gold answer after Minerva's clean-up (exact_match), or the one that math-verify
finds in the text (math_verify). Formulas are compared in a worker process, because sympy may take for ever.

Two things differ from the version behind the published MATH numbers (`minerva_math` 2.0). An answer that equals the
gold answer to the letter counts, even if it is a tuple, an interval or a matrix, which the older version could not
read. Formulas are read by latex2sympy2-extended, since sympy's own reader needs an older antlr than the installed one.
lm-eval's module needs the older antlr as well, so its clean-up is written here once more; a test compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from unmask.errors import UnmaskError
from unmask.worker_process import WorkerProcess

Doc = Mapping[str, Any]
TIMEOUT_S = 10.0  # for one comparison of formulas

formulas = WorkerProcess("unmask.evals.formulas", name="the process that compares formulas", memory_mib=4096)

_STRICT_NUMBER = re.compile(r"#### (-?[0-9.,]+)")
_ANY_NUMBER = re.compile(r"-?[$0-9.,]{2,}|-?[0-9]+")
_BEFORE_NUMBER = re.compile(r".*#### ", re.DOTALL)

_CLOSING = re.compile(r"Final Answer: The final answer is(.*?). I hope it is correct.")
_CLOSING_END = "I hope it is correct."

# Minerva's lists (Lewkowycz et al. 2022, appendix D).
# fmt: off
_REPLACED = {
    "an ": "", "a ": "", ".$": "$", "\\$": "", "\\ ": "", " ": "", "mbox": "text",
    ",\\text{and}": ",", "\\text{and}": ",", "\\text{m}": "\\text{}",
}
_REMOVED = (
    "square", "ways", "integers", "dollars", "mph", "inches", "ft", "hours", "km", "units", "\\ldots", "sue",
    "points", "feet", "minutes", "digits", "cents", "degrees", "cm", "gm", "pounds", "meters", "meals", "edges",
    "students", "childrentickets", "multiples", "\\text{s}", "\\text{.}", "\\text{\ns}", "\\text{}^2",
    "\\text{}^3", "\\text{\n}", "\\text{}", "\\mathrm{th}", "^\\circ", "^{\\circ}", "\\;", ",\\!", "{,}", '"',
    "\\dots",
)
# fmt: on
_UNITS = [words for words in _REMOVED if words.isalpha()]


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


def minerva_math(doc: Doc, results: list[str]) -> dict[str, int]:
    """1 if the text reaches the gold answer of the record, under both metrics."""
    gold, found = normal_form(gold_answer(doc)), final_answer(results[0])
    answer = found and normal_form(found)
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
    boxed = last_boxed(doc["solution"])
    if boxed is None:
        raise UnmaskError(f"a MATH record has neither an answer nor a \\boxed one in its solution: {doc['problem']!r}")
    return boxed


def final_answer(text: str) -> str | None:
    """What the closing sentence of the Minerva prompt names; the sentence may be cut off before its last part."""
    closing = _CLOSING.search(text + _CLOSING_END)
    return closing[1].strip() if closing else None


def last_boxed(text: str) -> str | None:
    """What the last `\\boxed{...}` or `\\fbox{...}` holds; `\\boxed 5$` reaches to the dollar sign."""
    if "\\boxed " in text:
        return text.rsplit("\\boxed ", 1)[1].split("$")[0]
    start = max(text.rfind("\\boxed"), text.rfind("\\fbox") if "\\boxed" not in text else -1)
    opening = text.find("{", start)
    if start < 0 or opening < 0:
        return None
    depth = 0
    for place in range(opening, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[opening + 1 : place]
    return None


def normal_form(answer: str) -> str:
    """An answer without units, spaces, text and shorthand TeX, so that equal ones are mostly spelt alike."""
    answer = answer.rsplit("=", 1)[-1]
    answer = re.sub(rf"(?<!\\)\b(?:{'|'.join(_UNITS)})\b", "", answer)
    for written, meant in _REPLACED.items():
        answer = answer.replace(written, meant)
    for dropped in _REMOVED:
        # A unit is not inside the name of a TeX command: \left has an "ft".
        pattern = rf"(\\[a-zA-Z]+)|{dropped}" if dropped.isalpha() else f"(){re.escape(dropped)}"
        answer = re.sub(pattern, r"\1", answer)
    answer = re.sub(r".*?\$(.*?)\$.*", r"$\1$", answer)
    for wrapper in ("text", "textbf", "overline"):
        answer = re.sub(rf"\\{wrapper}\{{(.*?)\}}", r"\1", answer)
    answer = re.sub(r"\\boxed\{(.*)\}", r"\1", answer)
    answer = re.sub(r"frac([^{])(.)", r"frac{\1}{\2}", answer)
    answer = re.sub(r"sqrt(\[[^\]]*\])(\w)", r"sqrt\1{\2}", answer)
    answer = re.sub(r"sqrt([^{\[])", r"sqrt{\1}", answer)
    answer = answer.replace("$", "")
    return answer.replace(",", "") if re.fullmatch(r"-?\d{1,3}(,\d{3})+", answer) else answer
