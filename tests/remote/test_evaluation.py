"""`unmask eval --backend ray` on a cluster of two nodes: equal to a local run, whatever is killed on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from unmask.errors import CheckpointError
from unmask.evals.recipe import Recipe, parse
from unmask.evals.run import Progress, run
from unmask.evals.store import cells_of
from unmask.remote import ClusterConfig
from unmask.remote.executor import RayExecutor

pytestmark = pytest.mark.slow

VALUES: dict[str, Any] = {
    "model": "toy",
    "policies": ["threshold", {"name": "fixed", "tokens_per_pass": 8}],
    "settings": {"max_tokens": 16},
    "tasks": ["countdown-3"],
    "limit": 60,
    "batch_size": 2,
    "device": "cpu",
}


def recipe_of(**changes: Any) -> Recipe:
    return parse(VALUES | changes)


def untimed(folder: Path) -> dict[str, Any]:
    found = {}
    for cell in cells_of(folder):
        rows = {number: replace(row, seconds={}) for number, row in cell.generations.items()}
        found[cell.cell.key] = (rows, cell.scores)
    return found


def items_of(folder: Path) -> list[list[int]]:
    """The ids in each cell's file, sorted, so that one that is missing or there twice would show."""
    files = sorted(folder.glob("cells/*/items.jsonl"))
    return [sorted(json.loads(line)["id"] for line in path.read_text().splitlines()) for path in files]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A local run that nothing disturbed."""
    folder = tmp_path_factory.mktemp("local") / "whole"
    run(recipe_of(), out=folder)
    return folder


def test_a_lost_node_loses_and_repeats_nothing_and_the_run_equals_a_local_one(
    cluster: Any, whole: Path, tmp_path: Path
) -> None:
    out, seen = tmp_path / "run", list[str]()

    def lose_a_node(now: Progress) -> None:
        seen.append(now.status)
        if len(cluster.list_all_nodes()) == 2:
            if now.status == "2 of 2 replicas":
                cluster.remove_node(cluster.others[0], allow_graceful=False)
            else:
                time.sleep(0.5)  # until the other replica has started

    load = partial(RayExecutor.load, cluster=ClusterConfig(address=cluster.address))
    with pytest.raises(CheckpointError, match=r"the replica on .*: no/such/folder"):
        run(recipe_of(model="no/such/folder"), out=tmp_path / "none", load=load)
    finished = run(recipe_of(), out=out, load=load, on_progress=lose_a_node)
    assert (finished.new_cells, finished.new_items) == (2, 120)
    assert untimed(out) == untimed(whole)
    assert items_of(out) == [list(range(60))] * 2
    assert all(cell.about["shared"] for cell in cells_of(out))  # replicas on one machine disturb each other's times
    assert len(cluster.list_all_nodes()) == 1, "the node was never lost"
    assert "1 of 2 replicas" in seen


def driver(out: Path, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "unmask", "eval", "--backend", "ray", "--out", str(out), *flags]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


def wait_for_items(out: Path, process: subprocess.Popen[str]) -> None:
    while not any(path.stat().st_size for path in out.glob("cells/*/items.jsonl")):
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.02)


def replicas_alive() -> list[str]:
    listed = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if "ray::Replica" in line]


class _Stop(Exception):
    pass


def _stop_beyond(items: int) -> Callable[[Progress], None]:
    def stop(now: Progress) -> None:
        if (now.number - 1) * 60 + now.done > items:
            raise _Stop

    return stop


def test_a_killed_driver_is_taken_up_by_either_backend_and_leaves_no_process(
    cluster: Any, whole: Path, tmp_path: Path
) -> None:
    recipe, out = tmp_path / "small.yaml", tmp_path / "run"
    recipe.write_text(json.dumps(VALUES))  # JSON is YAML
    before = set(replicas_alive())
    killed = driver(out, str(recipe), "--address", cluster.address)
    wait_for_items(out, killed)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    done = sum(map(len, items_of(out)))
    with pytest.raises(_Stop):
        run(recipe_of(), out=out, on_progress=_stop_beyond(done + 10))
    load = partial(RayExecutor.load, cluster=ClusterConfig(address=cluster.address))
    finished = run(recipe_of(), out=out, load=load)
    assert finished.new_items <= 120 - done - 10
    assert untimed(out) == untimed(whole)
    assert items_of(out) == [list(range(60))] * 2
    deadline = time.monotonic() + 60
    while set(replicas_alive()) - before and time.monotonic() < deadline:
        time.sleep(0.2)
    assert set(replicas_alive()) <= before


SLEEPY = """
import time
from unmask.types import Decision


class Sleepy:
    def select(self, view, state=None):
        time.sleep(0.02)
        return Decision(commit=view.masked & False, score=view.masked.float()), None
"""


@pytest.mark.parametrize("lost", ["its head node", "Ray's daemon on this machine"])
def test_a_lost_cluster_ends_the_command_with_one_line(cluster: Any, tmp_path: Path, lost: str) -> None:
    rule, out = tmp_path / "sleepy.py", tmp_path / "run"
    rule.write_text(SLEEPY)  # takes minutes, and little of the processor
    flags = ["--model", "toy", "--task", "countdown-3", "--policy", f"{rule}:Sleepy", "--limit", "500"]
    process = driver(out, *flags, "--batch-size", "2", "--address", cluster.address)
    wait_for_items(out, process)
    if lost == "its head node":
        cluster.remove_node(cluster.head_node, allow_graceful=False)
    else:
        cluster.head_node.kill_raylet(check_alive=False)
    _, said = process.communicate(timeout=120)
    if cluster.head_node is not None:
        cluster.remove_node(cluster.head_node, allow_graceful=False)
    assert process.returncode == 1
    lines = [line for line in said.splitlines() if line.startswith("unmask:")]
    assert f"is lost: {lost} does not answer" in lines[-1]
    assert sum(map(len, items_of(out))) > 0
