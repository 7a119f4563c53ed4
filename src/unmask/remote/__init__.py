"""Models on a Ray cluster (extra: ray): replicas that decode batches for evaluations, batch files and notebooks."""

from unmask.remote.cluster import ClusterConfig
from unmask.remote.generator import pool

__all__ = ["ClusterConfig", "pool"]
