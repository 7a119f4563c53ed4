"""What importing costs, and that the public list of names is true."""

import subprocess
import sys

import pytest

import unmask

HOSTS = ("diffusers", "sglang")
HEAVY = ("torch", "numpy", "transformers", "tokenizers", "safetensors", *HOSTS)


def loaded_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_importing_the_package_imports_nothing_heavy():
    assert loaded_after("import unmask; unmask.Settings(max_tokens=3)") == set()


def test_help_imports_nothing_heavy():
    assert loaded_after("from unmask.cli import run; run(['generate', '--help']); print()") == set()


@pytest.mark.slow
def test_an_adapter_imports_no_host_but_its_own():
    assert not loaded_after("import unmask.integrations.fast_dllm; print()") & set(HOSTS)
    assert loaded_after("import unmask.integrations.diffusers; print()") & set(HOSTS) == {"diffusers"}


def test_every_public_name_is_there():
    for name in unmask.__all__:
        assert getattr(unmask, name) is not None
    assert set(unmask.__all__) <= set(dir(unmask))


def test_the_tasks_are_there_at_once_and_cost_nothing():
    assert loaded_after("import unmask; unmask.tasks.get('countdown').generate(0, 1); print()") == set()


def test_an_unknown_name_is_an_attribute_error():
    assert not hasattr(unmask, "lod")
