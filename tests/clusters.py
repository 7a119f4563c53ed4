"""Real Ray clusters on this machine for tests, and workers for their replicas."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SMALL: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80 * 2**20, "include_dashboard": False}


@contextmanager
def two_nodes() -> Iterator[Any]:
    """A cluster with a head node and a second one, a CPU each; the test process is not connected to it."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args=SMALL)
    try:
        cluster.second = cluster.add_node(num_cpus=1, object_store_memory=80 * 2**20)
        yield cluster
    finally:
        cluster.shutdown()


class Marked:
    """A worker for tests; what it does once, it notes in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def double(self, number: int) -> int:
        return 2 * number

    def process(self, _: int) -> int:
        time.sleep(0.1)  # so that the other replicas have time to start
        return os.getpid()

    def fail(self, error: Exception) -> None:
        raise error

    def die_once(self, number: int) -> int:
        """End the process, as the kernel does when memory runs out, unless it was done for this number before."""
        mark = self.folder / str(number)
        if number % 3 == 0 and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number

    def die(self, number: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Unborn(Marked):
    """A worker whose process dies while it loads."""

    def __init__(self, folder: Path) -> None:
        os.kill(os.getpid(), signal.SIGKILL)
