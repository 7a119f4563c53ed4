"""Every Python block and every `unmask` command in README and docs runs as it stands; every example too."""

import re
import runpy
import shlex
from pathlib import Path

import pytest

from unmask.cli import run

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# A block that needs a checkpoint or a GPU says so in its first line.
ELSEWHERE = "# needs a checkpoint"


def blocks(language: str) -> list:
    found = []
    for page in PAGES:
        for number, block in enumerate(re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S), 1):
            if not block.startswith(ELSEWHERE):
                found.append(pytest.param(block, id=f"{page.name}-{number}"))
    return found


@pytest.mark.parametrize("block", blocks("python"))
def test_a_python_block_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
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
def test_an_example_runs(example, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", [str(example)])
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target and not target.startswith("mailto:"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) < 150
