"""What `help` and editors say of the public names: every field and every keyword."""

import inspect
import re
from dataclasses import fields
from typing import get_type_hints

import pytest

import unmask
from unmask.engine.generator import Keywords
from unmask.settings import Settings, SettingsFields


def described(thing: object) -> set[str]:
    """The names that a docstring explains, each at the beginning of a line."""
    return set(re.findall(r"^ +\**(\w+): ", inspect.getdoc(thing) or "", re.M))


@pytest.mark.parametrize(
    "kind",
    [
        unmask.Settings,
        unmask.Detail,
        unmask.Output,
        unmask.Usage,
        unmask.StepEvent,
        unmask.StepView,
        unmask.StreamEvent,
        unmask.Decision,
        unmask.types.Commit,
        unmask.types.Open,
        unmask.types.Timing,
    ],
)
def test_the_help_of_a_class_describes_every_field(kind):
    assert described(kind) == {item.name for item in fields(kind)}


@pytest.mark.parametrize("function", [unmask.load, unmask.Generator.generate])
def test_the_help_of_a_function_describes_every_parameter(function):
    assert described(function) == set(inspect.signature(function).parameters) - {"self"}


def test_the_keywords_of_a_call_are_the_fields_of_settings():
    known = get_type_hints(Settings)
    assert get_type_hints(SettingsFields) == {item.name: known[item.name] for item in fields(Settings)}


def test_the_keywords_of_chat_and_infill_are_those_of_generate():
    generate = unmask.Generator.generate
    parameters = inspect.signature(generate).parameters.values()
    own = {item.name for item in parameters if item.kind is inspect.Parameter.KEYWORD_ONLY}
    assert set(get_type_hints(Keywords)) - set(SettingsFields.__annotations__) == own
    assert all(get_type_hints(generate)[name] == get_type_hints(Keywords)[name] for name in own)
