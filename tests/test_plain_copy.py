"""The package without the folders that only make it faster: everything that is not about speed still works."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import unmask

PACKAGE, TESTS = Path(unmask.__file__).parent, Path(__file__).parent
FAST = ("kernels", "cuda")
TOKENS = """
import json, sys, unmask
found = {"file": unmask.__file__}
llm = unmask.load("tiny", device="cuda", dtype="float32")
prompts = ["Countdown: 86,28,13,31,96", "Countdown: 3,4,5,12", "Problem: Grace picks 3 peaches. How many?"]
for policy in ("mean_field", "fixed", "klass", "dawn", "eb"):
    for cache in ("none", "prefix", "dual"):
        if cache == "none" or policy in ("mean_field", "fixed", "eb"):
            outputs = llm.generate(prompts, policy=policy, cache=cache, max_tokens=48, block_size=16)
            found[f"{policy} {cache}"] = [output.canvas_ids for output in outputs]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def copied(tmp_path_factory) -> Path:
    """The folder that holds a package without them."""
    folder = tmp_path_factory.mktemp("plain")
    shutil.copytree(PACKAGE, folder / "unmask", ignore=shutil.ignore_patterns(*FAST, "__pycache__"))
    assert not [path for name in FAST for path in folder.rglob(name)]
    return folder


def run(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"} | environment
    return subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, cwd=TESTS.parent)


@pytest.mark.slow
def test_goldens_every_policys_contract_and_a_server_do_without_them(copied):
    tests = ["goldens", "policies/test_contract.py", "serve/test_completions.py"]
    options = ["-p", "no:cacheprovider", "-p", "no:xdist", "-o", "addopts=--import-mode=importlib", "-q"]
    found = run(copied, "-m", "pytest", *options, *(str(TESTS / name) for name in tests), JAXTYPING_DISABLE="1")
    assert found.returncode == 0, found.stdout[-3000:] + found.stderr[-3000:]
    where = run(copied, "-c", "import unmask; print(unmask.__file__)").stdout
    assert Path(where.strip()).parent == copied / "unmask"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_the_copy_gives_the_tokens_of_the_package_with_kernels_off(copied):
    off = json.loads(run(PACKAGE.parent, "-c", TOKENS, UNMASK_KERNELS="0").stdout)
    without = json.loads(run(copied, "-c", TOKENS).stdout)
    assert Path(without.pop("file")).is_relative_to(copied)
    assert not Path(off.pop("file")).is_relative_to(copied)
    assert without == off
