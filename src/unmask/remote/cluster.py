"""A connection to a Ray cluster: to one that runs, or to one that is started on this machine and ends with us.

Ray waits for minutes when a cluster does not answer. Here every wait has a bound, and its end is one line. Ray itself
is imported late: flags show without it.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Any

from unmask.errors import UnmaskError, WorkFailed
from unmask.options import check_bounds, option

CONNECT_S = 5.0  # for a TCP connection to the head node
CHECK_S = 2.0  # between two looks at the cluster
MOST_MISSES = 5  # looks in a row without an answer, before the cluster counts as lost
# Read by Ray when it is imported. One attempt to connect takes 40 s, and Ray would make twenty.
ENVIRONMENT = {"RAY_NUM_REDIS_GET_RETRIES": "1", "RAY_USAGE_STATS_ENABLED": "0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """A Ray cluster, and what each replica takes of it."""

    address: str | None = option(
        None, "Head node of a Ray cluster, or auto. [default: a cluster on this machine]", metavar="HOST:PORT"
    )
    replicas: int | None = option(None, "Copies of the model on the cluster. [default: as many as have room]", least=1)
    cpus_per_replica: float = option(1.0, "CPU cores of a replica.", within="[0.01, inf)")
    gpus_per_replica: float | None = option(
        None, "GPUs of a replica; 0.5: two replicas share one. [default: 1 if the cluster has any]", within="[0, inf)"
    )

    def __post_init__(self) -> None:
        check_bounds(self)


def import_ray() -> Any:
    """Ray, or an error of one line if it is not installed."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ModuleNotFoundError as error:
        raise UnmaskError(f"a cluster needs {error.name}, which is missing: pip install 'unmask[ray]'") from error
    return ray


@contextmanager
def quiet() -> Generator[None]:
    """Keep stdout free of the pages that Ray prints there about each worker and node that is lost."""
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        yield


class Cluster:
    """A connected cluster, and how replicas share it."""

    def __init__(self, config: ClusterConfig) -> None:
        self.ray = import_ray()
        self.own = not self.ray.is_initialized()  # a notebook may have connected before
        if self.own:
            _connect(self.ray, config.address)
        context = self.ray.get_runtime_context()
        self.head: str = context.gcs_address
        here = next(node for node in self.ray.nodes() if node["NodeID"] == context.get_node_id())
        # Ray ends this process without a word if its head node or its own daemon, the raylet, is gone for long.
        raylet = f"{here['NodeManagerAddress']}:{here['NodeManagerPort']}"
        self.needed = {"its head node": self.head, "Ray's daemon on this machine": raylet}
        if not self.own and config.address not in (None, "auto", self.head):
            raise UnmaskError(f"this process is connected to the Ray cluster at {self.head}, got {config.address!r}")
        self.misses, self.checked = 0, time.monotonic()
        there = self.ray.cluster_resources()
        gpus, cpus = there.get("GPU", 0.0), config.cpus_per_replica
        self.gpus = min(1.0, gpus) if config.gpus_per_replica is None else config.gpus_per_replica
        room = int(there.get("CPU", 0.0) / cpus)
        if self.gpus:  # a share is of one device
            room = min(room, int(gpus / self.gpus) if self.gpus >= 1 else int(gpus) * int(1 / self.gpus))
        self.replicas = config.replicas or max(1, room)
        self.share = {"num_cpus": cpus, "num_gpus": self.gpus, "scheduling_strategy": "SPREAD"}

    def needs(self) -> str:
        """What a replica takes, and what there is, for an error line."""
        there, cpus = self.ray.cluster_resources(), self.share["num_cpus"]
        has = f"{there.get('CPU', 0):g} CPUs and {there.get('GPU', 0):g} GPUs"
        return f"each needs {cpus:g} CPUs and {self.gpus:g} GPUs, the cluster has {has}"

    @property
    def lost(self) -> bool:
        return self.misses >= MOST_MISSES

    def check(self) -> None:
        """Raise if the head node, or Ray's daemon here, has not answered for a while; may be called often."""
        if time.monotonic() - self.checked < CHECK_S:
            return
        silent = [name for name, address in self.needed.items() if not _answers(address)]
        self.misses = self.misses + 1 if silent else 0
        self.checked = time.monotonic()
        if self.lost:
            raise WorkFailed(f"the Ray cluster at {self.head} is lost: {silent[0]} does not answer")

    def close(self) -> None:
        """Leave the cluster, and end it if it was started here."""
        if self.lost:  # Ray would wait for the cluster when this process ends, and then crash
            atexit.register(_end)
        elif self.own:
            self.ray.shutdown()


def _end() -> None:
    sys.stdout.flush()
    os._exit(1)


def _connect(ray: Any, address: str | None) -> None:
    if address not in (None, "auto"):
        host, _, port = address.rpartition(":")
        if "//" in address or not host or not port.isdecimal():
            raise UnmaskError(f"the address of a Ray cluster is HOST:PORT of its head node, or auto, got {address!r}")
        if not _answers(address):
            raise WorkFailed(f"no Ray cluster answers at {address}; `ray status` on its head node shows the address")
    # Without `local`, Ray would join a cluster of another program on this machine.
    where = {"address": "local", "include_dashboard": False} if address is None else {"address": address}
    try:
        ray.init(**where, logging_level="ERROR", log_to_driver=False)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        failed = "a Ray cluster could not be started" if address is None else f"no Ray cluster answers at {address}"
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise WorkFailed(f"{failed}: {reason}") from error


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, OverflowError, UnicodeError):
        return False
    return True


def last_line(message: object) -> str:
    """The part of Ray's message, or of its error, that says what happened."""
    lines = [line.strip() for line in str(message).splitlines() if line.strip() and not line.startswith("\t")]
    return lines[-1] if lines else type(message).__name__
