"""One table in every form, character by character, and the files and pictures of a whole report."""

import io
import re
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from synthetic_runs import cell_of, describe, write

from unmask import terminal
from unmask.cli import run
from unmask.errors import UnmaskError
from unmask.report import plots, report
from unmask.report.build import read_runs
from unmask.report.measured import Estimate
from unmask.report.table import Column, Table, csv_text, escape, latex, markdown

COLUMNS = [
    Column("label", "policy"),
    Column("accuracy", "accuracy %", 1, wanted="high"),
    Column("speedup", "speed-up", 2, "{}×", wanted="high"),
    Column("passes", "NFE", 1, wanted="low"),
]
ROWS = [
    {
        "label": "mean_field | τ = 0.9",
        "accuracy": Estimate(value=82.04, interval=(78.36, 85.1)),
        "speedup": 4.9,
        "passes": 11.25,
    },
    {"label": "entropy & co", "accuracy": Estimate(value=82.0), "passes": 82},
]
TABLE = Table(
    name="main-tiny",
    title="tiny: 100 % *real*",
    columns=COLUMNS,
    rows=ROWS,
    notes=["a note"],
    sections=[1],
    fair=[True, True],
)


def test_markdown():
    assert markdown(TABLE) == (
        "## tiny: 100 % \\*real\\*\n"
        "\n"
        "| policy | accuracy % | speed-up | NFE |\n"
        "|:--|--:|--:|--:|\n"
        "| mean_field \\| τ = 0.9 | **82.0** [78.4, 85.1] | 4.90× | **11.2** |\n"
        "| entropy & co | 82.0 | – | 82.0 |\n"
        "\n"
        "- a note\n"
    )


def test_csv_is_unrounded_and_has_columns_for_intervals():
    assert csv_text(TABLE) == (
        "label,accuracy,accuracy_low,accuracy_high,speedup,passes\n"
        "mean_field | τ = 0.9,82.04,78.36,85.1,4.9,11.25\n"
        "entropy & co,82.0,,,,82\n"
    )


def test_latex():
    assert latex(TABLE) == (
        "% needs \\usepackage{booktabs,adjustbox}\n"
        "\\begin{table}[t]\n"
        "\\centering\\footnotesize\\setlength{\\tabcolsep}{4pt}\n"
        "\\caption{tiny: 100 \\% *real*}\n"
        "\\label{tab:main-tiny}\n"
        "\\begin{adjustbox}{max width=\\linewidth}\n"
        "\\begin{tabular}{@{}lrrr@{}}\n"
        "\\toprule\n"
        "policy & accuracy \\% & speed-up & NFE \\\\\n"
        "\\midrule\n"
        "{}mean\\_field \\textbar{} $\\tau$ = 0.9 & \\textbf{82.0} {\\scriptsize [78.4, 85.1]} & 4.90$\\times$ & "
        "\\textbf{11.2} \\\\\n"
        "\\midrule\n"
        "{}entropy \\& co & 82.0 & -- & 82.0 \\\\\n"
        "\\bottomrule\n"
        "\\end{tabular}\n"
        "\\end{adjustbox}\n"
        "\\par\\smallskip\n"
        "\\begin{minipage}{\\linewidth}\\scriptsize a note\\end{minipage}\n"
        "\\end{table}\n"
    )


def test_latex_has_no_letter_beyond_ascii_in_an_interval():
    row = {"accuracy": Estimate(value=-1.0, interval=(-2.5, 0.5))}
    table = Table(name="t", title="τ ÷ 2 × é – …", columns=COLUMNS[1:2], rows=[row], notes=["≥ 1 · → ≈"])
    text = latex(table)
    assert text.isascii()
    assert "?" not in text
    assert "{}$-$1.0 {\\scriptsize [$-$2.5, 0.5]}" in text


def test_latex_escapes_what_would_break_it():
    nasty = r"a_b\c{d}$e&f#g%h~i^j<k>l|m" + '"n" é漢'
    text = escape(nasty)
    assert text.isascii()
    bare = re.sub(
        r"\\(textbackslash|textasciitilde|textasciicircum|textless|textgreater|textbar)\{\}|\\[{}$&#%_]", "", text
    )
    assert not set(bare) & set("\\{}$&#%_~^<>|")


def test_the_terminal_has_bold_on_a_screen_and_plain_text_in_a_pipe(capsys):
    terminal.show_tables([TABLE])
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    lines = [line.rstrip() for line in printed.splitlines()]
    assert lines[0] == "tiny: 100 % *real*"
    assert " ".join(lines[4].split()) == "mean_field | τ = 0.9 82.0 [78.4, 85.1] 4.90× 11.2"


class Screen(io.StringIO):
    def isatty(self):
        return True

    @property
    def plain(self):
        return re.sub(r"\x1b\[[0-9;]*m", "", self.getvalue())


def shown(monkeypatch, tables, width):
    """What a terminal of that width gets."""
    window = Screen()
    with monkeypatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        patch.setenv("TERM", "xterm")
        patch.setattr(sys, "stdout", window)
        terminal.show_tables(tables)
    return window


def test_a_narrow_terminal_folds_words_and_breaks_no_number(monkeypatch):
    window = shown(monkeypatch, [TABLE], 50)
    for part in ("mean_field", "82.0", "[78.4, 85.1]", "4.90×", "11.2", "entropy"):
        assert part in window.plain
    assert "…" not in window.plain
    assert "\x1b[1m82.0" in window.getvalue()


def test_columns_without_room_go_on_below_beside_the_names_of_the_rows(monkeypatch):
    plain = shown(monkeypatch, [TABLE], 40).plain
    for part in ("82.0 [78.4, 85.1]", "4.90×", "11.2"):
        assert plain.count(part) == 1
    assert plain.count("mean_field") == 2
    assert max(len(line.rstrip()) for line in plain.splitlines()) <= 40


def test_as_many_columns_are_repeated_as_tell_the_rows_apart(monkeypatch):
    columns = [Column("prompt", "prompt", 0), Column("cache", "cache"), *COLUMNS[1:]]
    rows = [row | {"prompt": 12, "cache": cache} for row, cache in zip(ROWS, ("dual", "none"), strict=True)]
    plain = shown(monkeypatch, [replace(TABLE, columns=columns, rows=rows)], 40).plain
    assert plain.count("dual") == plain.count("none") == plain.count("prompt") == 2


@pytest.mark.parametrize("width", [80, 100, 200])
def test_an_ablation_fits_the_screen_without_breaking_a_figure(tmp_path, monkeypatch, width):
    describe(tmp_path, "ablation")
    write(tmp_path, cell_of("entropy"), passes=128.0, right=0.9)
    for changes in ({}, {"interaction": "none"}, {"interaction": "uniform"}, {"iterations": 1}):
        write(tmp_path, cell_of(**changes), passes=20.5, right=0.8)
    tables = [table for table in report([tmp_path]).tables if table.name.startswith("ablation")]
    lines = shown(monkeypatch, tables, width).plain.splitlines()
    assert max(len(line.rstrip()) for line in lines) <= width
    assert any(re.search(r"\d\.\d \[\d+\.\d, \d+\.\d\]", line) for line in lines)
    assert sum(bool(re.search(r"\d : \d", line)) for line in lines) == 4
    assert sum("one-shot" in line for line in lines) == (1 if width == 200 else 2)


def test_words_in_a_pipe_are_folded_before_a_line_gets_too_long(capsys):
    columns = [Column(key, key) for key in ("claim", "holds", "fails")] + COLUMNS[1:2]
    row = dict.fromkeys(("claim", "holds", "fails"), "tiny, sudoku, block 82; " * 12) | {"accuracy": 1}
    terminal.show_tables([Table(name="claims", title="t", columns=columns, rows=[row])])
    lines = capsys.readouterr().out.splitlines()
    assert 120 < max(len(line) for line in lines) <= 160


@pytest.fixture
def study(tmp_path):
    """Small runs of every kind that has a picture."""
    root = tmp_path / "runs"
    for kind in ("curves", "blocks", "sensitivity"):
        describe(root / kind, kind)
        write(root / kind, cell_of("entropy"), passes=128.0, right=0.95)
    for at, threshold in enumerate((0.7, 0.8, 0.95)):
        for kind in ("curves", "sensitivity"):
            write(root / kind, cell_of(threshold=threshold), passes=6.5 + 3 * at, right=0.8 + at / 20)
        write(root / "curves", cell_of("threshold", threshold=threshold), passes=5.5 + 3 * at, right=0.8)
        write(root / "sensitivity", cell_of(iterations=2 * at + 1, threshold=0.8), passes=20.5 - at, right=0.9)
        write(root / "blocks", cell_of(block_size=8 * 2**at), passes=20.5 - 4 * at, right=0.9)
    return root


def test_a_report_is_a_folder_of_files(study, tmp_path):
    out = tmp_path / "out"
    made = report([study], out=out)
    names = {str(path.relative_to(out)) for path in made.files}
    assert names == {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    assert {
        "report.md",
        "details.md",
        "report.json",
        "tables/claims.csv",
        "tables/aup-tiny.tex",
        "figures/curves-tiny-sudoku.png",
    } <= names
    assert not [name for name in names if name.endswith(".pdf")]  # which has to be asked for
    text = (out / "report.md").read_text()
    for picture in re.findall(r"\]\((figures/[^)]+)\)", text):
        assert (out / picture).is_file()
    assert len(re.findall(r"!\[", text)) == 3
    for path in out.glob("tables/*.tex"):
        assert path.read_text().isascii(), path


def test_pictures_are_drawn_and_the_same_every_time(study, tmp_path):
    first, second = (report([study], out=tmp_path / out, formats=("png", "svg", "pdf")).files for out in "ab")
    assert [path.name for path in first] == [path.name for path in second]
    assert len(first) == 9
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
        if one.suffix == ".svg":
            ET.fromstring(one.read_text())
        else:
            assert one.read_bytes().startswith({".png": b"\x89PNG", ".pdf": b"%PDF"}[one.suffix])


def test_the_figure_of_curves_has_axes_a_legend_and_every_policy(study):
    cells = next(run.cells for run in read_runs([study]) if run.table == "curves")
    figure = plots.figure("curves", cells)
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"mean_field", "threshold", "entropy"}
    for panel in figure.axes:
        assert panel.get_ylabel() == "accuracy (%)"
        assert "forward passes per item" in panel.get_xlabel()


def test_no_two_policies_look_alike():
    assert len(set(plots.LOOKS.values())) == len(plots.LOOKS)
    assert len({marker for _, marker, _ in plots.LOOKS.values()}) == len(plots.LOOKS)
    assert not {*plots.OTHERS} & {colour for colour, _, _ in plots.LOOKS.values()}


def cells_at(run):
    (found,) = read_runs([run])
    return found.cells


def test_two_dozen_lines_are_told_apart_and_named_where_they_end(tmp_path):
    names = [*plots.LOOKS, *(f"rule_{number}" for number in range(9))]
    for number, policy in enumerate(names):
        write(tmp_path / "run", cell_of(policy), passes=8.0 + number % 3, right=0.5 + 0.002 * number)
    figure = plots.figure("main", cells_at(tmp_path / "run"))
    (panel,) = figure.axes
    looks = {(line.get_color(), line.get_marker()) for line in figure.legends[0].get_lines()}
    assert len(looks) == len(names) == 24
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert 0 <= legend.x0 < legend.x1 <= figure.bbox.x1
    assert 0 <= legend.y0 < legend.y1 <= figure.bbox.y1
    boxes = {text.get_text(): text.get_window_extent() for text in panel.texts}
    assert set(boxes) == set(names)
    frame = panel.get_window_extent()
    for name, box in boxes.items():
        assert frame.x0 <= box.x0 < box.x1 <= frame.x1, name
        assert frame.y0 <= box.y0 < box.y1 <= frame.y1, name
        assert not [other for other in boxes if other != name and boxes[other].overlaps(box)], name


def test_main_has_a_picture_with_every_row_and_ticks_enough(tmp_path):
    for policy, passes in (("mean_field", 10.5), ("threshold", 12.5), ("mine", 14.5), ("yours", 17.5)):
        write(tmp_path / "run", cell_of(policy), passes=passes, right=0.9)
    figure = plots.figure("main", cells_at(tmp_path / "run"))
    (panel,) = figure.axes
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"mean_field", "threshold", "mine", "yours"}
    looks = {(line.get_color(), line.get_marker()) for line in figure.legends[0].get_lines()}
    assert len(looks) == 4
    assert len(panel.get_xticks()) >= 3
    made = report([tmp_path / "run"], out=tmp_path / "out", formats=["markdown", "png"])
    assert "main-tiny-sudoku.png" in {path.name for path in made.files}
    assert "(figures/main-tiny-sudoku.png)" in (tmp_path / "out" / "report.md").read_text()


def test_pictures_of_tables_that_have_none_are_refused_in_one_line(tmp_path, capsys):
    describe(tmp_path / "run", "speed")
    write(tmp_path / "run", cell_of("entropy"), passes=128.0, right=0.9)
    assert run(["report", str(tmp_path / "run"), "--out", str(tmp_path / "out"), "--format", "png"]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "no figure of these runs (table: speed)" in message
    assert "main, curves, blocks, sensitivity" in message
    assert not (tmp_path / "out").exists()


def test_the_command_prints_one_format_and_writes_all(study, tmp_path, capsys):
    assert run(["report", str(study / "curves")]) == 0
    assert "AUP, tiny" in capsys.readouterr().out
    assert run(["report", str(study / "curves"), "--format", "markdown"]) == 0
    assert "## AUP, tiny" in capsys.readouterr().out
    assert run(["report", str(study), "--json"]) == 0
    assert capsys.readouterr().out.count("\n") == 1
    assert run(["report", str(study), "--out", str(tmp_path / "o"), "--format", "csv"]) == 0
    assert all(line.endswith(".csv") for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--format", "png"], "png needs --out DIR: a figure cannot be printed"),
        (["--format", "odt"], "unknown format 'odt'; known: csv, json, latex, markdown, pdf, png, svg, terminal"),
        (["--format", "csv", "--format", "json"], "one format can be printed, got csv, json; --out DIR writes several"),
        (["--out", "here", "--format", "terminal"], "unknown file format 'terminal'; known: csv"),
        (["--out", __file__], "test_render.py: it is a file"),
    ],
)
def test_a_wrong_format_is_one_line(study, flags, message, capsys):
    assert run(["report", str(study), *flags]) == 2
    assert message in capsys.readouterr().err


def test_without_matplotlib_tables_are_written_and_figures_say_what_is_missing(study, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    command = ["report", str(study), "--out", str(tmp_path / "o")]
    assert run(command) == 2
    assert (
        capsys.readouterr().err == "unmask: a figure needs matplotlib, which is missing: pip install 'unmask[plot]'\n"
    )
    with pytest.raises(UnmaskError, match="a figure needs matplotlib, which is missing"):
        report([study], out=tmp_path / "o")
    assert not (tmp_path / "o").exists()
    assert run([*command, "--format", "markdown"]) == 0
    assert (tmp_path / "o" / "report.md").exists()


def test_a_report_goes_to_a_folder_and_a_file_is_refused_before_any_work(study, tmp_path, capsys):
    made = report([str(study)], out=str(tmp_path / "o"), formats=["markdown"])
    assert tmp_path / "o" / "report.md" in made.files
    (tmp_path / "file").write_text("")
    assert run(["report", "no-such-run", "--out", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err == f"unmask: cannot write a report to {tmp_path / 'file'}: it is a file\n"
