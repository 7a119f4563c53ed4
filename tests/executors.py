"""Executors for tests: they answer what the local one answers, but elsewhere or in another order."""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

from unmask.evals.cell import Generation
from unmask.evals.executor import Batch, LocalExecutor
from unmask.evals.recipe import Checkpoint


class Backwards(LocalExecutor):
    """Answers all batches, then hands them out from the last to the first, each from its last item to its first."""

    def map(self, batches: Iterable[Batch]) -> Iterator[list[Generation]]:
        for rows in reversed([*super().map(batches)]):
            yield rows[::-1]


class Pickled(LocalExecutor):
    """Sends every batch and its answers through pickle."""

    def map(self, batches: Iterable[Batch]) -> Iterator[list[Generation]]:
        for rows in super().map(pickle.loads(pickle.dumps(batch)) for batch in batches):
            yield pickle.loads(pickle.dumps(rows))


class Spawned:
    """Loads the model in two other processes, which share the batches; knows of it only what they tell."""

    shared, status = True, "2 processes"

    def __init__(self, checkpoint: Checkpoint) -> None:
        context = multiprocessing.get_context("spawn")
        self.pool = ProcessPoolExecutor(2, mp_context=context, initializer=_load, initargs=(checkpoint,))
        self.info, self.spec, self.codec = self.pool.submit(_describe).result()

    @classmethod
    def load(cls, checkpoint: Checkpoint) -> Spawned:
        return cls(checkpoint)

    def check(self, policy: Any, settings: Any) -> None:
        self.pool.submit(_check, policy, settings).result()

    def map(self, batches: Iterable[Batch]) -> Iterator[list[Generation]]:
        for done in as_completed([self.pool.submit(_answer, batch) for batch in batches]):
            yield done.result()

    def close(self) -> None:
        self.pool.shutdown(cancel_futures=True)


_here: list[LocalExecutor] = []  # the model of a spawned process


def _load(checkpoint: Checkpoint) -> None:
    _here.append(LocalExecutor.load(checkpoint))


def _describe() -> Any:
    return _here[0].info, _here[0].spec, _here[0].codec


def _check(policy: Any, settings: Any) -> None:
    _here[0].check(policy, settings)


def _answer(batch: Batch) -> list[Generation]:
    return next(iter(_here[0].map([batch])))
