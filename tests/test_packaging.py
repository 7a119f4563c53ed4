"""What is published: a source archive and a wheel, each of which works away from a clone."""

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BUILD = "import sys; from hatchling import build; print(getattr(build, sys.argv[1])(sys.argv[2]))"


def built(source: Path, what: str, folder: Path) -> Path:
    """A file that the build backend makes out of a source tree."""
    command = [sys.executable, "-c", BUILD, what, str(folder)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=True)
    return folder / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from the source archive, not from the clone."""
    folder = tmp_path_factory.mktemp("dist")
    with tarfile.open(built(ROOT, "build_sdist", folder)) as archive:
        archive.extractall(folder, filter="data")
    (source,) = (path for path in folder.iterdir() if path.is_dir())
    return built(source, "build_wheel", folder)


@pytest.mark.slow
def test_a_wheel_runs_in_an_empty_environment(wheel: Path, tmp_path: Path):
    home = tmp_path / "env"
    venv.create(home)
    python, command = home / "bin" / "python", home / "bin" / "unmask"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, str(wheel)], check=True, capture_output=True)
    # What it depends on is not downloaded again.
    (site,) = home.glob("lib/python*/site-packages")
    (site / "installed.pth").write_text(sysconfig.get_path("purelib"))
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}

    def said(*arguments: str) -> str:
        done = subprocess.run(
            [str(command), *arguments], cwd=tmp_path, env=clean, capture_output=True, text=True, check=True
        )
        return done.stdout

    assert said("generate", "Countdown: 3,4,5,12").strip().endswith("=12")
    listed = [json.loads(line)["name"] for line in said("eval", "--list", "--json").splitlines()]
    assert {"main", "tiny/main"} <= set(listed)
    said("eval", "tiny/main", "--task", "countdown-3", "--policy", "threshold", "--limit", "2")
    assert (tmp_path / "runs" / "tiny-main" / "run.json").exists()
    where = subprocess.run([str(python), "-c", "import unmask; print(unmask.__file__)"], env=clean, capture_output=True)
    assert Path(where.stdout.decode().strip()).is_relative_to(home)


@pytest.mark.slow
def test_a_wheel_holds_types_recipes_the_model_and_nothing_else(wheel: Path):
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
        about = file.read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert {"unmask/py.typed", "unmask/recipes/tiny/main.yaml", "unmask/models/tiny/model.safetensors"} <= names
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"unmask"}
    assert not [name for name in names if "__pycache__" in name]
    assert "Author: The unmask authors" in about
