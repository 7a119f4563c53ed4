"""Answers with gaps: what is missing, and how a model is asked to fill it."""

import pytest

import unmask
from unmask import tasks
from unmask.evals.cell import Cell
from unmask.evals.executor import Batch, answer
from unmask.evals.tiny_suite import TinyTask, describe_tiny
from unmask.policies import get
from unmask.settings import Settings


def test_every_number_of_a_worked_answer_is_missing():
    for item in tasks.get("number_gaps").generate(0, 30):
        missing = "".join(item.answer[start:end] for start, end in item.gaps).replace(",", "")
        assert missing == "".join(letter for letter in item.answer if letter.isdigit())


def test_half_of_the_words_of_a_program_are_missing():
    for item in tasks.get("code_gaps").generate(0, 30):
        assert item.gaps == tuple(sorted(item.gaps))
        assert 0.2 < sum(end - start for start, end in item.gaps) / len(item.answer.replace(" ", "")) < 0.8


def test_items_differ_from_those_of_the_task_they_are_made_of():
    assert not {i.prompt for i in tasks.get("number_gaps").generate(0, 50)} & {
        i.prompt for i in tasks.get("word_problems").generate(0, 50)
    }


@pytest.fixture(scope="module")
def tiny():
    return unmask.load("tiny")


@pytest.mark.parametrize("name", ["number_gaps", "code_gaps"])
def test_the_model_sees_masks_where_something_is_missing_and_fills_them(tiny, name):
    cell = Cell(model="tiny", family="llada", policy={"name": "joint"}, settings={}, task=name, items=4)
    task = TinyTask(cell, tiny)
    settings = Settings(
        **describe_tiny(name, unmask.evals.cell.ModelInfo(family="", preset="", dtype="", device=""))["settings"]
    )
    for question, item in zip(task.questions, task._items, strict=True):
        shown = tiny.codec.decode(question.prompts[0][question.filled_from : -1], special=True)
        masked = question.prompts[0].count(tiny.spec.mask_id)
        assert 0 < masked < len(question.prompts[0]) - question.filled_from
        kept = shown.split("<|mdm_mask|>")
        assert all(part.strip() in item.answer for part in kept)
    batch = Batch(questions=tuple(task.questions), policy=get("joint"), settings=settings, batch_size=4)
    rows = answer(tiny, batch)
    assert sum(score["correct"] for score in task.score(rows).values()) >= 3
    assert all(row.passes < 32 for row in rows)
