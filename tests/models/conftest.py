"""Small models of both families, and a guard against waiting for a device."""

from __future__ import annotations

from pathlib import Path

import pytest
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
