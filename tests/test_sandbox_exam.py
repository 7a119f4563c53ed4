"""Tests and answers in processes of their own: what crosses between them, and what an answer cannot forge."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from unmask import sandbox


@pytest.fixture(autouse=True)
def permission() -> Iterator[None]:
    with sandbox.allow_unsandboxed():
        yield


def reason(code: str, *tests: str) -> str:
    return sandbox.run_tests(code, tests).reason


@pytest.mark.parametrize(
    "value",
    [
        *("None", "True", "-3", "2**70", "-(10**5000)", "1.5", "float('inf')", "1j", "'é\\ud800'", "b'\\xff'", "''"),
        *("[]", "[1, [2, (3,)]]", "(1, 'a')", "{1, 2}", "frozenset({1})", "set()", "{'a': {(1, 2): [3]}}", "range(3)"),
    ],
)
def test_plain_values_cross_unchanged(value: str) -> None:
    same = (
        f"value = {value}\nassert f(value) == value\nassert type(f(value)) is type(value)\nassert f(value) == {value}"
    )
    assert reason("def f(x):\n    return x", same) == "passed"


@pytest.mark.parametrize(
    ("code", "test"),
    [
        ("def f(x):\n    x.sort()\n    return x", "x = [2, 1]\nassert f(x) == [1, 2]"),
        ("def f(n):\n    for i in range(n):\n        yield i", "assert [*f(3)] == [0, 1, 2]\nassert next(f(1)) == 0"),
        ("def f(x):\n    return map(str, x)", "assert [*f([1, 2])] == ['1', '2']"),
        ("from collections import Counter\ndef f(x):\n    return Counter(x)", "assert f('aab') == {'a': 2, 'b': 1}"),
        ("from fractions import Fraction\ndef f():\n    return Fraction(1, 2)", "assert f() == 0.5"),
        ("from decimal import Decimal\ndef f():\n    return [Decimal('1.5')]", "assert f() == [1.5]"),
        ("from collections import namedtuple\nP = namedtuple('P', 'x y')", "assert P(1, y=2) == (1, 2)"),
        ("class A:\n    def get(self, m):\n        return self.n + m", "a = A()\na.n = 4\nassert a.get(m=1) == 5"),
        ("class A:\n    pass\ndef f(pairs):\n    return len({*pairs})", "a = A()\nassert f([a, a, A()]) == 2"),
        ("def f(x):\n    raise ValueError('no')", "try:\n    f(1)\nexcept ValueError as e:\n    assert str(e) == 'no'"),
        ("import math\nE = 3\ndef f():\n    return g()\ndef g():\n    return math.pi", "assert f() == math.pi > E"),
        ("n = 0\ndef f():\n    global n\n    n += 1", "f()\nf()\nassert n == 2"),
        ("def f(x, kind):\n    return kind(x), kind", "assert f('4', int) == (4, int)\nassert f('4', len) == (1, len)"),
        ("def sum(a, b):\n    return a * b", "assert sum(3, 4) == 12"),
        ("import re\ndef f(x):\n    return re.match('a', x)", "assert f('ab')\nassert not f('b')"),
    ],
)  # fmt: skip
def test_what_tests_do_with_an_answer_works_across_processes(code: str, test: str) -> None:
    assert reason(code, test) == "passed"


EQUAL = "class A(BASE):\n    def __eq__(self, other):\n        return True\ndef f(x):\n    return A()"
ZERO = "def f(x):\n    return 0\n"
FORGED = {
    "an object that equals everything": EQUAL.replace("BASE", "object"),
    "a number that equals everything": EQUAL.replace("BASE", "int"),
    "a list that equals everything": EQUAL.replace("BASE", "list"),
    "an error that ends loops": "def f(x):\n    raise StopIteration",
    "builtins of its own": ZERO + "def set(x):\n    return 0\nall = any = len = sorted = f",
    "builtins for all": ZERO + "import builtins\nbuiltins.AssertionError = builtins.set = lambda *a: 0",
    "names of the tests": ZERO + "wanted = 0\ndef same(a, b):\n    return True",
}
HONEST = "def f(x):\n    return x + 41"
WAYS = [
    "assert f(1) == 42",
    "assert 42 == f(1)",
    "assert set([f(1)]) == set([42])",
    "assert all(map(lambda x: f(x) == x + 41, [1, 2]))",
    "wanted = 42\ndef same(a, b):\n    return a == b\nassert same(f(1), wanted)",
    "def check(candidate):\n    assert candidate(1) in (42, 43)\ncheck(f)",
]


@pytest.mark.parametrize("code", FORGED.values(), ids=FORGED)
def test_a_forged_answer_fails_whichever_way_the_tests_compare(code: str) -> None:
    jobs = [(program, [way]) for way in WAYS for program in (code, HONEST)]
    assert [result.passed for result in sandbox.run_many(jobs)] == [False, True] * len(WAYS)


def test_expected_values_are_nowhere_in_the_answers_process() -> None:
    search = """
import gc, sys
def seen(value):
    frame, things, known = sys._getframe(), [], set()
    while frame:
        things += [frame.f_locals, frame.f_globals, frame.f_code]
        frame = frame.f_back
    things += gc.get_objects()
    for thing in things:
        if id(thing) not in known:
            known.add(id(thing))
            things += gc.get_referents(thing)
            if isinstance(thing, (str, bytes)) and (value if isinstance(thing, str) else value.encode()) in thing[::-1]:
                return True
    return False
"""
    assert reason(search, "assert seen('neddih') and 'hidden'").startswith("failed: AssertionError")
    # The search does find what is there.
    assert reason(search + "there = 'hidden'", "assert seen('neddih') and 'hidden'") == "passed"


@pytest.mark.parametrize(
    "noise",
    [
        b"2\n",
        b"[null, true]\n",
        b"\xff\xff\xff\xff\n",
        b"[]\n",
        b"\n",
        b"x" * 9,
        b'[["x", 1], null]\n',
        b'[null, ["module", "__main__"]]\n',
        b'[null, ["foreign", {}]]\n',
    ],
)
def test_an_answer_that_speaks_for_itself_does_not_pass(noise: bytes) -> None:
    write = f"for end in range(3, 32):\n        with suppress(OSError):\n            os.write(end, {noise!r})"
    speak = f"import os\nfrom contextlib import suppress\ndef f(x):\n    {write}\n    return 0"
    assert not sandbox.run_tests(speak, ["assert f(1) == 42"], timeout_s=2.0).passed


def test_large_and_deep_values_cross_in_time() -> None:
    assert reason("def f(n):\n    return 'a' * n", "assert len(f(40 * 2**20)) == 40 * 2**20") == "passed"
    nest = "value = {}\n    for n in range(300):\n        value = {n: value}\n    return value"
    unnest = "value, depth = f(), 0\nwhile value:\n    (value,), depth = value.values(), depth + 1\nassert depth == 300"
    assert reason(f"def f():\n    {nest}", unnest) == "passed"


ODD_TEXT = "class Odd(str):\n    def __getitem__(self, key):\n        return object()\n"
ODD_ERRORS = {
    "text": "class E(Exception):\n    def __str__(self):\n        return Odd('no')\n",
    "no text": "class E(Exception):\n    def __str__(self):\n        return 1\n",
    "name": "class Meta(type):\n    __name__ = Odd('E')\nclass E(Exception, metaclass=Meta):\n    pass\n",
    "no name": "class Meta(type):\n    __name__ = object()\nclass E(Exception, metaclass=Meta):\n    pass\n",
}


@pytest.mark.parametrize("error", ODD_ERRORS.values(), ids=ODD_ERRORS)
def test_an_error_whose_words_are_code_can_be_caught_by_a_test(error: str) -> None:
    caught = "try:\n    f()\nexcept Exception:\n    pass\nelse:\n    assert False"
    assert reason(ODD_TEXT + error + "def f():\n    raise E('no')", caught) == "passed"


def test_what_cannot_cross_is_named() -> None:
    assert "function, which cannot cross" in reason("def f(x):\n    return 1", "assert f(lambda: 1) == 1")
