"""Every Python block and every `unmask` command in README and docs runs as it stands; so do examples and the notebook.

Links lead somewhere, on a code host and in the site.
"""

import re
import runpy
import shlex
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from xml.etree import ElementTree

import nbformat
import pytest
import yaml
from nbclient import NotebookClient

from unmask import Settings
from unmask.cli import run

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# A block that needs a checkpoint or a GPU says so in its first line.
ELSEWHERE = "# needs a checkpoint"
# A block that starts a cluster, or registers a model family, for which it gets a process of its own.
FAMILY = "@families.register"
SLOW = f"unmask.remote|{FAMILY}"
# Examples that measure or simulate for minutes, unless told to do less.
SMALL = {
    "cluster_simulation.py": ["--replicas", "8", "--requests", "50", "--router", "two", "least", "random"],
    "cluster_speed.py": ["--model", "toy", "--replicas", "1", "--prompts", "32"],
    "joint_risk.py": ["--items", "4"],
    "joint_variants.py": ["--limit", "2", "--task", "countdown-3"],
}


def blocks(language: str) -> list:
    found = []
    for page in PAGES:
        for number, block in enumerate(re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S), 1):
            if not block.startswith(ELSEWHERE):
                marks = pytest.mark.slow if re.search(SLOW, block) else ()
                found.append(pytest.param(block, id=f"{page.name}-{number}", marks=marks))
    return found


@pytest.mark.parametrize("block", blocks("python"))
def test_a_python_block_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if FAMILY in block:
        subprocess.run([sys.executable, "-c", block], check=True)
        return
    names: dict = {"__name__": "block"}
    exec(compile(block, "block", "exec"), names)
    for name, value in list(names.items()):
        if name.startswith("test_"):
            value()


@pytest.mark.slow
@pytest.mark.parametrize("block", blocks("bash"))
def test_a_command_block_runs(block, tmp_path, monkeypatch):
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    monkeypatch.chdir(tmp_path)
    commands = [line for line in block.splitlines() if line.startswith("unmask ")]
    for command in commands:
        assert run(shlex.split(command, comments=True)[1:]) == 0, command


@pytest.mark.slow
@pytest.mark.parametrize("example", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.name)
def test_an_example_runs(example, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(example), *SMALL.get(example.name, ())])
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.parametrize("file", sorted((ROOT / "examples" / "cluster").iterdir()), ids=lambda path: path.name)
def test_the_files_of_clusters_can_be_read_and_their_commands_exist(file):
    text = file.read_text()
    if file.suffix == ".yaml":
        assert all(isinstance(part, dict) for part in yaml.safe_load_all(text))
    if file.suffix == ".sh":
        subprocess.run(["bash", "-n", str(file)], check=True)
    for words in re.findall(r"unmask (?:serve|eval|batch) [^#`]*?--backend ray", text):
        assert run([words.split()[1], "--help"]) == 0


def anchors(page: Path) -> set[str]:
    """What a link may name behind `#`: the headings of a page, as code hosts and the site spell them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_and_anchors_of_a_page_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text()):
        if "://" in target or target.startswith("mailto:"):
            continue
        found = page.parent / target if target else page
        assert found.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(found), f"{page.name} links to {target}#{anchor}"
        assert page.name == "README.md" or ".." not in target, f"{target} is not part of the site"


def test_every_page_is_in_the_navigation_of_the_site_and_in_the_list_of_pages():
    pages = {page.name for page in PAGES[1:]}
    assert set(re.findall(r"[\w-]+\.md", (ROOT / "mkdocs.yml").read_text())) == pages
    assert pages - {"index.md"} <= set(re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs" / "index.md").read_text()))


def test_the_page_of_settings_has_every_field_with_its_default_and_meaning():
    rows = dict(re.findall(r"^\| `(\w+)` (\|.*)$", (ROOT / "docs" / "settings.md").read_text(), re.M))
    expected = {
        item.name: f"| `{str(item.type).replace(' | ', ' or ')}` | `{item.default!r}` | {item.metadata['help']} |"
        for item in fields(Settings)
    }
    assert rows == expected


@pytest.mark.parametrize("name", ["demo", "pass"])
def test_a_picture_is_well_formed_and_needs_nothing_from_elsewhere(name):
    text = (ROOT / "docs" / "images" / f"{name}.svg").read_text()
    assert ElementTree.fromstring(text).tag.endswith("svg")
    assert re.findall(r"https?://[^\"]+", text) == ["http://www.w3.org/2000/svg"]


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path):
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    (tmp_path / "src").symlink_to(ROOT / "src")
    zensical = Path(sys.executable).with_name("zensical")
    done = subprocess.run([zensical, "build", "--strict"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stderr
    built = {path.stem for path in (tmp_path / "site").glob("*.html")}
    assert built >= {page.stem for page in PAGES[1:]}
    reference = (tmp_path / "site" / "api.html").read_text()
    assert all(f">{name}<" in reference for name in ("max_tokens", "on_output", "committed"))


@pytest.mark.slow
def test_the_notebook_runs_and_carries_no_output_but_its_figure(tmp_path):
    notebook = nbformat.read(ROOT / "examples" / "tour.ipynb", as_version=4)
    nbformat.validate(notebook)
    kept = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert [list(output["data"]) for output in kept] == [["image/png"]]
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100
