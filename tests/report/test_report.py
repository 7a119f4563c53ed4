"""From run folders to tables: formulas by independent computation, and what may stand beside what."""

import json
from dataclasses import replace

import numpy as np
import pytest
from synthetic_runs import aup_of, cell_of, describe, row_of, rows_of, write

from unmask import policies
from unmask.errors import UnmaskError
from unmask.report import paper, report
from unmask.report.build import read_runs
from unmask.report.measured import wilson


def table_of(made, start):
    return next(table for table in made.tables if table.name.startswith(start))


@pytest.fixture
def small(tmp_path):
    """A main run: a baseline, a better and faster policy, and one that is not finished."""
    run = tmp_path / "small"
    describe(run, "main", "a coarse look")
    write(run, cell_of("entropy"), passes=128.0, right=[i % 4 != 0 for i in range(40)])
    write(run, cell_of(), passes=[8 + i % 5 for i in range(40)], right=[i % 5 != 0 for i in range(40)])
    write(run, cell_of("threshold", threshold=0.9), passes=6.0, right=[True] * 40, done=10)
    return run


def test_metrics_are_ratios_of_sums_on_all_items(small):
    run = read_runs([small])[0]
    cell = next(cell for cell in run.cells if cell.policy == "mean_field")
    passes = np.array([8 + i % 5 for i in range(40)])
    tokens = np.array([60 + i % 3 for i in range(40)])
    seconds = passes * 0.01 + passes * 0.001 + 0.002
    assert cell.accuracy().value == pytest.approx(80.0)
    assert cell.accuracy().interval == pytest.approx([100 * end for end in wilson(32, 40)])
    assert cell.passes().value == pytest.approx(passes.mean())
    assert cell.ratio("reference", "seconds").value == pytest.approx(tokens.sum() / seconds.sum())
    assert cell.ratio("answer", "seconds").value == pytest.approx(40 * 58 / seconds.sum())
    assert cell.ratio("reference", "passes").value == pytest.approx(tokens.sum() / passes.sum())
    assert cell.ratio("answer", "passes").value == pytest.approx(40 * 58 / passes.sum())
    low, high = cell.ratio("reference", "seconds").interval
    assert low < cell.ratio("reference", "seconds").value < high


def test_the_main_table_compares_with_the_baseline_of_the_run(small):
    table = table_of(report([small]), "main-tiny-sudoku")
    base, ours = row_of(table, "entropy"), row_of(table, "mean_field")
    assert base["speedup"].text == "1.00×"
    assert ours["speedup"].value == pytest.approx(ours["tokens_per_second"].value / base["tokens_per_second"].value)
    right, wrong = {i for i in range(40) if i % 5}, {i for i in range(40) if i % 4}
    assert ours["won_lost"].text == f"{len(right - wrong)} : {len(wrong - right)}"
    assert any("Baseline: entropy, one token a pass." in note for note in table.notes)
    assert any("baseline in the same run" in note for note in table.notes)
    assert "fewer_passes" not in [column.key for column in table.columns]  # the speed-up says it


def test_mean_field_meets_every_finished_rival_on_the_same_items(small):
    table = table_of(report([small]), "main-tiny-sudoku-duels")
    (row,) = rows_of(table)  # threshold is not finished
    ours, theirs = {i for i in range(40) if i % 5}, {i for i in range(40) if i % 4}
    assert row["label"].text == "entropy"
    assert row["won_lost"].text == f"{len(ours - theirs)} : {len(theirs - ours)}"
    assert row["accuracy_difference"].value == pytest.approx(80.0 - 75.0)
    assert row["accuracy_difference"].low < 5.0 < row["accuracy_difference"].high
    assert row["passes_ratio"].value == pytest.approx(10 / 128)
    assert row["p_corrected"].value == row["p"].value


def test_few_items_are_called_coarse(small, tmp_path):
    assert table_of(report([small]), "main").title.endswith("(coarse)")
    write(tmp_path / "big", cell_of(items=100), passes=9.0, right=0.9)
    assert "coarse" not in table_of(report([tmp_path / "big"]), "main").title


@pytest.mark.parametrize(("items", "marked"), [(99, False), (100, True)])
def test_the_best_is_marked_only_where_there_are_items_enough_to_tell(tmp_path, items, marked):
    for task in ("sudoku", "countdown-3"):
        write(tmp_path, cell_of("entropy", items=items, task=task), passes=128.0, right=0.9)
        write(tmp_path, cell_of(items=items, task=task), passes=8.0, right=[True] * items)
    made = report([tmp_path])
    ours = row_of(table_of(made, "main-tiny-sudoku"), "mean_field")
    assert [ours[key].best for key in ("accuracy", "passes", "speedup")] == [marked] * 3
    assert not row_of(table_of(made, "main-tiny-sudoku"), "entropy")["accuracy"].best
    assert row_of(table_of(made, "overview"), "mean_field")["sudoku_accuracy"].best is marked


def test_a_changed_parameter_or_setting_is_never_hidden(tmp_path):
    write(tmp_path, cell_of(threshold=0.5, task="sudoku"), passes=8.0, right=0.9)
    write(tmp_path, cell_of("threshold", threshold=0.9, temperature=0.3), passes=9.0, right=0.9)
    write(tmp_path, cell_of("klass", confidence=0.6, kl=0.015), passes=9.0, right=0.9)
    write(tmp_path, cell_of("elsewhere", strength=3), passes=9.0, right=0.9)
    made = report([tmp_path])
    wanted = ["threshold (temperature=0.3)", "klass", "mean_field (threshold=0.5)", "elsewhere (strength=3)"]
    assert table_of(made, "main-tiny-sudoku-duels").title.endswith(": mean_field (threshold=0.5) against each")
    for table in (table_of(made, "main-tiny-sudoku"), made.details):
        assert [row["label"].text for row in rows_of(table)] == wanted
    assert "mean_field (threshold=0.5)" in made.text("csv")
    assert "mean\\_field (threshold=0.5)" in made.text("latex")


def test_what_counts_as_changed_depends_on_the_model_and_the_task(tmp_path):
    dream = paper_cell("mean_field", "Dream-v0-Instruct-7B", "gsm8k", block_size=20)
    write(tmp_path, dream, passes=50.0, right=0.3)
    write(tmp_path, replace(dream, model="my-own", family="dream"), passes=50.0, right=0.3)
    write(tmp_path, paper_cell("klass", "LLaDA-1.5", "humaneval"), passes=50.0, right=0.3)
    write(tmp_path, paper_cell("klass", "LLaDA-1.5", "mbpp", confidence=0.9), passes=50.0, right=0.3)
    labels = [rows_of(table)[0]["label"].text for table in report([tmp_path]).tables if table.name.startswith("main")]
    assert sorted(set(labels)) == ["klass", "klass (confidence=0.9)", "mean_field"]


def test_a_cell_taken_over_from_another_run_counts_once(tmp_path):
    for run, about in (("mine", {}), ("mine2", {"taken_from": "mine"})):
        describe(tmp_path / run, "main")
        write(tmp_path / run, cell_of("entropy"), passes=128.0, right=0.9, about=about)
        write(tmp_path / run, cell_of(), passes=8.0, right=0.8, about=about)
    write(tmp_path / "mine2", cell_of("threshold", threshold=0.9), passes=9.0, right=0.8)
    made = report([tmp_path / "mine2", tmp_path / "mine"])
    table = table_of(made, "main-tiny-sudoku")
    assert [row["label"].text for row in rows_of(table)] == ["entropy", "threshold", "mean_field"]
    assert row_of(table, "threshold")["speedup"].value > 1  # over the copy in its own run
    assert [row["label"].text for row in rows_of(table_of(made, "main-tiny-sudoku-duels"))] == ["entropy", "threshold"]


def test_a_copy_that_went_on_counts_in_its_longer_form_and_a_second_measurement_stays(tmp_path):
    write(tmp_path / "half", cell_of(), passes=8.0, right=0.8, done=20)
    write(tmp_path / "whole", cell_of(), passes=8.0, right=0.8)
    (row,) = rows_of(table_of(report([tmp_path]), "main-tiny-sudoku"))
    assert "items" not in row  # the title names them
    write(tmp_path / "again", cell_of(), passes=8.0, right=0.8, seconds_per_pass=0.02)
    rows = rows_of(table_of(report([tmp_path]), "main-tiny-sudoku"))
    assert [row["label"].text for row in rows] == ["mean_field (run=again)", "mean_field (run=whole)"]


def test_times_shared_by_a_batch_have_no_interval(tmp_path):
    for size in (1, 4):
        run = tmp_path / str(size)
        describe(run, "main")
        write(run, cell_of("entropy", batch_size=size), passes=128.0, right=0.9)
        write(run, cell_of(batch_size=size), passes=[8 + i % 5 for i in range(40)], right=0.9)
        table = table_of(report([run]), "main-tiny-sudoku")
        row = row_of(table, "mean_field")
        assert row["passes"].low is not None
        assert (row["speedup"].low is None) == (row["tokens_per_second"].low is None) == (size > 1)
        assert any("noise of the clock" in note and "share its time" in note for note in table.notes)


def test_an_unfinished_row_says_so_and_is_never_the_best(small):
    table = table_of(report([small]), "main-tiny-sudoku")
    row = row_of(table, "threshold")
    assert row["items"].text == "10 of 40"
    assert row["accuracy"].value == 100.0
    assert not row["accuracy"].best
    assert not row["passes"].best
    assert row["speedup"].value > 1  # on the ten items that both have


def test_speed_is_not_compared_across_batch_sizes_but_answers_are(tmp_path):
    write(tmp_path, cell_of("entropy", batch_size=1), passes=128.0, right=0.9)
    write(tmp_path, cell_of(batch_size=32), passes=9.0, right=0.8)
    made = report([tmp_path])
    table = table_of(made, "main-tiny-sudoku")
    row = row_of(table, "mean_field")
    assert row["speedup"].value is None
    assert row["p"].value is not None
    assert not any(line["tokens_per_second"].best for line in rows_of(table))
    assert any("not comparable" in note for note in table.notes)
    cell = next(cell for cell in made.to_dict()["cells"] if cell["cell"]["policy"]["name"] == "mean_field")
    assert cell["baseline"].startswith("tiny-sudoku-entropy")
    assert cell["speedup_reference"] is cell["speedup_answer"] is None


def test_speed_is_not_compared_across_runs_but_answers_and_passes_are(tmp_path):
    describe(tmp_path / "a", "main")
    describe(tmp_path / "b", "main")
    write(tmp_path / "a", cell_of("entropy"), passes=128.0, right=0.9)
    write(tmp_path / "b", cell_of(), passes=9.0, right=0.8)
    row = row_of(table_of(report([tmp_path]), "main-tiny-sudoku"), "mean_field")
    assert row["speedup"].value is None
    assert row["p"].value is not None
    assert row["fewer_passes"].value == pytest.approx(128 / 9)
    write(tmp_path / "c", cell_of("fixed"), passes=128.0, right=0.9, about={"weights": "others"})
    lone = rows_of(table_of(report([tmp_path / "b", tmp_path / "c"]), "main-tiny-sudoku"))
    assert [row["label"].text for row in lone] == ["mean_field"]  # other weights are another table
    assert "p" not in lone[0]


def paper_cell(policy, model, task, block_size=32, batch_size=1, **parameters):
    """A cell as `unmask eval` would write it for a real checkpoint."""
    chosen = policies.describe(policies.preset(policy, model, task)) | parameters
    base = cell_of(model=f"GSAI-ML/{model}", task=task, max_tokens=256, block_size=block_size, batch_size=batch_size)
    return replace(base, policy=chosen, paper=True)


def test_the_paper_stands_beside_its_own_cells_only(tmp_path):
    model = "LLaDA-8B-Instruct"
    write(tmp_path, paper_cell("entropy", model, "mbpp"), passes=256.0, right=0.3)
    write(tmp_path, paper_cell("mean_field", model, "mbpp", block_size=20), passes=50.0, right=0.3)
    write(tmp_path, paper_cell("mean_field", model, "mbpp", block_size=20, threshold=0.5), passes=40.0, right=0.2)
    write(tmp_path, paper_cell("threshold", model, "mbpp"), passes=60.0, right=0.3)
    table = table_of(report([tmp_path]), "main-llada-8b-instruct-mbpp")
    row = row_of(table, "mean_field (threshold=0.85")
    assert row["paper_accuracy"].text == "28.00"
    assert row["paper_tokens_per_second"].text == "81.11"
    assert (row["paper_speedup"].text, row["printed_speedup"].text) == ("5.16×", "(6.10×)")
    assert "paper_accuracy" not in row_of(table, "mean_field (threshold=0.5")
    assert "paper_accuracy" not in row_of(table, "threshold")


def test_speed_of_a_larger_batch_never_stands_beside_the_papers(tmp_path):
    write(tmp_path, paper_cell("entropy", "LLaDA-1.5", "gsm8k", batch_size=8), passes=256.0, right=0.8)
    row = row_of(table_of(report([tmp_path]), "main-llada"), "entropy")
    assert row["paper_accuracy"].value == 81.80
    assert "paper_tokens_per_second" not in row
    assert "paper_speedup" not in row


def test_tiny_never_has_a_paper_column(small):
    table = table_of(report([small]), "main-tiny-sudoku")
    assert not [column.key for column in table.columns if column.key.startswith("paper")]


def test_the_ablation_names_its_variants_in_the_papers_order(tmp_path):
    dream, task = "Dream-v0-Instruct-7B", "gsm8k"
    describe(tmp_path, "ablation")
    write(tmp_path, paper_cell("entropy", dream, task), passes=256.0, right=0.7)
    for extra in ({"interaction": "none"}, {"interaction": "uniform"}, {"iterations": 1}, {}):
        write(tmp_path, paper_cell("mean_field", dream, task, threshold=0.9, **extra), passes=50.0, right=0.7)
    table = table_of(report([tmp_path]), "ablation")
    assert [row["label"].text for row in rows_of(table)] == [
        "entropy: one token a pass",
        "no pairwise interaction",
        "uniform interaction matrix",
        "one-shot update, R = 1",
        "mean-field",
    ]
    assert [row["paper_passes"].value for row in rows_of(table)] == [256.0, 48.7, 52.6, 140.0, 54.3]
    assert [row["paper_accuracy"].value for row in rows_of(table)] == [75.51, 72.40, 71.95, 54.51, 73.24]


def test_the_sensitivity_table_turns_one_knob_at_a_time(tmp_path):
    dream, task = "Dream-v0-Instruct-7B", "gsm8k"
    describe(tmp_path, "sensitivity")
    write(tmp_path, paper_cell("entropy", dream, task), passes=256.0, right=0.7)
    for threshold, iterations in ((0.75, 2), (0.9, 2), (0.95, 2), (0.95, 4), (0.95, 8)):
        cell = paper_cell("mean_field", dream, task, block_size=20, threshold=threshold, iterations=iterations)
        write(tmp_path, cell, passes=50.0, right=0.7)
    table = table_of(report([tmp_path]), "sensitivity")
    labels = [row["label"].text for row in rows_of(table)]
    assert labels[1:] == ["τ = 0.75", "τ = 0.9", "τ = 0.95", "R = 2", "R = 4", "R = 8"]
    assert list(table.sections) == [1, 4]
    assert [row["paper_passes"].value for row in rows_of(table)] == [256.0, 47.8, 64.1, 74.1, 74.1, 76.2, 78.2]


def test_aup_of_a_run_is_that_of_its_points(tmp_path):
    describe(tmp_path, "curves")
    points = {}
    for threshold, passes, right in ((0.95, 20, 0.9), (0.8, 10, 0.875), (0.5, 4, 0.5)):
        answers = [i < 40 * right for i in range(40)]
        write(tmp_path, cell_of(threshold=threshold), passes=float(passes), right=answers)
        points[threshold] = (58 / passes, 100 * right)
    write(tmp_path, cell_of("fixed"), passes=128.0, right=[i < 38 for i in range(40)])
    table = table_of(report([tmp_path]), "aup")
    area, dropped = aup_of(list(points.values()), 95.0)
    entry = row_of(table, "mean_field")["sudoku_aup"]
    assert entry.value == pytest.approx(area)
    assert entry.low <= entry.value <= entry.high
    assert dropped == [2]
    points_table = table_of(report([tmp_path]), "curves")
    left_out = [row["label"].text for row in rows_of(points_table) if "aup" in row]
    assert left_out == ["mean_field (threshold=0.5)"]
    assert row_of(table, "fixed")["sudoku_aup"].value == pytest.approx(58 / 128 * 95.0)


def test_block_sizes_are_a_table_of_their_own(tmp_path):
    describe(tmp_path, "blocks")
    for size in (32, 8, 16):
        write(tmp_path, cell_of(block_size=size), passes=100.0 / size, right=0.9)
    table = table_of(report([tmp_path]), "blocks")
    assert [row["block_size"].value for row in rows_of(table)] == [8, 16, 32]
    assert "block_size" in [column.key for column in table.columns]


def test_other_readings_of_an_answer_have_their_columns(tmp_path):
    cell = replace(cell_of("entropy"), headline="correct")
    write(tmp_path, cell, passes=128.0, right=0.9, extra_scores={"strict": 0.0})
    table = table_of(report([tmp_path]), "main")
    assert rows_of(table)[0]["accuracy_of_strict"].value == 0.0
    assert any("Accuracy is correct" in note for note in table.notes)


def test_a_folder_of_runs_stands_for_its_runs(tmp_path, small):
    made = report([tmp_path])
    assert [run.name for run in made.runs] == ["small"]
    assert rows_of(made.tables[-1])[0]["title"].text == "a coarse look"


def test_wrong_folders_are_one_clear_line(tmp_path):
    with pytest.raises(UnmaskError, match="not a folder"):
        report([tmp_path / "nowhere"])
    with pytest.raises(UnmaskError, match="no folder 'cells'"):
        report([tmp_path])
    (tmp_path / "empty" / "cells").mkdir(parents=True)
    with pytest.raises(UnmaskError, match="no finished items yet"):
        report([tmp_path / "empty"])
    describe(tmp_path / "odd", "mainn")
    write(tmp_path / "odd", cell_of(), passes=3.0, right=0.5)
    with pytest.raises(UnmaskError, match="did you mean 'main'"):
        report([tmp_path / "odd"])
    (next((tmp_path / "odd" / "cells").iterdir()) / "cell.json").write_text("{")
    with pytest.raises(UnmaskError, match=r"cell\.json is damaged"):
        report([tmp_path / "odd"])
    write(tmp_path / "unscored", replace(cell_of(), headline="exact_match"), passes=3.0, right=0.5)
    with pytest.raises(UnmaskError, match="without the score 'exact_match'"):
        report([tmp_path / "unscored"])


def test_scores_between_right_and_wrong_are_resampled_and_not_tested(tmp_path):
    write(tmp_path, replace(cell_of("entropy"), headline="f1"), passes=128.0, right=0.9, extra_scores={"f1": 0.5})
    write(tmp_path, replace(cell_of(), headline="f1"), passes=9.0, right=0.9, extra_scores={"f1": 0.25})
    row = row_of(table_of(report([tmp_path]), "main"), "mean_field")
    assert row["accuracy"].value == 25.0
    assert "p" not in row


def test_a_choice_between_given_answers_has_no_speed(tmp_path):
    folder = write(tmp_path, cell_of("entropy", items=2), passes=2.0, right=[True, False], tokens=0)
    lines = folder.folder / "items.jsonl"
    rows = [json.loads(line) | {"tokens_reference": 0, "tokens_answer": 0} for line in lines.read_text().splitlines()]
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table = table_of(report([tmp_path]), "main")
    assert "tokens_per_second" not in [column.key for column in table.columns]
    assert rows_of(table)[0]["accuracy"].value == 50.0


def test_a_cell_without_a_finished_item_is_an_empty_row(tmp_path):
    write(tmp_path, cell_of("entropy"), passes=128.0, right=0.9)
    write(tmp_path, cell_of(), passes=9.0, right=0.9, done=0)
    row = row_of(table_of(report([tmp_path]), "main"), "mean_field")
    assert row["items"].text == "0 of 40"
    assert row["accuracy"].text == row["passes"].text == "–"


def test_every_value_of_the_papers_tables_is_there():
    values = paper.values()
    entries = [entry for model in values["main"].values() for tasks in model.values() for entry in tasks.values()]
    assert len(entries) == 3 * 5 * 4 - 1
    speedups = []
    for model in values["main"].values():
        for task, (_, speed, printed) in model["mean_field"].items():
            speedups.append((speed / model["entropy"][task][1], printed))
    assert np.mean([printed for _, printed in speedups]) == pytest.approx(5.12, abs=0.005)
    assert np.mean([ratio for ratio, _ in speedups]) == pytest.approx(4.94, abs=0.005)
    assert min(ratio for ratio, _ in speedups) == pytest.approx(2.64, abs=0.005)
    assert [len(values[study]["rows"]) for study in ("ablation", "sensitivity")] == [4, 9]
    for _, _, speed, _, passes in values["ablation"]["rows"] + values["sensitivity"]["rows"]:
        assert 2650 < speed * passes < 2900  # nearly constant


def test_json_holds_every_number_unrounded(small):
    plain = json.loads(report([small]).text("json"))
    assert plain["schema"] == "unmask.report/1"
    cell = next(cell for cell in plain["cells"] if cell["cell"]["policy"]["name"] == "mean_field")
    assert cell["accuracy"]["correct"]["value"] == pytest.approx(80.0)
    assert set(cell["seconds"]) == {"model", "policy", "rest"}
    assert cell["paired"]["p"] <= 1
    assert cell["speedup_answer"]["low"] <= cell["speedup_answer"]["value"]
    assert {"tokens_per_pass_reference", "tokens_per_second_answer", "truncated"} <= set(cell)
