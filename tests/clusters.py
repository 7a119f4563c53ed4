"""Real Ray clusters on this machine for tests, and workers for their replicas."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Read by Ray when it is imported, here and in the processes that it starts.
ENVIRONMENT = {
    "RAY_NUM_REDIS_GET_RETRIES": "1",  # else a cluster that does not answer is tried for minutes
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else Ray warns at each start
    "OMP_NUM_THREADS": "1",
}
NODE: dict[str, Any] = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": 80 * 2**20, "include_dashboard": False}


@contextmanager
def nodes(count: int = 2) -> Iterator[Any]:
    """A cluster of nodes with a CPU each, the first its head; each can be killed by itself.

    The test process is not connected to it.
    """
    os.environ.update(ENVIRONMENT)
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args=NODE, shutdown_at_exit=False)
    try:
        cluster.others = [cluster.add_node(**NODE) for _ in range(count - 1)]
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
