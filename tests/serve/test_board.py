"""What replicas of a server tell each other and the command, without a cluster."""

import subprocess
import sys

from unmask.errors import UnmaskError
from unmask.serve.board import STALE_S, Board, Report
from unmask.serve.metrics import Metrics, merged_page


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_process_of_the_board_need_not_wait_for_ray_serve():
    code = "import sys, unmask.serve.board; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_replica_counts_until_it_is_silent_for_too_long():
    clock = Clock()
    board = Board(clock)
    board.report("a", Report(name="toy", under_way=2), [])
    board.report("b", Report(), [])
    assert board.overview() == ([Report(name="toy", under_way=2), Report()], [])
    assert board.counters().keys() == {"a", "b"}
    clock.now += STALE_S + 1
    board.report("b", Report(name="toy", refusing=True), [])
    assert board.overview() == ([Report(name="toy", refusing=True)], [])
    assert board.counters().keys() == {"b"}


def test_a_replica_that_failed_is_not_there():
    board = Board()
    board.report("a", Report(), [])
    failure = UnmaskError("no such folder")
    board.fail("a", failure)
    assert board.overview() == ([], [failure])


def test_replicas_hear_how_long_requests_have_left():
    clock = Clock()
    board = Board(clock)
    assert board.report("a", Report(name="toy"), []) is None
    board.stop(30.0)
    clock.now += 10.0
    assert board.report("a", Report(name="toy"), []) == 20.0
    board.stop(0.0)
    assert board.report("a", Report(name="toy"), []) == 0.0


def test_a_merged_page_names_the_replica_of_each_sample():
    replicas = {"a": Metrics(), "b": Metrics()}
    replicas["a"].passes.inc(3)
    replicas["b"].requests.labels("/health", 200).inc()
    page = merged_page({name: metrics.registry.collect() for name, metrics in replicas.items()}).decode()
    assert 'unmask_forward_passes_total{replica="a"} 3.0' in page
    assert 'unmask_forward_passes_total{replica="b"} 0.0' in page
    assert 'unmask_http_requests_total{replica="b",route="/health",status="200"} 1.0' in page
    assert page.count("# HELP unmask_forward_passes_total") == 1
