"""Names to classes: plug-ins by entry point, and errors that help."""

from dataclasses import dataclass
from importlib.metadata import EntryPoint

import pytest

from unmask import registry
from unmask.errors import UnmaskError
from unmask.registry import Registry


@dataclass(frozen=True, kw_only=True)
class Thing:
    size: int = 1


class Bare:
    """No dataclass, no parameters."""


@pytest.fixture
def things(monkeypatch):
    points = [
        EntryPoint("thing", f"{__name__}:Thing", "some.group"),
        EntryPoint("broken", "no_such_module:Thing", "some.group"),
        EntryPoint("number", "math:pi", "some.group"),
        EntryPoint("elsewhere", "math:pi", "another.group"),
    ]
    asked = []

    def entry_points(*, group):
        asked.append(group)
        return [point for point in points if point.group == group]

    monkeypatch.setattr(registry, "entry_points", entry_points)
    monkeypatch.setattr(EntryPoint, "load", lambda self: Thing if self.name == "thing" else _fail(self))
    known: Registry = Registry("thing", "some.group")
    return known, asked


def _fail(point):
    if point.name == "number":
        return 3.14
    raise ImportError("no such module")


def test_entry_points_of_the_group_are_known_and_read_once(things):
    known, asked = things
    assert known.names() == ["broken", "number", "thing"]
    assert known.build("thing", {"size": 3}) == Thing(size=3)
    assert asked == ["some.group"]


def test_a_broken_plug_in_is_reported_to_those_who_ask_for_it(things):
    known, _ = things
    with pytest.raises(UnmaskError, match=r"no_such_module:Thing.*failed"):
        known.find("broken")
    with pytest.raises(UnmaskError, match="is not a class"):
        known.find("number")
    assert known.find("thing") is Thing


def test_a_class_without_parameters_need_not_be_a_dataclass(things):
    known, _ = things
    known.register("bare")(Bare)
    assert isinstance(known.build("bare", {}), Bare)
    with pytest.raises(UnmaskError, match="unknown parameter of bare 'size'"):
        known.build("bare", {"size": 1})


def test_a_name_is_taken_only_once(things):
    known, _ = things
    known.register("bare")(Bare)
    with pytest.raises(UnmaskError, match="registered twice"):
        known.register("bare")(Bare)
