"""A rule in a file of one's own, as FILE.py:Class, wherever a command takes a policy."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from unmask import policies
from unmask.cli import run
from unmask.evals.store import cells_of
from unmask.trace.record import Trace

RULE = """
from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from unmask import policies
from unmask.types import Decision


@policies.register("{name}")
@dataclass(frozen=True, slots=True, kw_only=True)
class Sure:
    '''Commit where the model is sure.'''

    sure: float = 0.8
    needs: ClassVar[frozenset[str]] = frozenset()

    def select(self, view, state=None):
        best = view.logits.float().softmax(-1).amax(-1)
        return Decision(commit=view.masked & (best >= self.sure), score=best), None


class Other:
    pass
"""


@pytest.fixture
def rule(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / "rule.py"
    path.write_text(RULE.format(name=f"sure-{request.node.name}"))
    return path


def test_a_command_decodes_with_the_class_of_a_file(rule, tmp_path, capsys):
    trace = tmp_path / "t.jsonl"
    command = [
        "generate",
        "--model",
        "toy",
        "Hi",
        "--max-tokens",
        "9",
        "--policy",
        f"{rule}:Sure",
        "--trace",
        str(trace),
    ]
    assert run([*command, "--set", "sure=0.5"]) == 0
    policy = Trace.load(trace).header["policy"]
    assert policy["name"].startswith("rule.py:Sure@")
    assert policy["sure"] == 0.5


def test_the_class_is_known_by_the_name_of_its_file_alone(rule, request):
    name = policies.named(f"{rule}:Sure")
    assert policies.describe(policies.get(name, sure=0.3)) == {"name": name, "sure": 0.3}
    assert f"sure-{request.node.name}" not in policies.names()
    assert policies.named(f"{rule}:Sure") == name
    assert policies.named("mean_field") == "mean_field"


def test_another_process_loads_the_file_for_itself(rule, tmp_path):
    policy = policies.get(policies.named(f"{rule}:Sure"), sure=0.25)
    (tmp_path / "policy.pickle").write_bytes(pickle.dumps(policy))
    code = "import pickle, sys; print(pickle.load(open(sys.argv[1], 'rb')).sure)"
    command = [sys.executable, "-c", code, str(tmp_path / "policy.pickle")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "0.25\n"


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("{rule}:Shure", "did you mean 'Sure'?"),
        ("{rule}:Other", "classes there with a method select: Sure"),
        ("{rule}.py:Sure", "cannot read the policy"),
        ("{rule}:Sure", "unknown parameter"),
    ],
)
def test_a_file_that_does_not_hold_the_policy_gets_one_line(choice, expected, rule, capsys):
    chosen = choice.format(rule=rule)
    assert run(["generate", "--model", "toy", "x", "--policy", chosen, "--set", "sue=1"]) == 2
    assert expected in capsys.readouterr().err


def test_a_file_that_fails_gets_one_line(tmp_path, capsys):
    (tmp_path / "broken.py").write_text("import no_such_module")
    assert run(["generate", "--model", "toy", "x", "--policy", f"{tmp_path / 'broken.py'}:X"]) == 2
    assert "ModuleNotFoundError: No module named 'no_such_module'" in capsys.readouterr().err


def test_a_request_cannot_name_a_file(rule):
    with pytest.raises(ValueError, match="unknown policy"):
        policies.get(f"{rule}:Sure")


def test_a_changed_rule_is_measured_anew(rule, tmp_path, capsys):
    out = tmp_path / "run"
    command = ["eval", "--model", "toy", "--task", "sudoku", "--policy", f"{rule}:Sure", "--limit", "1", "--json"]
    for source in (rule.read_text(), rule.read_text(), rule.read_text().replace('"sure-', '"changed-')):
        rule.write_text(source)
        assert run([*command, "--out", str(out)]) == 0
    names = [json.loads(line)["cell"]["policy"]["name"] for line in capsys.readouterr().out.splitlines()]
    assert names[0] == names[1] != names[2]
    assert len(cells_of(out)) == 2


USES = """
from dataclasses import dataclass

from sureness_{tag} import HOW_SURE
from unmask.policies import Threshold


@dataclass(frozen=True, slots=True, kw_only=True)
class Sure(Threshold):
    threshold: float = HOW_SURE
"""


def test_a_rule_may_import_a_module_that_lies_beside_it(tmp_path):
    for folder, sure in (("a", 0.5), ("b", 0.25)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rule.py").write_text(USES.format(tag="beside"))
        (tmp_path / folder / "sureness_beside.py").write_text(f"from sureness_{folder} import HOW_SURE")
        (tmp_path / folder / f"sureness_{folder}.py").write_text(f"HOW_SURE = {sure}")
    names = [policies.named(f"{tmp_path / folder / 'rule.py'}:Sure") for folder in "aba"]
    assert [policies.get(name).threshold for name in names] == [0.5, 0.25, 0.5]
    assert names[0] == names[2] != names[1]


def test_another_version_of_what_a_rule_imports_is_another_policy(tmp_path):
    (tmp_path / "rule.py").write_text(USES.format(tag="version"))
    found = []
    for sure in (0.5, 0.125):
        (tmp_path / "sureness_version.py").write_text(f"HOW_SURE = {sure}")
        found.append(policies.named(f"{tmp_path / 'rule.py'}:Sure"))
    assert [policies.get(name).threshold for name in found] == [0.5, 0.125]
    assert found[0] != found[1]


def test_a_folder_beside_a_rule_is_neither_read_nor_imported_twice(tmp_path):
    (tmp_path / "numpy").mkdir()  # without an __init__.py, as a folder of arrays may be
    (tmp_path / "package_beside").mkdir()
    (tmp_path / "package_beside" / "__init__.py").write_text("HOW_SURE = 0.5")
    source = RULE.replace("from unmask import", "import numpy\nfrom package_beside import HOW_SURE\nfrom unmask import")
    found = []
    for name in ("sure-folder", "sure-folder-again"):
        (tmp_path / "rule.py").write_text(source.format(name=name))
        found += [policies.named(f"{tmp_path / 'rule.py'}:Sure"), sys.modules["package_beside"]]
    assert found[0] != found[2]
    assert found[1] is found[3]


def test_a_rule_does_not_take_the_place_of_a_module_of_the_same_name(tmp_path):
    import random

    (tmp_path / "random.py").write_text(RULE.format(name="sure-random"))
    policies.named(f"{tmp_path / 'random.py'}:Sure")
    assert sys.modules["random"] is random
    assert str(tmp_path) not in sys.path
