"""The executor of `unmask eval --backend ray`: every replica is a local executor on some node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from operator import attrgetter

from unmask.evals.cell import Generation
from unmask.evals.executor import Batch, LocalExecutor
from unmask.evals.recipe import Checkpoint
from unmask.policies import Policy
from unmask.remote.cluster import ClusterConfig
from unmask.remote.replicas import Pool
from unmask.settings import Settings


class RayExecutor:
    """Decodes batches on the replicas of a cluster; the first replica describes the model for cells and prompts."""

    def __init__(self, replicas: Pool) -> None:
        self.replicas = replicas
        self.info, self.spec, self.codec = replicas.call(attrgetter("info", "spec", "codec"))

    @classmethod
    def load(cls, checkpoint: Checkpoint, cluster: ClusterConfig | None = None) -> RayExecutor:
        replicas = Pool(partial(LocalExecutor.load, checkpoint), cluster or ClusterConfig())
        try:
            return cls(replicas)
        except BaseException:
            replicas.close()
            raise

    @property
    def shared(self) -> bool:
        """Replicas without a GPU of their own share one, or the cores of a machine."""
        return self.replicas.cluster.gpus < 1

    @property
    def status(self) -> str:
        return self.replicas.status

    def check(self, policy: Policy, settings: Settings) -> None:
        self.replicas.call(LocalExecutor.check, policy, settings)

    def map(self, batches: Iterable[Batch]) -> Iterator[list[Generation]]:
        yield from self.replicas.map(_answer, ((batch,) for batch in batches))

    def close(self) -> None:
        self.replicas.close()


def _answer(local: LocalExecutor, batch: Batch) -> list[Generation]:
    return next(local.map([batch]))
