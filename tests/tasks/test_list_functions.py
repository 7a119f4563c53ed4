import random
import re

import pytest

from unmask.tasks.list_functions import PRIMITIVES, ListFunctions, _describe, _example, other_form


def test_there_are_sixty_primitives_and_more():
    assert len(PRIMITIVES) >= 60
    assert len({(primitive.source, primitive.code) for primitive in PRIMITIVES}) == len(PRIMITIVES)
    assert all(len(set(primitive.asked)) >= 2 for primitive in PRIMITIVES)


@pytest.mark.parametrize("primitive", PRIMITIVES, ids=lambda primitive: f"{primitive.source}:{primitive.code}")
def test_code_and_wordings_of_a_primitive_have_the_same_slots(primitive):
    slots = set(re.findall(r"\{.*?\}", primitive.code))
    assert slots <= {"{k}", "{c}", "{d}"}
    assert all(set(re.findall(r"\{.*?\}", wording)) == slots for wording in primitive.asked)
    assert not any("|" in text or "k=" in text for text in (primitive.code, *primitive.asked))
    assert len(primitive.numbers) > 1
    assert primitive.numbers == range(2, 6) or "{k}" in slots


@pytest.mark.parametrize("source", ["ints", "text", "words"])
def test_no_wording_means_two_things(source):
    asked = [wording for primitive in PRIMITIVES if primitive.source == source for wording in primitive.asked]
    assert len(set(asked)) == len(asked)


@pytest.mark.parametrize("primitive", PRIMITIVES, ids=lambda primitive: f"{primitive.source}:{primitive.code}")
def test_a_primitive_has_a_value_of_its_type_for_every_input(primitive):
    rng = random.Random(0)
    code = primitive.code.replace("{k}", "3").replace("{c}", "a").replace("{d}", "b")
    types = {"ints": list, "text": str, "words": list, "number": int, "truth": bool}
    for given in [_example(primitive.source, rng) for _ in range(20)] + [type(_example(primitive.source, rng))()]:
        assert isinstance(eval(code, {"x": given}), types[primitive.target])


@pytest.mark.parametrize("primitive", PRIMITIVES, ids=lambda primitive: f"{primitive.source}:{primitive.code}")
def test_the_other_form_of_an_operation_means_the_same(primitive):
    rng = random.Random(1)
    code = primitive.code.replace("{k}", "3").replace("{c}", "a").replace("{d}", "b")
    for given in [_example(primitive.source, rng) for _ in range(20)]:
        assert eval(other_form(code), {"x": given}) == eval(code, {"x": given})


def test_many_operations_have_another_form_of_another_length():
    codes = [primitive.code for primitive in PRIMITIVES]
    assert sum(len(other_form(code)) != len(code) for code in codes) > len(codes) / 3


def test_references_come_in_many_forms():
    answers = [item.answer for item in ListFunctions().generate(0, 200)]
    for marks in (("def f(x)", "def f(data)"), ("    y = ", "    x = "), ("return z", "return x", "lambda")):
        assert all(20 < sum(mark in answer for answer in answers) < 180 for mark in marks)


def test_the_form_does_not_decide_the_side_of_the_split():
    contents, answers = zip(*(_describe(random.Random(seed)) for seed in range(300)), strict=True)
    for mark in ("lambda", "data", "def f", "return", "y = "):
        assert any(mark in item.answer for item in answers)
        assert not any(mark in content for content in contents)


def test_another_way_to_write_the_function_counts():
    task = ListFunctions()
    item = next(item for item in task.generate(0, 400) if item.answer.endswith("return sum(x)"))
    loop = item.answer.replace("return sum(x)", "total = 0\n    for v in x:\n        total += v\n    return total")
    assert task.check(item, loop)


@pytest.mark.parametrize(
    "text", ["", "def f(x):", "def g(x):\n    return x", "return 1", "\x00", "def f(x):\n    return None", "\ud800"]
)
def test_what_is_not_the_function_is_refused(text):
    task = ListFunctions()
    assert not task.check(task.generate(0, 1)[0], text)


def test_a_mutated_program_fails_its_tests():
    task = ListFunctions()
    items = task.generate(1, 60)
    # A return of nothing, and a step more at the end, both change what the function gives.
    mutants = [item.answer.replace("return ", "return None and ") for item in items]
    assert not any(task.check_many(items, mutants))
