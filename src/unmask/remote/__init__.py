"""Models on a Ray cluster (extra: ray): replicas that decode batches for evaluations, batch files and notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unmask.remote.cluster import ClusterConfig

if TYPE_CHECKING:
    from unmask.remote.generator import RemoteGenerator

__all__ = ["ClusterConfig", "pool"]


def pool(
    path_or_name: str,
    *,
    address: str | None = None,
    replicas: int | None = None,
    cpus_per_replica: float = 1.0,
    gpus_per_replica: float | None = None,
    **how: Any,
) -> RemoteGenerator:
    """Replicas of a model on a Ray cluster, to be used in a `with` block; `how` is what `unmask.load` takes.

    address:  HOST:PORT of the head node, or 'auto'; default a cluster on this machine that ends with the block.
    replicas: copies of the model; default as many as have room.
    """
    from functools import partial

    from unmask.engine.load import load
    from unmask.remote.generator import RemoteGenerator
    from unmask.remote.replicas import Pool

    shares = {"cpus_per_replica": cpus_per_replica, "gpus_per_replica": gpus_per_replica}
    cluster = ClusterConfig(address=address, replicas=replicas, **shares)
    return RemoteGenerator(Pool(partial(load, path_or_name, **how), cluster))
