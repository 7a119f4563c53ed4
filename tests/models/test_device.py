"""The device of a model, by its name."""

from __future__ import annotations

import pytest
import torch

from unmask.errors import UnmaskError
from unmask.models.device import choose_device


@pytest.mark.parametrize("device", ["gpu", "meta", "cuda:x"])
def test_an_unknown_device_is_refused(device: str) -> None:
    with pytest.raises(UnmaskError, match=rf"^unknown device '{device}'; use 'cpu', 'cuda', 'cuda:N' or 'mps'$"):
        choose_device(device)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_said() -> None:
    expected = f"device 'cuda' is not there: torch {torch.__version__} sees 0 of that type"
    with pytest.raises(UnmaskError) as caught:
        choose_device("cuda")
    assert str(caught.value) == expected
