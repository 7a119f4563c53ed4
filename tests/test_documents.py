"""Every Python block and every `unmask` command in README and docs runs as it stands; every example too."""

import re
import runpy
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from unmask.cli import run

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# A block that needs a checkpoint or a GPU says so in its first line.
ELSEWHERE = "# needs a checkpoint"
# Examples that measure or simulate for minutes, unless told to do less.
SMALL = {
    "cluster_simulation.py": ["--replicas", "8", "--requests", "50", "--router", "two", "least", "random"],
    "cluster_speed.py": ["--model", "toy", "--replicas", "1", "--prompts", "32"],
}


def blocks(language: str) -> list:
    found = []
    for page in PAGES:
        for number, block in enumerate(re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S), 1):
            if not block.startswith(ELSEWHERE):
                marks = pytest.mark.slow if "unmask.remote" in block else ()  # starts a cluster
                found.append(pytest.param(block, id=f"{page.name}-{number}", marks=marks))
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


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target and not target.startswith("mailto:"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) < 150
