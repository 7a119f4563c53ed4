"""Replicas of a worker on a cluster: tasks are handed out as replicas get free, and a lost task is handed out again.

The worker is any object; a task is a call of a function with the worker and arguments. Arguments and results are plain
data. A replica that dies, with its process or with its node, is replaced when the cluster has room; meanwhile the
others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from unmask.errors import OutOfMemory, UnmaskError, WorkFailed, one_line
from unmask.remote.cluster import Cluster, ClusterConfig, last_line

TICK_S = 2.0  # between two looks at the cluster while nothing happens
PLACED_TICKS = 30  # looks without any replica placed, before the pool gives up
MOST_LOSSES = 3  # of one task, or of replicas that start, in a row
PARTS = 8  # at least so many parts a replica, so that replicas end at about the same time
MOST_BATCHES = 8  # in a part


def failure_of(error: Exception) -> UnmaskError:
    """An error of the work as one of ours. It is given as an answer: Ray would wrap what is raised in its own error."""
    if isinstance(error, UnmaskError):
        return error
    if isinstance(error, MemoryError):
        return OutOfMemory("a replica has no memory left")
    return WorkFailed(f"{type(error).__name__}: {one_line(error)}")


class Replica:
    """What runs on a node: a worker, built there, and calls of functions with it. Nothing is raised to Ray."""

    def place(self) -> str:
        """The address of the node, as soon as the replica has room there."""
        import ray

        return ray.util.get_node_ip_address()

    def load(self, make: Callable[[], Any]) -> UnmaskError | None:
        """Build the worker."""
        try:
            self.worker = make()
        except Exception as error:
            return failure_of(error)
        return None

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(self.worker, *arguments)
        except Exception as error:
            return failure_of(error)


@dataclass(slots=True, eq=False)
class _Task:
    arguments: tuple[Any, ...]
    losses: int = 0


@dataclass(slots=True, eq=False)
class _Member:
    """A replica as the pool knows it: it finds room on a node, loads, and then has one task after the other."""

    actor: Any
    node: str | None = None
    loaded: bool = False
    task: _Task | None = None  # None: it has none, or the answer is no longer wanted


class Pool:
    """The replicas of one worker."""

    def __init__(self, make: Callable[[], Any], config: ClusterConfig) -> None:
        self.cluster = Cluster(config)
        self._ray, self._make = self.cluster.ray, make
        self._actor = self._ray.remote(Replica).options(**self.cluster.share)
        self._asked: dict[Any, _Member] = {}  # what Ray will answer -> the replica that it is asked of
        self._idle: list[_Member] = []
        self._unplaced = self._failed_starts = 0
        self._mapping = False
        self._lost: list[_Task] = []  # with a replica, to be handed out again
        for _ in range(self.cluster.replicas):
            self._start()

    @property
    def status(self) -> str:
        return f"{sum(member.loaded for member in self._all())} of {self.cluster.replicas} replicas"

    def parts(self, items: Iterable[Any], count: int, rows: int) -> Iterator[list[Any]]:
        """Parts of `count` items to hand out, where a replica decodes `rows` of them together.

        A replica refills its rows from the part, so that rows are idle only at the end of a part.
        """
        size = min(max(rows, count // (PARTS * self.cluster.replicas)), MOST_BATCHES * rows)
        unread = iter(items)
        while part := list(islice(unread, size)):
            yield part

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the function gives on one of the replicas."""
        return next(self.map(function, [arguments]))

    def map(self, function: Callable[..., Any], tasks: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """What the function gives for the arguments of each task, in the order in which replicas finish."""
        if self._mapping:
            raise UnmaskError("a pool does one thing at a time: take all results of the other call first, or close it")
        self._mapping = True
        fresh, following = map(_Task, tasks), None
        try:
            while True:
                following = following or (self._lost.pop() if self._lost else next(fresh, None))
                if following is not None and self._idle:
                    self._hand_out(function, following)
                    following = None
                elif following is not None or any(member.task for member in self._asked.values()):
                    yield from self._finished()
                else:
                    return
        finally:
            self._mapping = False
            self._lost.clear()
            for member in self._asked.values():
                member.task = None

    def close(self) -> None:
        """End the replicas and leave the cluster."""
        for member in () if self.cluster.lost else self._all():
            self._ray.kill(member.actor)
        self._asked.clear()
        self._idle.clear()
        self.cluster.close()

    def _all(self) -> list[_Member]:
        return [*self._asked.values(), *self._idle]

    def _start(self) -> None:
        actor = self._actor.remote()
        self._asked[actor.place.remote()] = _Member(actor)

    def _hand_out(self, function: Callable[..., Any], task: _Task) -> None:
        try:
            answer = self._idle[-1].actor.call.remote(function, *task.arguments)
        except TypeError as error:
            raise UnmaskError(f"an argument cannot be sent to a replica: {one_line(error)}") from error
        self._asked[answer] = self._idle.pop()
        self._asked[answer].task = task

    def _finished(self) -> Iterator[Any]:
        """Wait for news of a replica, and yield its result if it was at work."""
        if not self._asked:
            raise WorkFailed("the pool is closed, or has no replica left")
        news, _ = self._ray.wait(list(self._asked), num_returns=1, timeout=TICK_S)
        self.cluster.check()
        if not news:
            self._unplaced = 0 if any(member.node for member in self._all()) else self._unplaced + 1
            if self._unplaced >= PLACED_TICKS:
                raise WorkFailed(f"no replica found room: {self.cluster.needs()}")
            return
        member = self._asked.pop(news[0])
        task, member.task = member.task, None
        try:
            found = self._ray.get(news[0])
        except self._ray.exceptions.RayTaskError as error:  # arguments or a result that cannot be sent
            found = WorkFailed(last_line(error))
        except self._ray.exceptions.RayError as error:
            self._replace(member, task, last_line(error))
            return
        if member.node is None:
            member.node, self._unplaced = str(found), 0
            self._asked[member.actor.load.remote(self._make)] = member
        elif not member.loaded:
            _raise_failure(found, f"the replica on {member.node}: ")
            member.loaded, self._failed_starts = True, 0
            self._idle.append(member)
        else:
            self._idle.append(member)
            if task is not None:
                _raise_failure(found)
                yield found

    def _replace(self, lost: _Member, task: _Task | None, why: str) -> None:
        """Start another replica, unless several in a row were lost; the lost task is handed out again."""
        if not lost.loaded:
            self._failed_starts += 1
            if self._failed_starts >= MOST_LOSSES:
                raise WorkFailed(f"{MOST_LOSSES} replicas in a row died while they started, the last one: {why}")
        if task is not None:
            task.losses += 1
            if task.losses >= MOST_LOSSES:
                raise WorkFailed(f"{MOST_LOSSES} replicas in a row were lost over the same work, the last one: {why}")
            self._lost.append(task)
        self._start()
        # The idle ones may have been on the same node: whether they live is known when they answer.
        self._asked |= {member.actor.place.remote(): member for member in self._idle}
        self._idle.clear()


def _raise_failure(found: Any, place: str = "") -> None:
    if isinstance(found, UnmaskError):
        found.args = (f"{place}{found}",)  # not every kind of error is made from a message
        raise found
