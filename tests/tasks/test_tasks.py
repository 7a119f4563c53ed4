"""The contract of every task of the tiny suite: seeded, checkable, split by content, robust against any text."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask import tasks
from unmask.errors import UnknownName, UnmaskError
from unmask.tasks.base import side

NAMES = ["code_gaps", "countdown", "list_functions", "number_gaps", "sudoku", "word_problems"]


def test_the_suite_has_its_six_tasks():
    assert tasks.names() == NAMES


def test_an_unknown_task_is_named_with_a_near_match():
    with pytest.raises(UnknownName, match="did you mean 'sudoku'"):
        tasks.get("sudoko")


@pytest.mark.parametrize("name", NAMES)
def test_a_seed_gives_the_same_different_items_for_ever(name):
    task = tasks.get(name)
    items = task.generate(3, 40)
    assert items == task.generate(3, 40)
    assert items != task.generate(4, 40)
    assert len({item.prompt for item in items}) == 40


@pytest.mark.parametrize("name", NAMES)
def test_more_items_of_a_seed_begin_with_the_fewer(name):
    task = tasks.get(name)
    assert task.generate(3, 30)[:10] == task.generate(3, 10)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("split", ["train", "test"])
def test_every_reference_answer_is_accepted(name, split):
    task = tasks.get(name)
    items = task.generate(5, 60, split)
    assert all(task.check_many(items, [item.answer for item in items]))
    assert task.check(items[0], items[0].answer)


@pytest.mark.parametrize("name", NAMES)
def test_answers_to_other_items_are_refused(name):
    task = tasks.get(name)
    items = task.generate(6, 60)
    others = [item.answer for item in items[1:] + items[:1]]
    assert sum(task.check_many(items, others)) <= 3  # two word problems may happen to have the same result


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_train_and_test_share_no_prompt(name):
    task = tasks.get(name)
    train = {item.prompt for item in task.generate(0, 600, "train")}
    assert not train & {item.prompt for item in task.generate(0, 200, "test")}


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_split_is_refused(name):
    with pytest.raises(UnknownName, match="split"):
        tasks.get(name).generate(0, 1, "validation")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["countdown", "sudoku", "word_problems"])
@given(text=st.text(max_size=120))
@settings(max_examples=60, deadline=None)
def test_no_text_makes_a_checker_raise(name, text):
    task = tasks.get(name)
    assert task.check(task.generate(0, 1)[0], text) is False


def test_about_an_eighth_of_all_content_is_test():
    share = sum(side(f"content {number}") == "test" for number in range(4000)) / 4000
    assert 0.10 < share < 0.15


def test_countdown_takes_only_the_counts_it_knows():
    with pytest.raises(UnmaskError, match="numbers must be"):
        tasks.get("countdown", numbers=7)
