"""A server of several replicas on a Ray cluster: Ray Serve's proxy listens, the replica with the least load answers.

The server lives as long as the command that started it. Every wait has a bound, and its end is one line.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any, TypeVar

from unmask.errors import UnmaskError, WorkFailed, counted
from unmask.remote.cluster import Cluster, ClusterConfig, last_line, quiet
from unmask.serve.board import Board, Report
from unmask.serve.config import ServerConfig
from unmask.serve.ending import STOPPED, handling_signals, holding_sigterm
from unmask.serve.run import bind, farewell
from unmask.serve.served import Served

T = TypeVar("T")

NAME = "unmask"  # of the application on Ray Serve
TICK_S = 1.0
ANSWER_S = 10.0  # for an answer of Ray or Serve that takes milliseconds
START_S = 90.0  # for the proxy to listen, and for everything to end
PLACED_S = 60.0  # without room for every replica, before the server gives up
LOST_S = 60.0  # without any replica that answers
SHUTDOWNS = 3  # attempts: on a busy machine Ray Serve may fail while it ends
MARGIN_S = 5.0  # for replicas that drop requests to say so
MOST_LOSSES = 3  # of replicas that start, in a row
# A replica's own line answers 429. Serve hands on every request, or a second line would grow before the first.
MOST_REQUESTS = 100_000
MOST_WAITING = 1_000  # while there is no replica


class Fleet:
    """The replicas, from their start to their end; each is made where it runs. `say` gets lines for the terminal."""

    def __init__(
        self, make: Callable[[], Served], config: ServerConfig, *, cluster: ClusterConfig, say: Callable[[str], None]
    ) -> None:
        self.config, self.say = _with_port(config, cluster), say
        self._make, self._where = make, cluster
        self._signals: list[int] = []
        self._awake = SimpleQueue[None]()  # a signal may come while the main thread waits for it
        self._started = False  # Ray Serve, by us

    def run(self) -> None:
        """Serve until SIGINT or SIGTERM; raises WorkFailed if the cluster or all replicas are lost.

        A signal raises nothing: an error in the middle of Ray's code is lost, or ends the process in Ray's way.
        """
        with quiet(), handling_signals(self.handle_exit):
            with holding_sigterm():  # which Ray takes over, in Python and in C++
                self.cluster = Cluster(self._where)
                from ray import serve
            self._ray: Any = self.cluster.ray
            self._serve: Any = serve
            try:
                self._check_wanted()
                self._within(START_S, self._start)
                self._wait_until_ready()
                self._watch()
                self._drain()
            finally:
                self._close()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal asks to stop, the next to stop at once."""
        self._signals.append(sig)
        self._awake.put(None)

    def _check_wanted(self) -> None:
        """Raise if a signal came before the server was ready."""
        if signal.SIGINT in self._signals:
            raise KeyboardInterrupt
        if self._signals:
            raise WorkFailed(STOPPED)

    def _start(self) -> None:
        """Start the board, Ray Serve and the application; returns before the replicas are there."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        from unmask.serve.replica import Replica

        serve = self._serve
        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        if (found := serve.status()).proxies or found.applications:
            names = f"applications: {', '.join(found.applications) or 'none'}"
            raise WorkFailed(f"Ray Serve runs on this cluster already ({names}); `serve shutdown` there ends it")
        self._started = True
        here = NodeAffinitySchedulingStrategy(self._ray.get_runtime_context().get_node_id(), soft=False)
        self._board = self._ray.remote(Board).options(num_cpus=0, scheduling_strategy=here).remote()
        where = {"host": self.config.host, "port": self.config.port}
        log = {"enable_access_log": self.config.access_log}
        serve.start(proxy_location="HeadOnly", http_options=where, logging_config=log)
        deploy = serve.deployment(
            name=NAME,
            num_replicas=self.cluster.replicas,
            ray_actor_options={name: self.cluster.share[name] for name in ("num_cpus", "num_gpus")},
            max_ongoing_requests=MOST_REQUESTS,
            max_queued_requests=MOST_WAITING,
            backpressure_config={"status_code": 429, "retry_after_s": 1},
            graceful_shutdown_timeout_s=self.config.grace_s + MARGIN_S,
            graceful_shutdown_wait_loop_s=0.5,
            health_check_period_s=1.0,
            max_constructor_retry_count=MOST_LOSSES,
            request_router_config={"request_router_class": "unmask.serve.router.LeastLoadRouter"},
            logging_config=log,
        )
        bound = deploy(serve.ingress()(Replica)).bind(self._make, self._board)
        application = serve.RunTarget(bound, name=NAME, external_scaler_enabled=True)
        serve.run_many([application], wait_for_applications_running=False)

    def _wait_until_ready(self) -> None:
        began, wanted = time.monotonic(), self.cluster.replicas
        for reports, failures in self._overviews(TICK_S / 4):
            self._check_wanted()
            if failures:
                raise failures[0]
            if len(reports) < wanted and time.monotonic() - began > PLACED_S:
                placed = f"{len(reports)} of {wanted} replicas found room"
                raise WorkFailed(f"{placed}: {self.cluster.needs()}; give a smaller --replicas")
            names = [report.name for report in reports if report.name is not None]
            state = self._within(ANSWER_S, self._serve.status).applications[NAME]
            if state.status == "DEPLOY_FAILED":
                raise WorkFailed(f"the replicas could not be started: {last_line(state.message)}")
            if state.status == "RUNNING" and len(names) == wanted:
                host = f"[{self.config.host}]" if ":" in self.config.host else self.config.host
                self.say(f"serving {names[0]} at http://{host}:{self.config.port}, {counted(wanted, 'replica')}")
                return

    def _watch(self) -> None:
        """Wait for a signal; raise if the cluster or all replicas are lost."""
        before, told, answered = self.cluster.replicas, 0, time.monotonic()
        for reports, failures in self._overviews(TICK_S):
            if self._signals:
                return
            for failure in failures[told:]:
                self.say(f"a replica could not be replaced: {failure}")
            ready = sum(report.name is not None for report in reports)
            if ready != before:
                self.say(f"{ready} of {self.cluster.replicas} replicas answer")
            told, before = len(failures), ready
            if ready:
                answered = time.monotonic()
            elif time.monotonic() - answered > LOST_S:
                raise WorkFailed(f"for {LOST_S:g} s no replica has answered")

    def _drain(self) -> None:
        """Give requests under way the time that they have left."""
        grace_s, signals = self.config.grace_s, len(self._signals)
        said = signals > 1
        self._board.stop.remote(0.0 if said else grace_s)
        end = time.monotonic() + grace_s + MARGIN_S
        for reports, _ in self._overviews(TICK_S / 4):
            refusing = all(report.refusing for report in reports if report.name is not None)
            under_way = sum(report.under_way for report in reports)
            if time.monotonic() > end or (refusing and not under_way):
                return
            if refusing and not said:  # the number only falls from now on
                self.say(farewell(under_way, grace_s))
                said = True
            if len(self._signals) > signals:
                signals, end = len(self._signals), time.monotonic() + MARGIN_S
                self._board.stop.remote(0.0)

    def _overviews(self, pause_s: float) -> Iterator[tuple[list[Report], list[UnmaskError]]]:
        """What the board says, at once and after every pause, which a signal ends; raises if it is lost."""
        while True:
            self.cluster.check()
            try:
                found = self._ray.get(self._board.overview.remote(), timeout=ANSWER_S)
            except self._ray.exceptions.GetTimeoutError:
                continue
            except self._ray.exceptions.RayError as error:
                raise WorkFailed(f"the board of this server is lost: {last_line(error)}") from error
            yield found
            with contextlib.suppress(Empty):
                self._awake.get(timeout=pause_s)

    def _within(self, seconds: float, call: Callable[[], T]) -> T:
        """What a call of Ray Serve gives; it runs in a thread, which is left behind if the call takes longer."""
        result: Future[Any] = Future()

        def run() -> None:
            try:
                result.set_result(call())
            except BaseException as error:
                result.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        try:
            return result.result(seconds)
        except TimeoutError as error:
            raise WorkFailed(f"Ray Serve did not answer within {seconds:g} s") from error
        except (self._ray.exceptions.RayError, self._serve.exceptions.RayServeException) as error:
            raise WorkFailed(f"Ray Serve failed: {last_line(error)}") from error

    def _close(self) -> None:
        """End the replicas and Ray Serve, and leave the cluster."""
        for _ in range(SHUTDOWNS if self._started and not self.cluster.lost else 0):
            with contextlib.suppress(WorkFailed):  # the board ends with this process, and replicas without the board
                self._within(START_S, self._serve.shutdown)
                break
            time.sleep(TICK_S)
        self.cluster.close()


def _with_port(config: ServerConfig, cluster: ClusterConfig) -> ServerConfig:
    """The config with a port that is free on this machine, unless the head node may be another one."""
    if cluster.address is None:
        with bind(config) as bound:
            return replace(config, port=bound.getsockname()[1])
    if config.port == 0:
        raise UnmaskError("--port 0 cannot find a free port on another machine; give --port a number with --address")
    return config
