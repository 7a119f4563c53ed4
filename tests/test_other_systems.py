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


def test_a_worker_without_signals_ends_a_template_in_time():
    code = "import signal; del signal.setitimer; from unmask.worker_process import serve; "
    code += "serve('unmask.models.checkpoint.template_worker', 1024)"
    order = '[0.2, {"template": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", '
    order += '"values": {}, "characters": 10}]\n'
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, input=order, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, "true\n")  # it began, and gave no answer
