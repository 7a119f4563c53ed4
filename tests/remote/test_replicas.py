"""Replicas that work, fail and die; on a real cluster of this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import clusters
import pytest
from clusters import Marked

from unmask.errors import CheckpointError, OutOfMemory, UnknownName, UnmaskError, WorkFailed
from unmask.remote import ClusterConfig, replicas
from unmask.remote.cluster import Cluster
from unmask.remote.replicas import Pool

pytestmark = pytest.mark.slow

Start = Callable[..., Pool]


@pytest.fixture(scope="module")
def two_nodes(whole_cluster: Callable[[], Any]) -> Iterator[str]:
    """This process, connected to a cluster of two nodes; pools use that connection."""
    import ray

    ray.cloudpickle.register_pickle_by_value(clusters)  # replicas cannot import this folder
    address = whole_cluster().address
    ray.init(address=address, logging_level="ERROR", log_to_driver=False)
    yield address
    ray.shutdown()


@pytest.fixture
def start(two_nodes: str, tmp_path: Path) -> Iterator[Start]:
    started = []

    def make(worker: type = Marked, **config: float) -> Pool:
        started.append(Pool(partial(worker, tmp_path), ClusterConfig(**{"cpus_per_replica": 0.5, **config})))
        return started[-1]

    yield make
    for pool in started:
        pool.close()


def test_every_task_is_answered_once_and_replicas_share_them(start: Start) -> None:
    pool = start(replicas=2)
    assert sorted(pool.map(Marked.double, [(number,) for number in range(50)])) == list(range(0, 100, 2))
    assert len(set(pool.map(Marked.process, [(number,) for number in range(80)]))) == 2
    assert pool.status == "2 of 2 replicas"


def test_there_are_as_many_replicas_as_have_room(start: Start) -> None:
    assert start().cluster.replicas == 4
    assert start(cpus_per_replica=1.0).cluster.replicas == 2


def test_a_replica_that_dies_loses_and_repeats_nothing(start: Start) -> None:
    pool = start(replicas=2)
    assert sorted(pool.map(Marked.die_once, [(number,) for number in range(8)])) == list(range(8))


def test_replicas_that_died_while_they_had_no_work_are_not_the_fault_of_the_next_task(start: Start) -> None:
    pool = start(replicas=4)
    while pool.status != "4 of 4 replicas":
        list(pool.map(Marked.process, [(number,) for number in range(20)]))
    pids = set(pool.map(Marked.process, [(number,) for number in range(40)]))
    assert len(pids) == 4
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    assert pool.call(Marked.double, 21) == 42


def test_work_that_ends_every_replica_ends_in_one_line(start: Start) -> None:
    with pytest.raises(WorkFailed, match="3 replicas in a row were lost over the same work") as caught:
        list(start(replicas=2).map(Marked.die, [(1,)]))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (CheckpointError("no such folder"), CheckpointError, "no such folder"),
        (UnknownName("policy", "x", ["y"]), UnmaskError, "unknown policy 'x'; known: y"),
        (MemoryError(), OutOfMemory, "no memory left"),
        (ZeroDivisionError("by zero"), WorkFailed, "ZeroDivisionError: by zero"),
    ],
)
def test_an_error_of_the_work_is_raised_here(start: Start, error: Exception, kind: type, said: str) -> None:
    pool = start(replicas=1)
    with pytest.raises(kind, match=said):
        pool.call(Marked.fail, error)
    assert pool.call(Marked.double, 4) == 8  # the replica lives on


def test_a_replica_that_dies_while_it_loads_is_tried_three_times(start: Start) -> None:
    with pytest.raises(WorkFailed, match="3 replicas in a row died while they started"):
        start(clusters.Unborn, replicas=1).call(Marked.double, 1)


def test_results_that_were_not_wanted_do_not_come_back_later(start: Start) -> None:
    pool = start(replicas=2)
    abandoned = pool.map(Marked.double, [(number,) for number in range(20)])
    next(abandoned)
    abandoned.close()
    assert sorted(pool.map(Marked.double, [(100,), (200,), (300,)])) == [200, 400, 600]


def test_a_cluster_without_room_is_one_line(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "TICK_S", 0.05)
    pool = start(replicas=1, cpus_per_replica=64.0)
    with pytest.raises(WorkFailed, match="each needs 64 CPUs and 0 GPUs, the cluster has 2 CPUs and 0 GPUs"):
        pool.call(Marked.double, 1)


@pytest.mark.parametrize(
    ("address", "kind", "said"),
    [
        ("127.0.0.1:9", WorkFailed, "no Ray cluster answers at 127.0.0.1:9"),
        ("no-such-host.invalid:6379", WorkFailed, "no Ray cluster answers at no-such-host"),
        ("ray://127.0.0.1:10001", UnmaskError, "HOST:PORT of its head node, or auto"),
        ("somewhere", UnmaskError, "HOST:PORT of its head node, or auto"),
    ],
)
def test_a_wrong_address_is_one_line_at_once(address: str, kind: type, said: str) -> None:
    import ray

    ray.shutdown()
    with pytest.raises(kind, match=said):
        Cluster(ClusterConfig(address=address))
