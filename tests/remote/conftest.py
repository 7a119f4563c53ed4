"""One cluster for all tests of this folder, started anew only when a test has destroyed it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import clusters
import pytest

Whole = Callable[[], Any]


@pytest.fixture(scope="package")
def whole_cluster() -> Iterator[Whole]:
    """Gives a cluster of two nodes, both of which run; a test that breaks its head node removes that node."""
    found: list[Any] = []
    with ExitStack() as started:

        def whole() -> Any:
            if not found or found[-1].head_node is None:
                started.close()
                found.append(started.enter_context(clusters.nodes()))
            cluster = found[-1]
            if not cluster.worker_nodes:
                cluster.others = [cluster.add_node(**clusters.NODE)]
            return cluster

        yield whole


@pytest.fixture
def cluster(whole_cluster: Whole) -> Any:
    return whole_cluster()
