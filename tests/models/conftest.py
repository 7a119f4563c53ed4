"""Small models of both families, and a guard against waiting for a device."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from references import loaded

from unmask.models.transformer import Transformer


@pytest.fixture
def llada(llada_folder: Path) -> Transformer:
    return loaded(llada_folder)


@pytest.fixture
def dream(dream_folder: Path) -> Transformer:
    return loaded(dream_folder)


@pytest.fixture(params=["llada", "dream"])
def model(request: pytest.FixtureRequest) -> Transformer:
    return request.getfixturevalue(request.param)


@pytest.fixture
def never_waiting() -> Iterator[Callable[[], None]]:
    """Makes waiting for the device an error, from its call on."""

    def start() -> None:
        # torch warns that this mode is young.
        with warnings.catch_warnings(action="ignore"):
            torch.cuda.set_sync_debug_mode("error")

    yield start
    torch.cuda.set_sync_debug_mode("default")
