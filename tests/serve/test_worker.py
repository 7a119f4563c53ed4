"""The engine thread: its line and the limit of it, clients that leave, work that fails, and the end of a server."""

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from openai import APIStatusError, InternalServerError, RateLimitError
from serve.servers import running, until

import unmask
from unmask import Settings, policies
from unmask.errors import UnmaskError
from unmask.models.toy import SENTENCE
from unmask.serve.config import ServerConfig
from unmask.serve.run import Server, bind

LONG = {"prompt": "Hi", "max_tokens": 2000, "decoding": {"policy": "fixed"}}  # as many passes as tokens
SHORT = {"prompt": "Hi", "max_tokens": 6}


def open_request(url: str, body: dict) -> socket.socket:
    """A connection on which a request was sent and nothing was read."""
    host, port = url.removeprefix("http://").split(":")
    raw = json.dumps(body).encode()
    connection = socket.create_connection((host, int(port)), timeout=30)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(raw)}"
    connection.sendall(f"{head}\r\n\r\n".encode() + raw)
    return connection


def counted(found, status: int) -> float | None:
    return found.worker.metrics.registry.get_sample_value(
        "unmask_http_requests_total", {"route": "/v1/completions", "status": str(status)}
    )


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_takes_its_request_with_it(held, stream):
    with running(held) as found:
        connection = open_request(found.url, {**LONG, "stream": stream})
        until(lambda: held.model.passes == 1)
        if stream:
            assert connection.recv(10).startswith(b"HTTP/1.1 2")
        connection.close()
        until(lambda: counted(found, 200 if stream else 499) == 1)
        held.model.gate.set()
        until(lambda: not found.worker._open)
        passes = held.model.passes
        assert passes < 20
        assert found.post(SHORT)[1]["choices"][0]["text"] == SENTENCE[:6]


def test_a_client_that_leaves_the_line_makes_room(held):
    with running(held, max_batch_size=1, max_queue=1) as found:
        first = open_request(found.url, LONG)
        until(lambda: held.model.passes == 1)
        second = open_request(found.url, SHORT)
        until(lambda: found.worker.waiting() == 1)
        assert found.post(SHORT)[0] == 429
        second.close()
        until(lambda: found.worker.waiting() == 0)
        with ThreadPoolExecutor(1) as pool:
            third = pool.submit(found.post, SHORT)
            until(lambda: found.worker.waiting() == 1)
            first.close()
            until(lambda: counted(found, 499) == 2)
            held.model.gate.set()
            assert third.result()[0] == 200


def test_a_full_queue_is_429_with_a_time_to_come_again(held):
    with running(held, max_batch_size=1, max_queue=2) as found, ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(found.post, SHORT)]
        until(lambda: held.model.passes == 1)
        answers += [pool.submit(found.post, SHORT) for _ in range(2)]
        until(lambda: found.worker.waiting() == 2)
        status, headers, text = found.send("POST", "/v1/completions", SHORT)
        assert status == 429
        assert headers["Retry-After"] == "1"
        error = json.loads(text)["error"]
        assert (error["type"], error["code"]) == ("rate_limit_error", "queue_full")
        with pytest.raises(RateLimitError):
            found.client().completions.create(model="toy", **SHORT)
        held.model.gate.set()
        assert [answer.result()[0] for answer in answers] == [200, 200, 200]


def test_all_choices_of_a_request_wait_or_none(held):
    with running(held, max_batch_size=1, max_queue=3) as found, ThreadPoolExecutor(2) as pool:
        first = pool.submit(found.post, SHORT)
        until(lambda: held.model.passes == 1)
        second = pool.submit(found.post, {**SHORT, "n": 2})
        until(lambda: found.worker.waiting() == 2)
        assert found.post({**SHORT, "n": 2})[0] == 429
        assert found.worker.waiting() == 2
        held.model.gate.set()
        assert len(second.result()[1]["choices"]) == 2
        assert first.result()[0] == 200


FAILURES = {
    "a fault": (RuntimeError("boom\nsecret"), 500, "decoding failed: RuntimeError", "engine_failed"),
    "ours": (UnmaskError("the model is tired"), 500, "the model is tired", "engine_failed"),
    "memory": (torch.OutOfMemoryError("CUDA out of memory"), 503, "ran out of memory", "out_of_memory"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_a_failure_is_told_to_those_in_the_batch_and_the_rest_goes_on(case, held, caplog):
    failure, status, says, code = FAILURES[case]
    with running(held, max_batch_size=2) as found, ThreadPoolExecutor(3) as pool:
        both = pool.submit(found.post, {**SHORT, "n": 2})
        until(lambda: held.model.passes == 1)
        waiting = pool.submit(found.post, SHORT)
        until(lambda: found.worker.waiting() == 1)
        held.model.failure = failure
        held.model.gate.set()
        answered, body = both.result()
        assert answered == status
        assert says in body["error"]["message"]
        assert "secret" not in body["error"]["message"]
        assert (body["error"]["type"], body["error"]["code"]) == ("server_error", code)
        assert waiting.result()[1]["choices"][0]["text"] == SENTENCE[:6]
        assert found.worker.accepting
    assert "decoding failed" in caplog.text


def test_a_failure_ends_a_stream_with_an_error_frame(held, caplog):
    with running(held) as found, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(found.send, "POST", "/v1/completions", {**LONG, "stream": True})
        until(lambda: held.model.passes == 1)
        held.model.failure = RuntimeError("boom")
        held.model.gate.set()
        status, _, text = answer.result()
        assert status == 200
        assert json.loads(text.split("\n\n")[-2].removeprefix("data: "))["error"]["type"] == "server_error"
        assert "[DONE]" not in text
        held.model.failure = RuntimeError("boom")
        stream = found.client().completions.create(model="toy", prompt="Hi", stream=True)
        with pytest.raises(Exception, match="decoding failed"):
            list(stream)
    assert "boom" in caplog.text


def test_an_engine_that_takes_nobody_does_not_turn_for_ever(held, monkeypatch, caplog):
    def broken(waiting, *, rows):
        raise RuntimeError("no device")

    monkeypatch.setattr(held, "flow", broken)
    with running(held) as found:
        assert found.post(SHORT)[0] == 500
        assert found.post(SHORT)[0] == 500
        with pytest.raises(InternalServerError):
            found.client().completions.create(model="toy", **SHORT)


def test_what_is_under_way_is_finished_when_the_server_stops(held):
    with running(held, grace_s=20.0) as found, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(found.post, SHORT)
        until(lambda: held.model.passes == 1)
        found.server.stop()
        until(lambda: not found.worker.accepting)
        held.model.gate.set()
        assert answer.result()[1]["choices"][0]["text"] == SENTENCE[:6]
        found.thread.join(10)
        assert not found.thread.is_alive()
        with pytest.raises(OSError, match="refused"):
            found.send("GET", "/health")


@pytest.mark.parametrize("stream", [False, True])
def test_what_is_not_done_in_time_is_dropped(held, stream):
    with running(held, grace_s=0.3) as found, ThreadPoolExecutor(1) as pool:
        held.model.pace_s = 0.02
        held.model.gate.set()
        answer = pool.submit(found.send, "POST", "/v1/completions", {**LONG, "stream": stream})
        until(lambda: held.model.passes > 3)
        began = time.monotonic()
        found.server.stop()
        status, _, text = answer.result()
        assert (status, "shutting down" in text) == (200 if stream else 503, True)
        found.thread.join(10)
        assert not found.thread.is_alive()
        assert time.monotonic() - began < 5
        assert held.model.passes < 1000


def test_new_work_is_refused_while_the_server_stops(held):
    with running(held) as found:
        assert found.send("GET", "/health")[2] == '{"status": "ok"}'
        found.worker.refuse()
        with pytest.raises(APIStatusError, match="shutting down") as refused:
            found.client().completions.create(model="toy", **SHORT)
        assert refused.value.status_code == 503
        assert found.send("GET", "/health")[0] == 503


def test_warm_up_is_done_with_the_servers_defaults_before_anybody_is_answered(toy, monkeypatch):
    asked = []
    monkeypatch.setattr(toy, "warmup", lambda **given: asked.append((threading.current_thread().name, given)))
    with running(toy, policy="threshold", max_batch_size=3) as found:
        assert found.send("GET", "/health")[0] == 200
        assert len(asked) == 1
        name, given = asked[0]
        assert name == "unmask-engine"
        assert given == {
            "prompt_tokens": 512,
            "batch_size": 3,
            "policy": found.server.policy,
            "settings": found.server.settings,
        }
    with running(toy, warmup_prompt_tokens=100):
        assert asked[1][1]["prompt_tokens"] == 100
    with running(toy, warmup_prompt_tokens=0) as found:
        assert len(asked) == 2
        assert not any("warmed up" in line for line in found.said)


def test_nobody_can_connect_before_the_warm_up_is_done(toy, monkeypatch):
    """The port is taken from the start, but nobody listens there yet."""
    refused = []

    def warmup(**_):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=5)
        refused.append(port)

    with bind(ServerConfig(port=0)) as probe:
        port = probe.getsockname()[1]
    monkeypatch.setattr(toy, "warmup", warmup)
    with running(toy, port=port) as found:
        assert found.send("GET", "/health")[0] == 200
    assert refused == [port]


def test_warm_up_fits_a_model_with_few_positions(make_llada):
    llm = unmask.load(str(make_llada()), device="cpu")  # 128 positions
    with running(llm, settings=Settings(max_tokens=100)) as found:
        assert found.post({"prompt": "the", "max_tokens": 3})[0] == 200


def test_a_warm_up_that_fails_is_the_servers_failure(toy, monkeypatch):
    def warmup(**_):
        raise UnmaskError("no room to warm up")

    monkeypatch.setattr(toy, "warmup", warmup)
    config = ServerConfig(port=0)
    server = Server(toy, config, policy=policies.get("fixed"), settings=Settings(), say=print)
    with bind(config) as bound, pytest.raises(UnmaskError, match="no room"):
        server.run(bound)
