"""A policy of a user's own, in one file, decodes alike wherever policies are used, without change."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def write_package(folder: Path) -> None:
    """The policy of docs/adding-a-policy.md, published as that page says."""
    page = (TESTS.parent / "docs" / "adding-a-policy.md").read_text()
    block = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert block is not None
    source, _, _ = block[1].partition("\n\nllm = ")
    (folder / "my_package.py").write_text(source.replace('@policies.register("error_budget")\n', ""))
    metadata = folder / "my_package-0.1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 0.1\n")
    (metadata / "entry_points.txt").write_text("[unmask.policies]\nerror_budget = my_package:ErrorBudget\n")


@pytest.mark.slow
def test_one_policy_gives_the_same_tokens_in_eight_places(make_sdar: Callable[..., Path], tmp_path: Path) -> None:
    folder = make_sdar(seed=3)
    write_package(tmp_path)
    path = os.pathsep.join([str(tmp_path), str(TESTS), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(TESTS / "everywhere.py"), str(folder), "error_budget", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["home"] == "my_package"
    assert 1 < found["passes"] < len(found["python"])  # the policy commits several at once, and not all
    for way in ("command line", "evaluation", "Ray", "SGLang", "diffusers"):
        assert found[way] == found["python"], way
    for way in ("server", "batch file"):
        assert found[way] == found["text"], way
