"""Replicas of a worker on a cluster: tasks are handed out as replicas get free, and a lost task is handed out again.

The worker is any object; tasks are calls of its methods by name. Arguments and results are plain data. A replica that
dies, with its process or with its node, is replaced when the cluster has room; meanwhile the others go on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from unmask.errors import OutOfMemory, UnmaskError, WorkFailed, one_line
from unmask.remote.cluster import Cluster, last_line
from unmask.remote.config import ClusterConfig

TICK_S = 2.0  # between two looks at the cluster while nothing happens
PLACED_TICKS = 30  # looks without any replica placed, before the pool gives up
MOST_LOSSES = 3  # of one task, or of replicas that start, in a row
PARTS = 8  # at least so many parts a replica, so that replicas end at about the same time
MOST_BATCHES = 8  # in a part


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of the work as an answer: Ray would wrap an exception in its own."""

    error: UnmaskError

    @classmethod
    def of(cls, error: Exception) -> Failure:
        if isinstance(error, MemoryError):
            return cls(OutOfMemory("a replica has no memory left"))
        return cls(
            error if isinstance(error, UnmaskError) else WorkFailed(f"{type(error).__name__}: {one_line(error)}")
        )


class Replica:
    """What runs on a node: a worker, built there, and calls of its methods. Nothing is raised to Ray."""

    def place(self) -> str:
        """The address of the node, as soon as the replica has room there."""
        import ray

        return ray.util.get_node_ip_address()

    def load(self, make: Callable[[], Any]) -> Failure | None:
        """Build the worker."""
        try:
            self.worker = make()
        except Exception as error:
            return Failure.of(error)
        return None

    def call(self, method: str, *arguments: Any) -> Any:
        try:
            return getattr(self.worker, method)(*arguments)
        except Exception as error:
            return Failure.of(error)


@dataclass(slots=True, eq=False)
class _Task:
    arguments: tuple[Any, ...]
    losses: int = 0


class Pool:
    """The replicas of one worker."""

    def __init__(self, make: Callable[[], Any], config: ClusterConfig) -> None:
        self.cluster = Cluster(config)
        self._ray, self._make = self.cluster.ray, make
        self._actor = self._ray.remote(Replica).options(**self.cluster.share)
        self._placing: dict[Any, Any] = {}  # what Ray will answer -> the actor that it is asked of
        self._loading: dict[Any, tuple[Any, str]] = {}
        self._idle: list[Any] = []
        self._probed: dict[Any, Any] = {}  # idle before another one was lost, perhaps with the same node
        self._busy: dict[Any, tuple[Any, _Task | None]] = {}  # None: an answer that is no longer wanted
        self._unplaced = self._failed_starts = 0
        self._mapping = False
        for _ in range(self.cluster.replicas):
            self._start()

    @property
    def status(self) -> str:
        return f"{len(self._idle) + len(self._probed) + len(self._busy)} of {self.cluster.replicas} replicas"

    def part_size(self, count: int, rows: int) -> int:
        """How many of `count` items to hand out at a time, where a replica decodes `rows` of them together.

        A replica refills its rows from the part, so that rows are idle only at the end of a part.
        """
        return min(max(rows, count // (PARTS * self.cluster.replicas)), MOST_BATCHES * rows)

    def call(self, method: str, *arguments: Any) -> Any:
        """What the method gives on one of the replicas."""
        return next(self.map(method, [arguments]))

    def map(self, method: str, tasks: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """What the method gives for the arguments of each task, in the order in which replicas finish."""
        if self._mapping:
            raise UnmaskError("a pool does one thing at a time: take all results of the other call first, or close it")
        self._mapping = True
        try:
            fresh, again = iter(tasks), deque[_Task]()
            following = self._following(fresh, again)
            while following is not None or self._mine():
                while following is not None and self._idle:
                    self._hand_out(method, following)
                    following = self._following(fresh, again)
                yield from self._finished(again)
                following = following or self._following(fresh, again)
        finally:
            self._mapping = False
            self._busy = {answer: (actor, None) for answer, (actor, _) in self._busy.items()}

    def close(self) -> None:
        """End the replicas and leave the cluster."""
        at_work = (actor for actor, _ in [*self._loading.values(), *self._busy.values()])
        others = [*self._placing.values(), *self._probed.values(), *self._idle]
        for actor in () if self.cluster.lost else [*others, *at_work]:
            self._ray.kill(actor)
        for found in (self._placing, self._loading, self._probed, self._idle, self._busy):
            found.clear()
        self.cluster.close()

    @staticmethod
    def _following(fresh: Iterator[tuple[Any, ...]], again: deque[_Task]) -> _Task | None:
        """A lost task, else a fresh one; None: there is none at the moment."""
        if again:
            return again.popleft()
        arguments = next(fresh, None)
        return None if arguments is None else _Task(arguments)

    def _mine(self) -> bool:
        return any(task is not None for _, task in self._busy.values())

    def _start(self) -> None:
        actor = self._actor.remote()
        self._placing[actor.place.remote()] = actor

    def _hand_out(self, method: str, task: _Task) -> None:
        try:
            answer = self._idle[-1].call.remote(method, *task.arguments)
        except TypeError as error:
            raise UnmaskError(f"an argument cannot be sent to a replica: {one_line(error)}") from error
        self._busy[answer] = self._idle.pop(), task

    def _finished(self, again: deque[_Task]) -> Iterator[Any]:
        """Wait for news of replicas, and yield the results among it; lost tasks go to `again`."""
        waiting = [*self._placing, *self._loading, *self._probed, *self._busy]
        if not waiting:
            raise WorkFailed("the pool is closed, or has no replica left")
        news, _ = self._ray.wait(waiting, num_returns=1, timeout=TICK_S)
        self.cluster.check()
        if not news:
            self._check_placed()
        for answer in self._ray.wait(waiting, num_returns=len(waiting), timeout=0)[0] if news else ():
            if answer in self._busy:
                yield from self._result(answer, again)
            elif answer in self._probed:
                actor = self._probed.pop(answer)
                _, lost = self._read(answer)
                self._start() if lost else self._idle.append(actor)
            else:
                self._started(answer)

    def _result(self, answer: Any, again: deque[_Task]) -> Iterator[Any]:
        actor, task = self._busy.pop(answer)
        found, lost = self._read(answer)
        if lost is None:
            self._idle.append(actor)
            if task is not None:
                _raise_failure(found)
                yield found
            return
        self._start()
        self._probed |= {actor.place.remote(): actor for actor in self._idle}
        self._idle.clear()
        if task is not None:
            task.losses += 1
            if task.losses >= MOST_LOSSES:
                raise WorkFailed(f"{MOST_LOSSES} replicas in a row were lost over the same work, the last one: {lost}")
            again.append(task)

    def _started(self, answer: Any) -> None:
        """The next step of a replica that starts: placed, then loaded, then idle."""
        if answer in self._placing:
            actor, node = self._placing.pop(answer), ""
        else:
            actor, node = self._loading.pop(answer)
        found, lost = self._read(answer)
        if lost is not None:
            self._failed_starts += 1
            if self._failed_starts >= MOST_LOSSES:
                raise WorkFailed(f"{MOST_LOSSES} replicas in a row died while they started, the last one: {lost}")
            self._start()
        elif node:
            _raise_failure(found, f"the replica on {node}: ")
            self._failed_starts = 0
            self._idle.append(actor)
        else:
            self._unplaced = 0
            self._loading[actor.load.remote(self._make)] = actor, found

    def _read(self, answer: Any) -> tuple[Any, str | None]:
        """A replica's answer, or the reason why the replica was lost."""
        from ray.exceptions import RayError, RayTaskError

        try:
            return self._ray.get(answer), None
        except RayTaskError as error:  # arguments or a result that cannot be sent
            return Failure(WorkFailed(last_line(error))), None
        except RayError as error:
            return None, last_line(error)

    def _check_placed(self) -> None:
        """Raise if no replica has found room for a while."""
        at_work = self._idle or self._probed or self._loading or self._busy
        self._unplaced = 0 if at_work else self._unplaced + 1
        if self._unplaced >= PLACED_TICKS:
            share = f"{self.cluster.share['num_cpus']:g} CPUs and {self.cluster.gpus:g} GPUs"
            raise WorkFailed(f"no replica found room: each needs {share}, the cluster has {self.cluster.has()}")


def _raise_failure(found: Any, place: str = "") -> None:
    if isinstance(found, Failure):
        found.error.args = (f"{place}{found.error}",)  # not every kind of error is made from a message
        raise found.error
