"""A server of two replicas on a real Ray cluster of two nodes: routing, back-pressure, draining and faults."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from subprocess import PIPE, Popen, run
from typing import Any

import pytest
from clusters import ENVIRONMENT, nodes
from openai import OpenAI
from serve.servers import FOREVER, until

import unmask
from unmask.errors import UnmaskError, WorkFailed
from unmask.flags import Model
from unmask.remote.cluster import ClusterConfig
from unmask.serve.config import ServerConfig
from unmask.serve.fleet import Fleet
from unmask.serve.served import Served as Loaded

pytestmark = [
    pytest.mark.slow,
    # Ray leaves sockets and pipes of the processes that it starts to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:Using extra keyword arguments on `Field`:DeprecationWarning"),  # Ray Serve's
]
PASSES = "unmask_forward_passes_total"
PROMPT = "Countdown: 3,4,5,12"
LONG = {"prompt": PROMPT, "max_tokens": 120, "decoding": {**FOREVER, "block_size": 4}, "stream": True}
SETTINGS = unmask.Settings(early_stop=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Served:
    """A fleet that runs in a thread."""

    def __init__(self, fleet: Fleet, said: list[str], ended: Future[None]) -> None:
        self.fleet, self.said, self.ended = fleet, said, ended
        self.port = fleet.config.port

    def send(self, path: str, body: Any = None) -> http.client.HTTPResponse:
        """The answer, of which nothing was read yet."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        raw = None if body is None else json.dumps(body).encode()
        connection.request("GET" if raw is None else "POST", path, raw, {"Content-Type": "application/json"})
        return connection.getresponse()

    def complete(self, **body: Any) -> http.client.HTTPResponse:
        return self.send("/v1/completions", {"prompt": PROMPT, "max_tokens": 4, **body})

    def samples(self, name: str) -> dict[str, float]:
        """A metric without other labels, by replica."""
        page = self.send("/metrics").read().decode()
        return {found[1]: float(found[2]) for found in re.finditer(rf'{name}{{replica="(\w+)"}} (\S+)', page)}

    def scale(self, replicas: int) -> None:
        """What Ray's dashboard does when it is asked to scale; it does not run here."""
        import ray
        from ray.serve._private.common import DeploymentID

        controller = ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
        ray.get(controller.update_deployment_replicas.remote(DeploymentID("unmask", "unmask"), replicas))

    def replicas(self) -> int:
        return len(self.samples("unmask_queue_texts"))

    def wait_until_both_work(self) -> None:
        """Ask until each of two replicas has decoded something: then the proxy knows them."""
        before = self.samples(PASSES)

        def worked() -> bool:
            assert self.complete().status == 200
            now = self.samples(PASSES)
            return len(now) == 2 and all(now[name] > before.get(name, 0) for name in now)

        until(worked, 90)

    def open_two(self, **changes: Any) -> list[http.client.HTTPResponse]:
        """Two long streams, of which each replica decodes one."""
        before = self.samples(PASSES)
        streams = [self.send("/v1/completions", {**LONG, **changes}) for _ in "ab"]
        until(lambda: all(passes > before[name] for name, passes in self.samples(PASSES).items()), 30)
        return streams


@contextmanager
def running(address: str, **config: Any) -> Iterator[Served]:
    said, ready = [], threading.Event()

    def say(line: str) -> None:
        said.append(line)
        ready.set()

    how = {"cluster": ClusterConfig(address=address, replicas=2), "say": say}
    chosen = ServerConfig(port=free_port(), **config)
    fleet = Fleet(partial(Loaded.load, Model(model="tiny", device="cpu").open, chosen, SETTINGS), chosen, **how)
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(fleet.run)
        try:
            until(lambda: ready.is_set() or ended.done(), 90)
            if not ready.is_set():
                ended.result()
            yield Served(fleet, said, ended)
        finally:
            fleet.handle_exit(2, None)
            fleet.handle_exit(2, None)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    with nodes(2) as found:
        yield found


def test_a_model_that_cannot_be_loaded_is_one_line(cluster):
    config, where = ServerConfig(port=free_port()), ClusterConfig(address=cluster.address, replicas=2)
    make = partial(Loaded.load, Model(model="./no/such/folder").open, config, SETTINGS)
    fleet = Fleet(make, config, cluster=where, say=print)
    with pytest.raises(UnmaskError, match=r"^\./no/such/folder: there is no such folder"):
        fleet.run()


@pytest.fixture(scope="module")
def served(cluster) -> Iterator[Served]:
    with running(cluster.address, max_batch_size=2, max_queue=2, grace_s=20.0) as found:
        yield found


def test_two_replicas_answer_and_streams_stay_in_order(served):
    assert served.said == [f"serving tiny at http://127.0.0.1:{served.port}, 2 replicas"]
    prompts = [f"Countdown: 3,4,5,{number}" for number in range(10, 16)]
    expected = unmask.load("tiny", device="cpu").generate(prompts, settings=SETTINGS, max_tokens=32)
    before = served.samples("unmask_kept_tokens_total")
    with OpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key="none", timeout=60) as client:

        def ask(prompt: str) -> str:
            stream = client.completions.create(model="tiny", prompt=prompt, max_tokens=32, stream=True)
            return "".join(chunk.choices[0].text for chunk in stream)

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(ask, prompts)) == [output.text for output in expected]
    assert len(before) == 2
    until(lambda: all(tokens > before[name] for name, tokens in served.samples("unmask_kept_tokens_total").items()))


def test_full_queues_answer_429_until_clients_leave(served):
    streams = []
    for _ in range(30):
        streams.append(served.send("/v1/completions", LONG))
        if streams[-1].status == 429:
            break
    full = streams.pop()
    assert full.status == 429
    assert full.headers["Retry-After"] == "1"
    assert json.loads(full.read())["error"]["code"] == "queue_full"
    assert len(streams) >= 4
    assert {stream.status for stream in streams} == {200}
    assert [served.send(path).status for path in ("/health", "/health/live", "/metrics")] == [200, 200, 200]
    for stream in streams:
        stream.close()
    until(lambda: served.complete().status == 200, 30)


def test_metrics_of_all_replicas_come_from_whichever_is_asked(served):
    pages = [served.samples("unmask_queue_texts").keys() for _ in range(6)]
    assert len(pages[0]) == 2
    assert all(page == pages[0] for page in pages)
    text = served.send("/metrics").read().decode()
    assert re.search(r'unmask_http_requests_total\{replica="\w+",route="/metrics",status="200"\} ', text)
    assert text.count("# TYPE unmask_queue_texts gauge") == 1


def test_a_replica_that_is_scaled_away_ends_its_streams(served):
    streams = served.open_two(max_tokens=60)
    served.scale(1)
    assert [stream.read().endswith(b"data: [DONE]\n\n") for stream in streams] == [True, True]
    until(lambda: served.replicas() == 1, 30)
    assert served.complete().status == 200
    served.scale(2)
    served.wait_until_both_work()


def test_a_second_server_on_the_same_cluster_is_one_line(served, cluster):
    config, where = ServerConfig(port=free_port()), ClusterConfig(address=cluster.address)
    with pytest.raises(WorkFailed, match=r"Ray Serve runs on this cluster already \(applications: unmask\)"):
        Fleet(served.fleet._make, config, cluster=where, say=print).run()


def test_a_node_killed_in_a_stream_breaks_it_and_the_other_replica_goes_on(served, cluster):
    streams = served.open_two()
    assert all(stream.readline().startswith(b"data: ") for stream in streams)
    (victim,) = cluster.worker_nodes
    with ThreadPoolExecutor(2) as pool:
        reading = {pool.submit(stream.read) for stream in streams}
        cluster.remove_node(victim, allow_graceful=False)
        ended, _ = wait(reading, 60, FIRST_COMPLETED)
        assert [type(future.exception()) for future in ended] == [http.client.IncompleteRead]
        with OpenAI(base_url=f"http://127.0.0.1:{served.port}/v1", api_key="none", timeout=60) as client:
            answer = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=4)
        assert answer.usage.completion_tokens
        (other,) = reading - ended
        assert other.result().endswith(b"data: [DONE]\n\n")
    until(lambda: served.replicas() == 1, 30)
    until(lambda: served.said[-1] == "1 of 2 replicas answer", 30)
    cluster.add_node(num_cpus=1)
    served.wait_until_both_work()


def test_a_command_that_is_stopped_while_ray_starts_ends_with_one_line():
    command = [sys.executable, "-m", "unmask", "serve", "--backend", "ray", "--model", "toy", "--replicas", "1"]
    options = {"stdout": PIPE, "stderr": PIPE, "text": True}
    with Popen([*command, "--port", "0"], env={**os.environ, **ENVIRONMENT}, **options) as process:
        until(lambda: run(["pgrep", "-P", str(process.pid), "raylet"], capture_output=True).stdout, 60)
        process.send_signal(signal.SIGTERM)  # before, Ray's own handlers ended the process with a trace
        ended = process.communicate(timeout=90)
    assert (process.returncode, *ended) == (1, "", "unmask: stopped by SIGTERM before the server was ready\n")


def test_a_command_whose_cluster_dies_ends_with_one_line_and_leaves_no_process():
    command = [sys.executable, "-m", "unmask", "serve", "--backend", "ray", "--model", "toy", "--replicas", "1"]
    options = {"stdout": PIPE, "stderr": PIPE, "text": True, "start_new_session": True}
    with Popen([*command, "--port", "0"], env={**os.environ, **ENVIRONMENT}, **options) as process:
        assert process.stderr.readline().startswith("unmask: serving toy at http://127.0.0.1:")
        gcs = run(["pgrep", "-P", str(process.pid), "gcs_server"], capture_output=True, text=True).stdout
        os.kill(int(gcs), signal.SIGKILL)
        out, err = process.communicate(timeout=90)
    assert (process.returncode, out) == (1, "")
    assert re.fullmatch(r"unmask: the Ray cluster at \S+ is lost: its head node does not answer\n", err)

    def left() -> list[str]:
        """Two agents of Ray stay for a minute: they try to tell the head node that all others are gone."""
        found = run(["ps", "-s", str(process.pid), "-o", "args="], capture_output=True, text=True).stdout.splitlines()
        return [line for line in found if "DashboardAgent" not in line and "RuntimeEnvAgent" not in line]

    until(lambda: not left(), 30)
