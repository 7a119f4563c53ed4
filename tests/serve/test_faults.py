"""What clients are told when parts of a server fail or end, under load; and that nothing is left behind."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from serve.servers import FOREVER, LONG, SHORT, counted, open_request, running, until

from unmask import policies
from unmask.models.toy import SENTENCE

SLOWLY = {"prompt": "Hi", "max_tokens": 40, "decoding": FOREVER}


@pytest.mark.parametrize("signals", [1, 2])
def test_every_request_is_answered_or_told_when_the_server_stops_under_load(held, signals):
    """Rows, a line behind them, streams and plain answers; the first few end in time, or none does."""
    held.model.pace_s = 0.005
    with running(held, max_batch_size=3, max_queue=64, grace_s=1.0) as found, ThreadPoolExecutor(24) as pool:
        bodies = [{**SLOWLY, "stream": bool(number % 2), "n": 1 + number % 3 // 2} for number in range(24)]
        answers = [pool.submit(found.send, "POST", "/v1/completions", body) for body in bodies]
        until(lambda: found.worker.under_way() == 24)
        held.model.gate.set()
        for _ in range(signals):
            found.server.handle_exit(15, None)
        ends = [end_of(*answer.result(60)) for answer in answers]
        found.thread.join(30)
        assert not found.thread.is_alive()
    assert set(ends) <= {"whole", "told"}
    assert "told" in ends
    assert found.worker.under_way() == 0


def end_of(status: int, _, text: str) -> str:
    """How an answer ended: complete, with word of the server's end, or in another way."""
    if status == 200 and (text.endswith("data: [DONE]\n\n") or '"usage"' in text):
        return "whole"
    return "told" if "shutting_down" in text else f"{status} {text[-200:]}"


@policies.register("test_raising")
@dataclass(frozen=True, slots=True, kw_only=True)
class Raising(policies.Policy):
    """Fails at the third pass over a text."""

    def select(self, view, state=None):
        if int(view.step.max()) >= 2:
            raise KeyError("a fault of the policy")
        return policies.get("fixed").select(view, state)


def test_a_policy_that_raises_is_named_and_the_server_goes_on(toy, caplog):
    with running(toy, policy=Raising()) as found:
        for stream in (False, True):
            status, _, text = found.send("POST", "/v1/completions", {**SHORT, "stream": stream})
            last = text.removesuffix("\n\n").split("\n\n")[-1].removeprefix("data: ")
            error = json.loads(last)["error"]
            assert (status, error["code"]) == (200 if stream else 500, "engine_failed")
            assert "the policy test_raising failed: 'a fault of the policy'" in error["message"]
        answer = found.post({**SHORT, "decoding": {"policy": "fixed"}})[1]
        assert answer["choices"][0]["text"] == SENTENCE[:6]
        assert found.send("GET", "/health/ready")[0] == 200


def test_clients_that_vanish_at_every_stage_leave_nothing(held):
    """With half a body, while they wait, while they are decoded, and in the middle of a stream."""
    held.model.pace_s = 0.002
    held.model.gate.set()
    with running(held, max_batch_size=2, max_queue=64) as found:
        for number in range(24):
            half, stream = number % 4 == 1, number % 3 == 0
            connection = open_request(found.url, {**LONG, "stream": stream}, sent=9 if half else None)
            if stream and not half:
                assert connection.recv(12) == b"HTTP/1.1 200"
            connection.close()
        until(lambda: counted(found, 499) == 24, 30)
        until(lambda: found.worker.under_way() == 0 and found.worker.stalled_s() == 0.0, 30)
        assert not found.server.connections.connections
        assert not found.server.server_state.tasks
        assert found.post(SHORT)[0] == 200


def resident_kib() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


@pytest.mark.slow
def test_memory_is_flat_over_many_requests(toy):
    """A request that left its canvas, its events or its answer behind would take some 15 KiB with it."""
    body = {"prompt": "x" * 500, "max_tokens": 16}
    with running(toy) as found, ThreadPoolExecutor(4) as pool:

        def ask(number: int) -> int:
            if number % 5 == 0:
                open_request(found.url, body).close()
            return found.send("POST", "/v1/completions", {**body, "stream": number % 2 == 0})[0]

        assert set(pool.map(ask, range(300))) == {200}
        before = resident_kib()
        assert set(pool.map(ask, range(600))) == {200}
        assert resident_kib() - before < 5 * 1024
