"""Curves of several runs, response lengths, speed for its own sake, and what is left where a device was shared."""

import json

import numpy as np
import pytest
from synthetic_runs import aup_of, cell_of, describe, rows_of, write

from unmask import terminal
from unmask.report import report
from unmask.report.build import read_runs
from unmask.report.studies import summary_table


def table_of(made, start):
    return next(table for table in made.tables if table.name.startswith(start))


def keys(table):
    return [column.key for column in table.columns]


def shared_run(run):
    describe(run, "main")
    write(run, cell_of("entropy"), passes=128.0, right=0.9, about={"shared": True})
    write(run, cell_of(), passes=8.0, right=0.8, about={"shared": True})


def test_a_shared_device_leaves_no_times_only_passes_and_answers(tmp_path):
    shared_run(tmp_path)
    made = report([tmp_path])
    table = table_of(made, "main-tiny-sudoku")
    assert not {"tokens_per_second", "speedup"} & set(keys(table))
    assert [row["fewer_passes"].text for row in rows_of(table)] == ["1.00×", "16.00×"]
    assert "p" in keys(table)
    assert sum("other work shared the device while its rows" in note for note in table.notes) == 1
    assert not any("TPS counts" in note or "Speed-up" in note for note in table.notes)
    assert not [key for key in keys(made.details) if "second" in key]
    assert "tokens_per_pass_answer" in keys(made.details)
    for cell in made.to_dict()["cells"]:
        assert cell["shared"] is True
        assert cell["seconds"] is cell["tokens_per_second_reference"] is cell["speedup_answer"] is None
        assert cell["tokens_per_pass_answer"]["value"] > 0


def test_one_shared_row_among_others_is_named_and_is_no_baseline(tmp_path):
    write(tmp_path, cell_of("entropy"), passes=128.0, right=0.9, about={"shared": True})
    write(tmp_path, cell_of(), passes=8.0, right=0.8)
    table = table_of(report([tmp_path]), "main-tiny-sudoku")
    base, ours = rows_of(table)
    assert "tokens_per_second" not in base
    assert ours["tokens_per_second"].value > 0
    assert "speedup" not in ours
    assert ours["fewer_passes"].value == 16.0
    assert any("No TPS, no seconds for entropy:" in note for note in table.notes)


def test_a_curve_is_made_of_all_runs_whatever_their_device(tmp_path):
    for run in ("gpu", "cpu"):
        describe(tmp_path / run, "curves")
    gpu = {"device": "cuda", "dtype": "float16", "batch_size": 512}
    answers = {0.95: [i < 38 for i in range(40)], 0.8: [i < 37 for i in range(40)]}
    write(tmp_path / "gpu", cell_of(threshold=0.95, **gpu), passes=20.0, right=answers[0.95])
    write(tmp_path / "gpu", cell_of(threshold=0.8, **gpu), passes=10.0, right=answers[0.8], done=7)
    write(tmp_path / "gpu", cell_of(threshold=0.5, **gpu), passes=4.0, right=0.5, done=0)
    write(tmp_path / "cpu", cell_of(threshold=0.8), passes=10.0, right=answers[0.8])
    write(tmp_path / "cpu", cell_of("fixed"), passes=128.0, right=[True] * 40)
    made = report([tmp_path])
    (areas,) = [table for table in made.tables if table.name.startswith("aup")]
    entry = next(row for row in rows_of(areas) if row["label"].text == "mean_field")["sudoku_aup"]
    assert entry.value == pytest.approx(aup_of([(58 / 20, 95.0), (58 / 10, 92.5)], 100.0)[0])
    points = table_of(made, "curves-tiny-sudoku")
    assert [row["passes"].value for row in rows_of(points)] == [128.0, 20.0, 10.0]
    assert all(row["fewer_passes"].value == 128 / row["passes"].value for row in rows_of(points))
    assert any("left out, as not finished: mean_field (threshold=0.5), 0 of 40 items." in n for n in areas.notes)


def test_a_curve_is_named_after_what_all_its_points_changed(tmp_path):
    describe(tmp_path, "curves")
    for threshold in (0.7, 0.9):
        write(tmp_path, cell_of(threshold=threshold, iterations=4), passes=8.0, right=0.9)
        write(tmp_path, cell_of("threshold", threshold=threshold), passes=8.0, right=0.9)
    labels = [row["label"].text for row in rows_of(table_of(report([tmp_path]), "aup"))]
    assert labels == ["threshold", "mean_field (iterations=4)"]


def test_a_study_tells_the_setting_around_which_it_turns(tmp_path):
    for kind in ("sensitivity", "ablation", "lengths"):
        describe(tmp_path / kind, kind)
    for updates in (2, 4):
        write(tmp_path / "sensitivity", cell_of(threshold=0.5, iterations=updates), passes=8.0, right=0.9)
    for interaction in ("none", "jsd"):
        cell = cell_of(interaction=interaction, fallback="greedy")
        write(tmp_path / "ablation", cell, passes=8.0, right=0.9)
    for length in (64, 128):
        write(tmp_path / "lengths", cell_of(threshold=0.6, max_tokens=length), passes=8.0, right=0.9)
    made = report([tmp_path])
    labels = [row["label"].text for row in rows_of(table_of(made, "sensitivity"))]
    assert labels == ["R = 2 (threshold=0.5)", "R = 4 (threshold=0.5)"]
    assert "τ = 0.85, fallback = greedy" in table_of(made, "ablation").title
    assert "mean_field (threshold=0.6)" in table_of(made, "lengths").title


def test_weights_in_8_bits_are_compared_with_those_they_come_from(tmp_path):
    describe(tmp_path, "weights")
    for task in ("sudoku", "countdown"):
        for model, right in (("a/tiny+fp8", [True, False] * 20), ("a/tiny", [True] * 40), ("a/tiny+int8", [True] * 40)):
            write(tmp_path, cell_of(model=model, task=task), passes=8.0, right=right)
    write(tmp_path, cell_of(model="other+int8"), passes=8.0, right=0.9)
    first, second = [table for table in report([tmp_path]).tables if table.name.startswith("weights")]
    assert first.name == "weights-tiny-mean-field"
    found = [tuple(row[key].text for key in ("task", "weights", "accuracy")) for row in rows_of(first)]
    of_task = [("float32", "100.0"), ("int8", "100.0"), ("fp8", "50.0")]
    assert found == [(task, *rest) for task in ("sudoku", "countdown") for rest in of_task]
    assert first.sections == [3]
    assert [row["won_lost"].text for row in rows_of(first) if "won_lost" in row] == ["0 : 0", "0 : 20"] * 2
    assert [row["weights"] for row in second.rows] == ["int8"]
    assert "won_lost" not in rows_of(second)[0]


def test_lengths_are_compared_with_the_shortest_of_their_task(tmp_path):
    describe(tmp_path, "lengths")
    for task in ("sudoku", "countdown-3"):
        for length in (256, 128):
            right = [i % 4 != 0 if length == 128 else i % 5 != 0 for i in range(40)]
            cell = cell_of("threshold", threshold=0.9, task=task, max_tokens=length, block_size=length)
            write(tmp_path, cell, passes=length / 8, right=right)
    (table,) = [table for table in report([tmp_path]).tables if table.name.startswith("lengths")]
    assert [(row["task"].text, row["max_tokens"].value) for row in rows_of(table)] == [
        ("sudoku", 128),
        ("sudoku", 256),
        ("countdown-3", 128),
        ("countdown-3", 256),
    ]
    short, long = {i for i in range(40) if i % 4}, {i for i in range(40) if i % 5}
    assert rows_of(table)[1]["won_lost"].text == f"{len(long - short)} : {len(short - long)}"
    assert "won_lost" not in rows_of(table)[0]
    assert list(table.sections) == [2]


def test_the_speed_table_says_where_the_time_goes_and_leaves_accuracy_to_others(tmp_path):
    describe(tmp_path, "speed")
    write(tmp_path, cell_of("entropy", items=8), passes=128.0, right=0.9)
    write(tmp_path, cell_of(items=8), passes=[8 + i % 3 for i in range(8)], right=0.9)
    table = table_of(report([tmp_path]), "speed-tiny-sudoku")
    base, ours = rows_of(table)
    assert "accuracy" not in keys(table)
    assert base["model_pass"].value == ours["model_pass"].value == pytest.approx(10.0)
    assert ours["policy_pass"].value == pytest.approx(1.0)
    passes = np.array([8 + i % 3 for i in range(8)])
    assert ours["rest_pass"].value == pytest.approx(np.median(2 / passes))
    assert ours["fewer_passes"].value == pytest.approx(128 * 8 / passes.sum())
    assert ours["speedup"].value == pytest.approx(ours["tokens_per_second"].value / base["tokens_per_second"].value)


def test_a_speed_run_does_not_change_the_overview_of_the_main_table(tmp_path):
    for name, table, items, right in (("main", "main", 40, 0.5), ("few", "main", 4, 1.0), ("speed", "speed", 4, 1.0)):
        describe(tmp_path / name, table)
        for task in ("sudoku", "countdown-3"):
            write(
                tmp_path / name,
                cell_of(task=task, items=items),
                passes=8.0,
                right=[i < right * items for i in range(items)],
            )
    made = report([tmp_path])
    (row,) = rows_of(table_of(made, "overview"))
    assert row["sudoku_accuracy"].value == row["countdown-3_accuracy"].value == 50.0


def test_a_block_size_meets_the_baseline_of_its_own_block_only(tmp_path):
    for run in ("blocks", "regions"):
        describe(tmp_path / run, "blocks")
    for size in (16, 32, 128, 512):
        write(tmp_path / "blocks", cell_of(block_size=size), passes=12.0, right=0.9)
    for size in (16, 128):
        write(tmp_path / "regions", cell_of("fixed", block_size=size), passes=128.0, right=0.9)
    rows = rows_of(table_of(report([tmp_path]), "blocks-tiny-sudoku"))
    ours = {row["block_size"].value: row for row in rows if row["label"].text == "mean_field"}
    assert list(ours) == [16, 32, 128]  # an answer of 128 tokens has no larger block
    assert [size for size, row in ours.items() if "p" in row] == [16, 128]


def test_runs_say_what_was_shared_taken_over_and_left_unfinished(tmp_path):
    describe(tmp_path, "main")
    write(tmp_path, cell_of("entropy"), passes=128.0, right=0.9, about={"taken_from": "main-a"})
    write(tmp_path, cell_of(), passes=8.0, right=0.9, done=3, about={"shared": True})
    table = table_of(report([tmp_path]), "runs")
    said = "device shared with other work; 1 of them measured in main-a; 1 not finished"
    assert rows_of(table)[0]["remarks"].text == said
    assert table.notes[0] == "Device: a CPU."


def test_a_note_that_many_tables_have_is_said_once_on_the_page(tmp_path):
    for task in ("sudoku", "countdown-3", "countdown-4"):
        write(tmp_path / "run", cell_of("entropy", task=task), passes=128.0, right=0.9)
        write(tmp_path / "run", cell_of(task=task), passes=8.0, right=0.9)
    made = report([tmp_path / "run"], out=tmp_path / "out", formats=["markdown", "latex", "csv", "json"])
    page = (tmp_path / "out" / "report.md").read_text()
    assert page.count("Wilson for accuracy") == 1
    assert page.index("How to read the tables") < page.index("Wilson for accuracy") < page.index("overview")
    assert "```" not in page
    alone = (tmp_path / "out" / "tables" / "main-tiny-sudoku.tex").read_text()
    assert "Wilson for accuracy" in alone
    names = {path.name for path in made.files}
    assert "details.csv" in names
    assert "details.tex" not in names
    assert json.loads((tmp_path / "out" / "report.json").read_text())["tables"]


def test_the_summary_of_an_evaluation_names_in_its_title_what_all_cells_share(tmp_path):
    for task in ("sudoku", "countdown-3"):
        write(tmp_path, cell_of(task=task), passes=8.0, right=0.9)
    (run,) = read_runs([tmp_path])
    alone, both = summary_table(run.cells[:1]), summary_table(run.cells)
    assert alone.title.startswith("tiny, sudoku: 40 items, ")
    assert keys(alone) == ["label", "accuracy", "passes"]
    assert both.title.startswith("tiny: 40 items, ")
    assert keys(both) == ["task", "label", "accuracy", "passes"]


def test_a_table_without_a_row_has_every_form(tmp_path, capsys):
    describe(tmp_path / "run", "curves")
    write(tmp_path / "run", cell_of(), passes=8.0, right=0.9, done=5)
    made = report([tmp_path / "run"], out=tmp_path / "out")
    assert table_of(made, "aup").rows == []
    assert (tmp_path / "out" / "tables" / "aup-tiny.tex").exists()
    terminal.show_tables(made.tables)
    assert "left out, as not finished: mean_field, 5 of 40 items." in capsys.readouterr().out
