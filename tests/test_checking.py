"""The checks of types and shapes that hold while tests run (checking.py)."""

import sys

import pytest
import torch
from checking import Loader

from unmask import policies
from unmask.rules import probability_of
from unmask.types import Usage


def test_arguments_of_another_type_are_refused():
    with pytest.raises(TypeError, match="name=3"):
        policies.get(3)
    with pytest.raises(TypeError, match="forward_passes='x'"):
        Usage(prompt_tokens=1, completion_tokens=1, forward_passes="x")


def test_a_letter_of_a_shape_is_one_number_throughout_a_call():
    for positions in (2, 3):
        tokens, logits = torch.zeros(1, positions, dtype=torch.long), torch.zeros(1, positions, 5)
        assert probability_of(tokens, logits).shape == (1, positions)
    with pytest.raises(TypeError, match=r"violates type hint .*Float\[Tensor"):
        probability_of(tokens, logits[:, :2])


def test_every_module_of_ours_is_checked():
    ours = [module for name, module in sys.modules.items() if name.partition(".")[0] == "unmask"]
    assert {type(module.__spec__.loader) for module in ours} == {Loader}
