"""Scoring of GSM8K and MATH on small records, and on every gold answer."""

import gzip
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from unmask.errors import UnmaskError
from unmask.evals import answers

pytest.importorskip("math_verify") if os.environ.get("CI") != "true" else None
needs_data = pytest.mark.skipif("UNMASK_DATA_DIR" not in os.environ, reason="UNMASK_DATA_DIR is not set")

PROBLEM = {"problem": "What is half of one?", "solution": "It is $1/2$, so $\\boxed{\\frac{1}{2}}$."}


def records(path: str) -> list[dict[str, Any]]:
    file = Path(os.environ["UNMASK_DATA_DIR"]) / path
    text = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    return [json.loads(line) for line in text.decode().splitlines()]


def closing(answer: str) -> str:
    return f"So we are done.\nFinal Answer: The final answer is {answer}. I hope it is correct."


@pytest.mark.parametrize(
    ("text", "flexible", "strict"),
    [
        ("He has 2 * 600 = 1200 coins.\n#### 1200", 1, 1),
        ("#### 1,200", 1, 1),
        ("#### $1,200.", 1, 0),
        ("The answer is $1,200.", 1, 0),
        ("#### 1200\nThat took 3 steps.", 0, 1),
        ("#### 1201", 0, 0),
        ("#### -1200", 0, 0),
        ("#### 1200.0", 0, 0),
        ("####1200", 1, 0),
        ("no number", 0, 0),
        ("", 0, 0),
    ],
)
def test_gsm8k_under_both_filters(text, flexible, strict):
    doc = {"question": "How many coins?", "answer": "He has 2*600 = <<2*600=1200>>1,200 coins.\n#### 1,200"}
    assert answers.gsm8k(doc, [text]) == {"flexible-extract": flexible, "strict-match": strict}


@pytest.mark.parametrize(
    ("text", "exact", "verified"),
    [
        (closing("$\\frac{1}{2}$"), 1, 1),
        (closing("$\\frac12$"), 1, 1),
        (closing("0.5"), 1, 1),
        ("Final Answer: The final answer is $\\frac{1}{2}$. ", 1, 1),
        ("So it is $\\boxed{\\frac{1}{2}}$.", 0, 1),
        (closing("$\\frac{1}{3}$"), 0, 0),
        ("I cannot say.", 0, 0),
        ("", 0, 0),
    ],
)
def test_math_under_both_metrics(text, exact, verified):
    assert answers.minerva_math(PROBLEM, [text]) == {"exact_match": exact, "math_verify": verified}


def test_an_answer_field_comes_before_the_solution():
    assert answers.gold_answer(PROBLEM) == "\\frac{1}{2}"
    assert answers.gold_answer(PROBLEM | {"answer": "7"}) == "7"


def test_a_record_without_an_answer_is_named():
    with pytest.raises(UnmaskError, match="half of one"):
        answers.gold_answer(PROBLEM | {"solution": "It is obvious."})


@pytest.mark.parametrize(
    ("text", "boxed"),
    [
        ("$\\boxed{1}$ or rather $\\boxed{\\frac{2}{3}}$.", "\\frac{2}{3}"),
        ("$\\boxed 5$ apples", "5"),
        ("$\\fbox{3}$", "3"),
        ("$\\boxed\\text{(A)}$", "(A)"),
        ("\\boxed{1", None),
        ("\\boxed", None),
        ("nothing", None),
    ],
)
def test_the_last_box_counts(text, boxed):
    if boxed is not None:
        assert answers.gold_answer(PROBLEM | {"solution": text}) == boxed
        return
    with pytest.raises(UnmaskError, match="neither an answer nor"):
        answers.gold_answer(PROBLEM | {"solution": text})


@pytest.mark.parametrize(
    ("answer", "normal"),
    [
        ("x = 5", "5"),
        ("$10\\%$", "10\\%"),
        ("12 \\text{ cm}", "12"),
        ("2\\pi cm", "2\\pi"),
        ("\\left(1, 2\\right)", "\\left(1,2\\right)"),
        ("1,234,567", "1234567"),
        ("0,1", "0,1"),
        ("\\frac12", "\\frac{1}{2}"),
        ("\\sqrt3", "\\sqrt{3}"),
        ("\\sqrt[3]2", "\\sqrt[3]{2}"),
        ("45^\\circ", "45"),
        ("\\text{Monday}", "Monday"),
    ],
)
def test_units_spaces_and_shorthand_go(answer, normal):
    assert answers.final_answer(closing(answer)) == normal


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        ("x^2-1", "(x-1)(x+1)", True),
        ("\\frac{\\sqrt{8}}{2}", "\\sqrt{2}", True),
        ("2\\frac{1}{2}", "1", True),  # a product, as for lm-eval
        ("X", "x", False),
        ("(1,2)", "(1,3)", False),
        ("\\frac", "1", False),
        ("", "", False),
    ],
)
def test_formulas_are_compared_by_value(first, second, equal):
    assert answers.compared("equivalent", first, second) is equal


def test_a_comparison_that_hangs_is_wrong_and_spoils_no_other():
    assert not answers.compared("equivalent", "9^{9^{9^{9}}}", "1", timeout_s=1.0)
    assert not answers.compared("verified", "$\\boxed{2}$", "$9^{9^{9^{9^{9}}}}$", timeout_s=1.0)
    assert answers.compared("equivalent", "0.5", "\\frac{1}{2}")


def test_without_math_verify_the_extra_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "math_verify", None)
    with pytest.raises(UnmaskError, match=r"pip install 'unmask\[eval\]'"):
        answers.compared("equivalent", "1", "1")


@needs_data
def test_every_gold_answer_of_gsm8k_is_right_and_its_neighbour_wrong():
    for doc in records("gsm8k/test.jsonl"):
        assert answers.gsm8k(doc, [doc["answer"]]) == {"flexible-extract": 1, "strict-match": 1}
        reasons, number = doc["answer"].split("#### ")
        wrong = f"{reasons}#### {int(number.replace(',', '')) + 1}"
        assert answers.gsm8k(doc, [wrong]) == {"flexible-extract": 0, "strict-match": 0}


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("path", ["math/test.jsonl.gz", "math500/test.jsonl"])
def test_every_gold_answer_of_math_is_right(path):
    docs = records(path)
    # Neither metric is made for the other's form: the sentence of one line, and the solution with its box.
    sentences = [closing(answers.gold_answer(doc).replace("\n", " ")) for doc in docs]
    for doc, sentence in zip(docs, sentences, strict=True):
        assert answers.minerva_math(doc, [sentence])["exact_match"], doc
        assert answers.minerva_math(doc, [doc["solution"]])["math_verify"], doc


@needs_data
@pytest.mark.slow
def test_perturbed_answers_of_math_are_wrong():
    docs = records("math500/test.jsonl")
    texts = [closing(f"$({answers.gold_answer(doc)})+1$") for doc in docs]
    scores = [answers.minerva_math(doc, [text]) for doc, text in zip(docs, texts, strict=True)]
    assert not any(score["exact_match"] for score in scores)
    assert sum(score["math_verify"] for score in scores) <= 2  # it may read "(b=0)+1" as "b=0"
