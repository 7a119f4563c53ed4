"""The models and servers that the tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from serve.servers import Held, Running, running

import unmask
from unmask.engine.generator import Generator
from unmask.models.base import LoadedModel


@pytest.fixture(scope="session")
def tiny() -> Generator:
    return unmask.load("tiny", device="cpu")


@pytest.fixture(scope="session")
def toy() -> Generator:
    return unmask.load("toy", device="cpu")


@pytest.fixture
def held(toy) -> Generator:
    """A generator whose model can be held."""
    return Generator(LoadedModel(model=Held(toy.model), codec=toy.codec))


@pytest.fixture(scope="module")
def served(tiny) -> Iterator[Running]:
    with running(tiny) as found:
        yield found


@pytest.fixture(scope="module")
def toy_served(toy) -> Iterator[Running]:
    with running(toy) as found:
        yield found
