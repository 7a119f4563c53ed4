"""Everything but the sandbox works without what only Unix has; only Linux is tested for real."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("other_systems.py")


@pytest.mark.slow
def test_everything_imports_and_decodes_without_modules_of_unix(tmp_path):
    command = [sys.executable, str(PROGRAM), str(tmp_path / "run")]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\nran\n"
