"""Policies of a user's own, for every host."""

import pytest


@pytest.fixture(scope="session")
def users_policies() -> None:
    """Registers the policies of remembering.py; not when tests are collected, since some run over all policies."""
    import remembering  # noqa: F401
