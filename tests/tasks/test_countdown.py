import re

import pytest

from unmask.tasks.base import Item
from unmask.tasks.countdown import Countdown

ITEM = Item(prompt="Countdown: 86,28,13,31,96", answer="86+28=114,31-13=18,114-18=96")


@pytest.mark.parametrize(
    "text",
    [
        "86+28=114,31-13=18,114-18=96",
        "86+28=114,114+13=127,127-31=96",
        " 28+86=114,114+13=127,127-31=96\n",
    ],
)
def test_any_correct_solution_counts(text):
    assert Countdown().check(ITEM, text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("86+28=114,31-13=18,114-18=97", "false equation"),
        ("86+28=114,31-13=17,114-18=96", "false step on the way"),
        ("86+28=114,114-18=96", "numbers left over"),
        ("86+28=114,31-13=18,114-28=86", "a number used twice, another target"),
        ("86+10=96", "a number that was not given"),
        ("86+28=114,31-13=18,114-18=96,96-96=0", "one step too many"),
        ("13-31=-18,86+28=114,114-18=96", "negative on the way"),
        ("86+28=114;31-13=18;114-18=96", "another form"),
        ("86+28=114,31-13=18,114-18=" + "9" * 9999, "a number that int() refuses"),
        ("", "nothing"),
    ],
)
def test_anything_else_is_refused(text, why):
    assert not Countdown().check(ITEM, text), why


def test_division_must_be_exact():
    item = Item(prompt="Countdown: 7,2,3", answer="")
    assert not Countdown().check(item, "7/2=3")
    assert Countdown().check(Item(prompt="Countdown: 6,2,3", answer=""), "6/2=3")
    assert not Countdown().check(Item(prompt="Countdown: 6,0,6", answer=""), "6/0=6")


@pytest.mark.parametrize("numbers", [2, 3, 4])
def test_items_stay_in_the_documented_ranges(numbers):
    for item in Countdown(numbers=numbers).generate(2, 200):
        *given, target = map(int, item.prompt.removeprefix("Countdown: ").split(","))
        assert len(given) == numbers
        assert all(1 <= number <= 99 for number in given)
        assert 1 <= target <= 100
        assert all(int(result) > 0 for result in re.findall(r"=(\d+)", item.answer))


def test_three_and_four_numbers_come_in_like_shares():
    kinds = [item.kind for item in Countdown().generate(0, 400)]
    assert set(kinds) == {"3", "4"}
    assert 120 < kinds.count("3") < 280


def test_the_first_term_of_a_reference_is_drawn():
    items = Countdown().generate(1, 200)
    firsts = [item.prompt.removeprefix("Countdown: ").split(",")[0] for item in items]
    begins = sum(item.answer.startswith((f"{first}+", f"{first}*")) for item, first in zip(items, firsts, strict=True))
    sums = sum(bool(re.match(r"\d+[+*]", item.answer)) for item in items)
    assert 0.15 * sums < begins < 0.6 * sums
