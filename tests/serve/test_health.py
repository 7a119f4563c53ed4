"""What probes are told: whether the engine is stuck, and whether a request would be taken now."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from serve.servers import SHORT, running, until

ALL = ("/health", "/health/live", "/health/ready")


def statuses(found) -> list[int]:
    return [found.send("GET", path)[0] for path in ALL]


def code(found, path: str) -> str | None:
    return json.loads(found.send("GET", path)[2]).get("error", {}).get("code")


@pytest.mark.parametrize("path", ALL)
def test_health_is_open_without_the_key_and_can_be_asked_for_its_head(path, toy):
    with running(toy, api_keys=("sesame",)) as found:
        status, headers, text = found.send("HEAD", path)
        assert (status, headers["Content-Type"], text) == (200, "application/json", "")
        assert found.send("GET", path)[2] == '{"status": "ok"}'
        assert found.send("GET", f"{path}/")[0] == 401


def test_a_stuck_engine_is_told_and_health_comes_back_with_the_next_pass(held):
    with running(held, stall_s=0.3) as found, ThreadPoolExecutor(1) as pool:
        assert statuses(found) == [200, 200, 200]
        answer = pool.submit(found.post, SHORT)
        until(lambda: statuses(found) == [503, 503, 503])
        assert {code(found, path) for path in ALL} == {"stalled"}
        assert found.worker.metrics.registry.get_sample_value("unmask_engine_stalled_seconds") > 0.3
        held.model.gate.set()
        assert answer.result()[0] == 200
        until(lambda: statuses(found) == [200, 200, 200])
        assert found.worker.stalled_s() == 0.0


def test_a_stuck_engine_is_told_also_when_its_client_has_left(held):
    with running(held, stall_s=0.3) as found, ThreadPoolExecutor(1) as pool:
        late = pool.submit(found.send, "POST", "/v1/completions", SHORT)
        until(lambda: held.model.passes == 1)
        found.worker.drop_all()
        assert late.result()[0] == 503
        until(lambda: code(found, "/health/live") == "stalled")
        held.model.gate.set()
        until(lambda: found.send("GET", "/health/live")[0] == 200)
        assert code(found, "/health") == "shutting_down"


def test_a_full_queue_is_healthy_but_not_ready(held):
    with running(held, max_batch_size=1, max_queue=1) as found, ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(found.post, SHORT)]
        until(lambda: held.model.passes == 1)
        answers.append(pool.submit(found.post, SHORT))
        until(lambda: found.worker.waiting() == 1)
        assert statuses(found) == [200, 200, 503]
        assert code(found, "/health/ready") == "queue_full"
        held.model.gate.set()
        assert [answer.result()[0] for answer in answers] == [200, 200]
        assert statuses(found) == [200, 200, 200]


def test_a_server_that_stops_is_alive_but_not_ready(held):
    with running(held) as found:
        found.worker.refuse()
        assert statuses(found) == [503, 200, 503]
        assert code(found, "/health/ready") == "shutting_down"
