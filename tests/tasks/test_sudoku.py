import pytest

from unmask.tasks.sudoku import Sudoku, relabelled

ITEM = Sudoku().generate(1, 1)[0]


def test_prompt_and_answer_have_the_documented_form():
    givens = ITEM.prompt.removeprefix("Sudoku: ")
    assert len(givens) == len(ITEM.answer) == 81
    assert set(ITEM.answer) == set("123456789")
    assert 40 <= givens.count("0") <= 55
    assert all(given in ("0", digit) for given, digit in zip(givens, ITEM.answer, strict=True))


@pytest.mark.parametrize("cell", [0, 40, 80])
def test_one_wrong_cell_is_refused(cell):
    digit = "1" if ITEM.answer[cell] != "1" else "2"
    assert not Sudoku().check(ITEM, ITEM.answer[:cell] + digit + ITEM.answer[cell + 1 :])


def test_a_valid_board_that_changes_a_given_is_refused():
    swapped = ITEM.answer.translate(str.maketrans("12", "21"))
    assert not Sudoku().check(ITEM, swapped)


def test_a_board_drawn_over_several_lines_counts():
    lines = "\n".join(ITEM.answer[row : row + 9] for row in range(0, 81, 9))
    assert Sudoku().check(ITEM, lines)


def test_any_completion_that_keeps_the_givens_counts():
    # Two digits that occur only in holes can trade places: another solution of the same board.
    answer = ITEM.answer
    board = "".join("0" if digit in "12" else digit for digit in answer)
    item = type(ITEM)(prompt="Sudoku: " + board, answer=answer)
    assert Sudoku().check(item, answer.translate(str.maketrans("12", "21")))


def test_renaming_digits_does_not_change_the_content_that_decides_the_split():
    board = [int(digit) for digit in ITEM.answer]
    renamed = [digit % 9 + 1 for digit in board]
    assert relabelled(board) == relabelled(renamed)
