"""One table in every form, character by character, and the files and pictures of a whole report."""

import io
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
from synthetic_runs import cell_of, describe, write

from unmask import terminal
from unmask.cli import run
from unmask.report import plots, report
from unmask.report.measured import Estimate
from unmask.report.render import csv_text, escape, latex, markdown
from unmask.report.table import Column, Table, estimate, mark_best, number, words

COLUMNS = [
    Column(key="label", title="policy", words=True),
    Column(key="accuracy", title="accuracy %", wanted="high"),
    Column(key="speedup", title="speed-up", wanted="high"),
    Column(key="passes", title="NFE", wanted="low"),
]
ROWS = [
    {
        "label": words("mean_field | τ = 0.9"),
        "accuracy": estimate(Estimate(value=82.04, interval=(78.36, 85.1))),
        "speedup": number(4.9, 2, "×"),
        "passes": number(11.25),
    },
    {"label": words("entropy & co"), "accuracy": estimate(Estimate(value=82.0)), "passes": number(82)},
]
TABLE = Table(
    name="main-tiny",
    title="tiny: 100 % *real*",
    columns=COLUMNS,
    rows=mark_best(COLUMNS, ROWS, [True, True]),
    notes=["a note"],
    sections=[1],
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
        "% needs \\usepackage{booktabs}\n"
        "\\begin{table}[t]\n"
        "\\centering\\footnotesize\\setlength{\\tabcolsep}{4pt}\n"
        "\\caption{tiny: 100 \\% *real*}\n"
        "\\label{tab:main-tiny}\n"
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
        "\\par\\smallskip\n"
        "\\begin{minipage}{\\linewidth}\\scriptsize a note\\end{minipage}\n"
        "\\end{table}\n"
    )


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


def test_a_narrow_terminal_loses_no_figure(monkeypatch):
    class Screen(io.StringIO):
        def isatty(self):
            return True

    screen = Screen()
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", screen)
    terminal.show_tables([TABLE])
    plain = re.sub(r"\x1b\[[0-9;]*m", "", screen.getvalue())
    for part in ("mean_field", "82.0", "[78.4, 85.1]", "4.90×", "11.2", "entropy"):
        assert part in plain
    assert "…" not in plain
    assert "\x1b[1m82.0" in screen.getvalue()


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
        "tables/shape.csv",
        "tables/aup-tiny.tex",
        "figures/curves-tiny-sudoku.png",
    } <= names
    text = (out / "report.md").read_text()
    for picture in re.findall(r"\]\((figures/[^)]+)\)", text):
        assert (out / picture).is_file()
    assert len(re.findall(r"!\[", text)) == 3


def test_pictures_are_drawn_labelled_and_the_same_every_time(study, tmp_path):
    first = report([study], out=tmp_path / "a", formats=("png", "svg")).files
    second = report([study], out=tmp_path / "b", formats=("png", "svg")).files
    assert [path.name for path in first] == [path.name for path in second]
    assert len(first) == 6
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes()
        if one.suffix == ".svg":
            ET.fromstring(one.read_text())
        else:
            assert one.read_bytes().startswith(b"\x89PNG")


def test_the_figure_of_curves_has_axes_a_legend_and_every_policy(study):
    from unmask.report.runs import read_runs

    cells = next(run.cells for run in read_runs([study]) if run.table == "curves")
    figure = plots.curves_figure(cells)
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"mean_field", "threshold", "entropy"}
    for panel in figure.axes:
        assert panel.get_ylabel() == "accuracy (%)"
        assert "forward passes per item" in panel.get_xlabel()


def test_no_two_policies_look_alike():
    looks = [*plots.STYLES.values(), *plots.OTHERS]
    assert len(set(looks)) == len(looks)
    markers = [marker for _, marker, _ in plots.STYLES.values()]
    assert len(set(markers)) == len(markers)


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
        (["--format", "png"], "unknown format 'png'; to print: csv, json, latex, markdown, terminal"),
        (["--format", "csv", "--format", "json"], "one format can be printed, got csv, json; --out DIR writes several"),
        (["--out", "here", "--format", "terminal"], "unknown format 'terminal'; to write: csv"),
    ],
)
def test_a_wrong_format_is_one_line(study, flags, message, capsys):
    assert run(["report", str(study), *flags]) == 2
    assert message in capsys.readouterr().err


def test_without_matplotlib_tables_are_written_and_figures_say_what_is_missing(study, tmp_path):
    code = "import sys; sys.modules['matplotlib'] = None; from unmask.cli import run; sys.exit(run(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "report", str(study), "--out", str(tmp_path / "o")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 2
    assert done.stderr == "unmask: figures need matplotlib: pip install 'unmask[plot]'\n"
    done = subprocess.run(
        [*command, "--format", "markdown"], capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.returncode == 0
    assert (tmp_path / "o" / "report.md").exists()


def test_a_report_without_paper_cells_never_loads_torch(study):
    code = "import sys; from unmask.report import report; report(sys.argv[1:]); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, str(study)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
