import json
import os
import subprocess
import sys
from dataclasses import dataclass

import pytest

from unmask import policies
from unmask.errors import UnmaskError
from unmask.settings import Settings
from unmask.types import Decision, StepView

OURS = ["dapd", "dawn", "eb", "entropy", "factor", "fixed", "klass", "local_leap"]
OURS += ["margin", "mean_field", "random", "threshold", "wino"]


def test_our_policies_are_installed():
    assert set(OURS) <= set(policies.names())


@pytest.mark.parametrize("name", OURS)
def test_no_parameter_has_the_name_of_a_setting(name):
    assert not set(policies.describe(policies.get(name))) & set(Settings().to_dict())


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("meanfield", {}, "unknown policy 'meanfield'; did you mean 'mean_field'?"),
        ("mean_field", {"treshold": 0.9}, "unknown parameter of mean_field 'treshold'; did you mean 'threshold'?"),
        ("mean_field", {"interaction": "jds"}, "unknown interaction 'jds'; did you mean 'jsd'?"),
        ("mean_field", {"iterations": 2.5}, "iterations must be a whole number of at least 0, got 2.5"),
        ("mean_field", {"vocabulary": 0}, "vocabulary must be a whole number of at least"),
        ("threshold", {"threshold": 1.5}, "threshold must be a number in (0, 1], got 1.5"),
        ("threshold", {"threshold": 0}, "threshold must be a number in (0, 1], got 0"),
        ("threshold", {"threshold": float("nan")}, "threshold must be a number in (0, 1], got nan"),
        ("threshold", {"threshold": True}, "threshold must be a number in (0, 1], got True"),
        ("threshold", {"threshold": "high"}, "threshold must be a number in (0, 1], got 'high'"),
        ("fixed", {"tokens_per_pass": 0}, "tokens_per_pass must be a whole number of at least 1, got 0"),
        ("entropy", {"schedule": "dreams"}, "unknown schedule 'dreams'; did you mean 'dream'?"),
        ("factor", {"factor": 0.0}, "factor must be a number in (0, inf), got 0.0"),
        ("factor", {"reference_quirks": 1}, "reference_quirks must be true or false, got 1"),
        ("eb", {"gamma": -0.1}, "gamma must be a number of at least 0, got -0.1"),
        ("eb", {"order": "margins"}, "unknown order 'margins'; did you mean 'margin'?"),
        ("klass", {"history": 0}, "history must be a whole number of at least 1, got 0"),
        ("klass", {"convention": "lada"}, "unknown convention 'lada'; did you mean 'llada'?"),
        ("local_leap", {"radius": -1}, "radius must be a whole number of at least 0, got -1"),
        ("dawn", {"tau_edge": 0.0}, "tau_edge must be a number in (0, 1], got 0.0"),
        ("dapd", {"variant": None}, "unknown variant 'None'"),
        ("wino", {"verify_threshold": 2}, "verify_threshold must be a number in [0, 1], got 2"),
    ],
)
def test_a_wrong_value_is_answered_in_one_line(name, params, message):
    with pytest.raises(UnmaskError) as error:
        policies.get(name, **params)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_a_whole_number_will_do_where_a_number_is_meant():
    assert policies.Threshold(threshold=1) == policies.Threshold(threshold=1.0)
    assert policies.describe(policies.Factor(factor=2)) == {"name": "factor", "factor": 2.0, "reference_quirks": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftmost:
    """A plug-in's policy: a dataclass, and nothing of ours."""

    count: int = 1

    def select(self, view: StepView, state: None = None) -> tuple[Decision, None]:
        place = view.masked.cumsum(-1)
        return Decision(commit=view.masked & (place <= self.count), score=-place.float()), None


def test_a_policy_needs_no_base_class_and_no_parameters():
    class Plain:
        def select(self, view, state=None):
            return Leftmost().select(view, state)

    assert isinstance(Plain(), policies.Policy)
    assert policies.describe(Plain()) == {"name": "Plain"}
    assert policies.needs_of(Plain()) == frozenset()
    assert not policies.remasks(Plain())


MODULE = """
from dataclasses import dataclass
from unmask.types import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftmost:
    count: int = 1

    def select(self, view, state=None):
        place = view.masked.cumsum(-1)
        return Decision(commit=view.masked & (place <= self.count), score=-place.float()), None
"""
POINTS = """
[unmask.policies]
leftmost = somebody_elses:Leftmost
broken = somebody_elses:Missing
threshold = somebody_elses:Leftmost
"""


@pytest.fixture(scope="module")
def with_plugins(tmp_path_factory):
    """Runs statements where another distribution is installed whose entry points are policies; gives what they print.

    In a process of its own, since a process looks for entry points once.
    """
    folder = tmp_path_factory.mktemp("site")
    (folder / "somebody_elses.py").write_text(MODULE)
    metadata = folder / "somebody_elses-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: plug-in\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(POINTS)

    def run(*statements):
        code = "\n".join(["import json", "from unmask import policies", "from unmask.errors import UnmaskError"])
        code += "\n" + "\n".join(statements)
        environment = dict(os.environ, PYTHONPATH=str(folder))
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_a_policy_from_an_entry_point_has_the_same_standing(with_plugins):
    found = with_plugins(
        "policy = policies.get('leftmost', count=2)",
        "described = policies.describe(policy)",
        "print(json.dumps({",
        "    'names': policies.names(),",
        "    'described': described,",
        "    'again': policies.get(**described) == policy,",
        "    'preset': policies.describe(policies.preset('leftmost', 'llada')),",
        "    'settings': policies.preset_settings('leftmost', 'dream'),",
        "    'needs': sorted(policies.needs_of(policy)),",
        "    'remasks': policies.remasks(policy),",
        "}))",
    )
    assert {*OURS, "leftmost", "broken"} <= set(found.pop("names"))
    assert found == {
        "described": {"name": "leftmost", "count": 2},
        "again": True,
        "preset": {"name": "leftmost", "count": 1},
        "settings": {},
        "needs": [],
        "remasks": False,
    }


def test_a_broken_plug_in_troubles_only_those_who_ask_for_it(with_plugins):
    ours, *errors = with_plugins(
        "found = [policies.get('threshold') == policies.Threshold()]",
        "for name, options in (('broken', {}), ('leftmost', {'counts': 2})):",
        "    try:",
        "        policies.get(name, **options)",
        "    except UnmaskError as error:",
        "        found.append(str(error))",
        "print(json.dumps(found))",
    )
    assert ours
    assert errors[0].startswith("the plug-in 'somebody_elses:Missing' for policy 'broken' failed")
    assert "did you mean 'count'" in errors[1]


def test_a_name_can_be_registered_once():
    with pytest.raises(UnmaskError, match="policy 'threshold' is registered twice"):
        policies.register("threshold")(Leftmost)
