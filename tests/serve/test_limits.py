"""Limits that a server keeps: tokens, time, connections, and a queue that is fair."""

import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from openai import BadRequestError, InternalServerError
from serve.servers import LONG, SHORT, connected, counted, open_request, running, until

from unmask.models.toy import SENTENCE

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def error_in(answer: bytes) -> tuple[int, dict]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]


def read_all(connection: socket.socket) -> bytes:
    with connection, connection.makefile("rb") as stream:
        return stream.read()


def dropped(found, reason: str) -> float | None:
    return found.worker.metrics.registry.get_sample_value("unmask_connections_dropped_total", {"reason": reason})


def test_long_prompts_and_large_requests_are_400_with_a_code_of_their_own(toy):
    with running(toy, max_prompt_tokens=5, max_total_tokens=20) as found:
        ask = found.client().completions.create
        with pytest.raises(BadRequestError, match="the prompt has 6 tokens; this server takes at most 5") as wrong:
            ask(model="toy", prompt=["Hi", "Hello"], max_tokens=2)
        assert wrong.value.code == "context_length_exceeded"
        with pytest.raises(BadRequestError, match="2 texts of 22 tokens, prompts and max_tokens together") as wrong:
            ask(model="toy", prompt="Hi", n=2, max_tokens=8)
        assert wrong.value.code == "too_many_tokens"
        assert len(ask(model="toy", prompt="Hi", n=2, max_tokens=7).choices) == 2
        assert found.post({"messages": [{"role": "user", "content": "Hi"}]}, "/v1/chat/completions")[0] == 400


def test_a_request_that_takes_too_long_is_504_and_frees_its_row(held):
    with running(held, request_timeout_s=0.3, max_batch_size=1) as found:
        status, headers, text = found.send("POST", "/v1/completions", LONG)
        assert (status, headers["x-should-retry"]) == (504, "false")
        error = json.loads(text)["error"]
        assert (error["type"], error["code"]) == ("server_error", "timeout")
        waits = found.client(max_retries=2).completions  # which the header keeps from asking again
        with pytest.raises(InternalServerError, match="not finished in time"):
            waits.create(model="toy", **SHORT)
        assert counted(found, 504) == 2
        assert found.worker.under_way() == 0
        held.model.gate.set()
        until(lambda: found.post(SHORT)[0] == 200)
        assert held.model.passes < 100  # of the 2000 that the first text would have taken


def test_a_stream_that_takes_too_long_ends_with_an_error_frame(held):
    held.model.pace_s = 0.02
    held.model.gate.set()
    with running(held, request_timeout_s=0.3) as found:
        status, _, text = found.send("POST", "/v1/completions", {**LONG, "stream": True})
        *_, first_to_last, last = text.removesuffix("\n\n").split("\n\n")
        assert (status, json.loads(last.removeprefix("data: "))["error"]["code"]) == (200, "timeout")
        assert json.loads(first_to_last.removeprefix("data: "))["choices"][0]["finish_reason"] is None


def test_a_prompt_that_takes_too_long_to_encode_is_504(toy, monkeypatch):
    done = threading.Event()
    monkeypatch.setattr(toy, "request", lambda *_, **__: done.wait(30))
    with running(toy, request_timeout_s=0.2) as found:
        assert found.post(SHORT)[0] == 504
        done.set()


def test_without_a_limit_a_request_may_take_its_time(held):
    with running(held, request_timeout_s=0.0) as found, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(found.post, SHORT)
        until(lambda: held.model.passes == 1)
        held.model.gate.set()
        assert answer.result()[0] == 200


def test_a_head_that_does_not_come_is_408_and_a_connection_without_one_is_closed(toy):
    with running(toy, client_timeout_s=1.5) as found:
        silent, kept, begun, dripping = (connected(found.url) for _ in range(4))
        begun.sendall(HEAD)
        for connection in (kept, dripping):
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(12) == b"HTTP/1.1 200"
        dripping.sendall(b"GET /hea")
        status, error = error_in(read_all(begun))
        assert (status, error["code"]) == (408, "timeout")
        assert "head of the request did not arrive within 1.5 s" in error["message"]
        assert b"HTTP/1.1 408" in read_all(dripping)
        assert b"HTTP/1.1" not in read_all(kept)
        assert read_all(silent) == b""


def test_a_body_that_does_not_come_is_408_and_the_connection_is_closed(toy):
    with running(toy, client_timeout_s=1.0) as found:
        status, error = error_in(read_all(open_request(found.url, SHORT, sent=5)))
        assert (status, error["code"]) == (408, "timeout")
        assert "body" in error["message"]
        assert counted(found, 408) == 1
        assert found.post(SHORT)[0] == 200


def test_a_client_that_does_not_read_is_dropped_and_its_row_is_freed(held):
    """Each frame has the name of the model; so long a name fills the buffers of both ends within some passes."""
    held.model.pace_s = 0.005
    held.model.gate.set()
    with running(held, client_timeout_s=1.0, served_model_name="x" * 200_000) as found:
        with open_request(found.url, {**LONG, "stream": True}):
            until(lambda: counted(found, 499) == 1, 60)
        until(lambda: found.worker.under_way() == 0)
        assert dropped(found, "slow") == 1
        assert held.model.passes < 1500  # of 2000


def test_a_connection_too_many_takes_the_place_of_the_one_that_is_idle_longest(toy):
    with running(toy, max_connections=2) as found:
        first, second = connected(found.url), connected(found.url)
        until(lambda: len(found.server.connections.connections) == 2)
        assert found.send("GET", "/health")[0] == 200
        assert read_all(first) == b""
        assert dropped(found, "idle") == 1
        second.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        assert read_all(second).startswith(b"HTTP/1.1 200")


def test_where_every_connection_has_a_request_a_further_one_gets_503(held):
    with running(held, max_connections=2) as found:
        busy = [open_request(found.url, SHORT) for _ in range(2)]
        until(lambda: found.worker.under_way() == 2)
        status, error = error_in(read_all(connected(found.url)))
        assert (status, error["code"]) == (503, "too_busy")
        held.model.gate.set()
        assert [connection.recv(12) for connection in busy] == [b"HTTP/1.1 200"] * 2
        for connection in busy:
            connection.close()
        until(lambda: found.send("GET", "/health")[0] == 200)


def test_a_request_of_several_texts_is_taken_wherever_one_of_a_single_text_would_be(held):
    """Else single texts would take each place that becomes free, and the larger request would be refused for ever."""
    with running(held, max_batch_size=1, max_queue=2) as found, ThreadPoolExecutor(4) as pool:
        singles = [pool.submit(found.post, SHORT)]
        until(lambda: held.model.passes == 1)
        singles.append(pool.submit(found.post, SHORT))
        until(lambda: found.worker.waiting() == 1)
        pair = pool.submit(found.post, {**SHORT, "n": 2})
        until(lambda: found.worker.waiting() == 3)
        assert [found.post({**SHORT, "n": n})[0] for n in (1, 2)] == [429, 429]
        held.model.gate.set()
        assert [choice["text"] for choice in pair.result()[1]["choices"]] == [SENTENCE[:6]] * 2
        assert [single.result()[0] for single in singles] == [200, 200]
