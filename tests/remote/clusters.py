"""A real Ray cluster of several nodes on this machine: each node has a raylet of its own, which can be killed.

python tests/remote/clusters.py 2     starts two nodes, prints the address, and ends them with its standard input
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Read by Ray when it is imported, here and in the processes that it starts.
ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",  # else Ray writes a token into the home folder
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_NUM_REDIS_GET_RETRIES": "1",  # else a cluster that does not answer is tried for minutes
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else Ray warns at each start
    "OMP_NUM_THREADS": "1",
}
NODE = {
    "num_cpus": 1,
    "num_gpus": 0,
    "object_store_memory": 80 * 2**20,
    "include_dashboard": False,
}


@contextmanager
def nodes(count: int = 2, **options: Any) -> Iterator[Any]:
    """The cluster, whose first node is its head; `address` is where it answers."""
    os.environ.update(ENVIRONMENT)
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**NODE, **options}, shutdown_at_exit=False)
    try:
        for _ in range(count - 1):
            cluster.add_node(**{**NODE, **options})
        yield cluster
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    with nodes(int(sys.argv[1])) as started:
        sys.stdout.write(f"{started.address}\n")
        sys.stdout.flush()
        sys.stdin.read()
