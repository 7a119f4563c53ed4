"""The paper's claims, on made-up runs in which they hold and in which they do not."""

import pytest
from synthetic_runs import cell_of, rows_of, write

from unmask.report import report
from unmask.report.build import read_runs
from unmask.report.paper import CLAIMS, FAILS, HOLDS, OPEN, SLOWLY, UNKNOWN, checks, claims_table

FALLS, RISES, TWICE, NONE, UNIFORM, ONE_SHOT, BASELINE, LENGTH, BLOCKS = CLAIMS


def check(run, claim):
    (found,) = [found for found in checks(read_runs([run])[0].cells) if found.claim == claim]
    return found


def write_all(run, passes, **cells):
    """One cell a keyword; its passes vary a little from item to item."""
    for name, changes in cells.items():
        mean = passes[name]
        write(run, cell_of(**changes), passes=[mean - 1, mean, mean, mean + 1] * 10, right=0.9)


def test_passes_that_fall_with_the_threshold(tmp_path):
    for threshold, passes in ((0.7, 10), (0.8, 12), (0.95, 20)):
        write_all(tmp_path, {"x": passes}, x={"threshold": threshold})
    found = check(tmp_path, FALLS)
    assert (found.verdict, found.against) == (HOLDS, "")
    assert list(found.differences) == ["τ = 0.7 → τ = 0.8", "τ = 0.8 → τ = 0.95"]
    assert found.values.startswith("τ = 0.7: 10.00 [9.7")
    assert "τ = 0.8: 12.00 [11.7" in found.values


def test_equal_passes_do_not_fall(tmp_path):
    for threshold in (0.7, 0.8):
        write_all(tmp_path, {"x": 10}, x={"threshold": threshold})
    found = check(tmp_path, FALLS)
    assert (found.verdict, found.against) == (FAILS, "τ = 0.7 → τ = 0.8: 0.00")


def test_a_difference_within_chance_is_undecided_and_is_shown(tmp_path):
    write(tmp_path, cell_of(threshold=0.8), passes=[10, 14] * 20, right=0.9)
    write(tmp_path, cell_of(threshold=0.9), passes=[14, 11] + [14, 10] * 19, right=0.9)
    found = check(tmp_path, FALLS)
    assert found.verdict == OPEN
    assert found.differences["τ = 0.8 → τ = 0.9"].value == pytest.approx(1 / 40)
    (row,) = rows_of(claims_table([found]))
    assert row["place"].text == "tiny, sudoku, block 32"
    assert row["verdict"].text == OPEN
    assert row["against"].text.startswith("τ = 0.8 → τ = 0.9: 0.03 [−")


def test_a_difference_the_other_way_is_undecided_too_while_within_chance(tmp_path):
    write(tmp_path, cell_of(threshold=0.8), passes=[14, 11] + [14, 10] * 19, right=0.9)
    write(tmp_path, cell_of(threshold=0.9), passes=[10, 14] * 20, right=0.9)
    found = check(tmp_path, FALLS)
    assert found.verdict == OPEN
    assert found.against.startswith("τ = 0.8 → τ = 0.9: −0.03 [")


def test_one_item_decides_nothing(tmp_path):
    for threshold, passes in ((0.8, 10), (0.9, 20)):
        write(tmp_path, cell_of(threshold=threshold, items=1), passes=[passes], right=[True])
    found = check(tmp_path, FALLS)
    assert (found.verdict, found.against) == (OPEN, "τ = 0.8 → τ = 0.9: 10.00")


@pytest.mark.parametrize(
    ("last", "verdict"), [(21, HOLDS), (20, FAILS), (19, FAILS), (22, FAILS), (20 * (1 + SLOWLY / 100) - 0.5, HOLDS)]
)
def test_passes_must_rise_with_updates_but_slowly(tmp_path, last, verdict):
    write(tmp_path, cell_of(iterations=2), passes=[20] * 40, right=0.9)
    write(tmp_path, cell_of(iterations=4), passes=[int(last), int(last + 0.5)] * 20, right=0.9)
    write(tmp_path, cell_of(iterations=3), passes=[90] * 40, right=0.9)  # odd: not part of the claim
    assert check(tmp_path, RISES).verdict == verdict


@pytest.mark.parametrize(("one", "verdict"), [(41, HOLDS), (40, FAILS), (39, FAILS)])
def test_one_update_must_cost_more_than_twice(tmp_path, one, verdict):
    write(tmp_path, cell_of(iterations=1), passes=[one] * 40, right=0.9)
    write(tmp_path, cell_of(), passes=[20] * 40, right=0.9)
    found = check(tmp_path, TWICE)
    assert found.verdict == verdict
    assert [difference.value for difference in found.differences.values()] == [one - 40]


def test_the_order_of_the_variants(tmp_path):
    cells = {
        "none": {"interaction": "none"},
        "uniform": {"interaction": "uniform"},
        "full": {},
        "one": {"iterations": 1},
        "base": {"policy": "entropy"},
    }
    write_all(tmp_path / "a", {"none": 8, "uniform": 10, "full": 9, "one": 30, "base": 128}, **cells)
    verdicts = {claim: check(tmp_path / "a", claim).verdict for claim in (NONE, UNIFORM, ONE_SHOT, BASELINE)}
    assert verdicts == {NONE: HOLDS, UNIFORM: FAILS, ONE_SHOT: HOLDS, BASELINE: HOLDS}
    assert check(tmp_path / "a", UNIFORM).place == "tiny, sudoku, τ = 0.85, block 32"


def test_entropy_takes_exactly_one_pass_a_token(tmp_path):
    write(tmp_path / "a", cell_of("entropy"), passes=[128] * 40, right=0.9)
    write(tmp_path / "b", cell_of("entropy"), passes=[128] * 39 + [127], right=0.9)
    assert check(tmp_path / "a", LENGTH).verdict == HOLDS
    assert check(tmp_path / "b", LENGTH).verdict == FAILS


def test_larger_blocks(tmp_path):
    for size, passes in ((8, 20), (16, 12), (32, 13)):
        write_all(tmp_path, {"x": passes}, x={"block_size": size})
    found = check(tmp_path, BLOCKS)
    assert found.verdict == FAILS
    assert found.against.startswith("block 32 → block 16: −1.00")


def test_a_block_beyond_the_answer_is_no_larger_block(tmp_path):
    for size in (64, 128, 256):
        write_all(tmp_path, {"x": 20 if size == 64 else 12}, x={"block_size": size})
    found = check(tmp_path, BLOCKS)
    assert found.verdict == HOLDS
    assert list(found.differences) == ["block 128 → block 64"]


def test_the_table_has_a_row_for_each_place_with_what_speaks_against_the_claim(tmp_path):
    for task, passes in (("sudoku", 12), ("countdown-3", 9)):
        for threshold, mean in ((0.8, 10), (0.9, passes)):
            write_all(tmp_path, {"x": mean}, x={"task": task, "threshold": threshold})
    table = claims_table(checks(read_runs([tmp_path])[0].cells))
    rows = {row["place"].text: row for row in rows_of(table) if row["claim"].text == FALLS}
    sudoku, countdown = rows["tiny, sudoku, block 32"], rows["tiny, countdown-3, block 32"]
    assert sudoku["verdict"].text == HOLDS
    assert "against" not in sudoku
    assert countdown["verdict"].text == FAILS
    assert countdown["against"].text.startswith("τ = 0.8 → τ = 0.9: −1.00")


def test_what_was_not_run_is_not_measured(tmp_path):
    write(tmp_path, cell_of("threshold", threshold=0.9), passes=9.0, right=0.9)
    found = checks(read_runs([tmp_path])[0].cells)
    assert [one.verdict for one in found] == [UNKNOWN] * len(CLAIMS)
    assert claims_table(found).rows == []
    assert not [table for table in report([tmp_path]).tables if table.name == "claims"]


def test_claims_that_were_not_measured_are_counted_not_listed(tmp_path):
    write(tmp_path, cell_of("entropy"), passes=[128] * 40, right=0.9)
    table = claims_table(checks(read_runs([tmp_path])[0].cells))
    assert [row["claim"].text for row in rows_of(table)] == [LENGTH]
    assert f"{len(CLAIMS) - 1} of the paper's {len(CLAIMS)} claims were not measured" in table.notes[-1]


def test_unfinished_cells_prove_nothing(tmp_path):
    write(tmp_path, cell_of(threshold=0.8), passes=10.0, right=0.9, done=20)
    write(tmp_path, cell_of(threshold=0.9), passes=12.0, right=0.9)
    assert check(tmp_path, FALLS).verdict == UNKNOWN
