"""How many replicas of a model run, and where. Imports no package of the extra `ray`: flags show without it."""

from __future__ import annotations

from dataclasses import dataclass

from unmask.options import check_number, check_whole, option


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """A Ray cluster, and what each replica takes of it."""

    address: str | None = option(
        None,
        "Head node of a Ray cluster, or auto. [default: a cluster on this machine, while it is needed]",
        metavar="HOST:PORT",
    )
    replicas: int | None = option(None, "Copies of the model on the cluster. [default: as many as have room]")
    cpus_per_replica: float = option(1.0, "CPU cores of a replica.")
    gpus_per_replica: float | None = option(
        None, "GPUs of a replica; 0.5: two replicas share one. [default: 1 if the cluster has any]"
    )

    def __post_init__(self) -> None:
        check_whole(self, "replicas", least=1, optional=True)
        check_number(self, "cpus_per_replica", within="[0.01, inf)")
        if self.gpus_per_replica is not None:
            check_number(self, "gpus_per_replica", within="[0, inf)")
