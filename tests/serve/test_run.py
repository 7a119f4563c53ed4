"""A server from its start to its end: the warm-up, the port, requests that are under way, signals."""

import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from openai import APIStatusError
from serve.servers import LONG, SHORT, open_request, running, status_of, until
from starlette.responses import Response

import unmask
from unmask import Settings, policies
from unmask.errors import UnmaskError, WorkFailed
from unmask.models.toy import SENTENCE
from unmask.serve.config import ServerConfig
from unmask.serve.run import Server, bind, url_of
from unmask.serve.served import Served
from unmask.serve.worker import Worker


def test_a_server_whose_model_cannot_be_run_any_more_ends(held, caplog):
    config = ServerConfig(port=0)
    ready = threading.Event()
    server = Server(Served(held, config, policy=policies.get("fixed"), settings=Settings()), say=lambda _: ready.set())
    held.model.gate.set()
    with bind(config) as bound, ThreadPoolExecutor(1) as pool:
        ended = pool.submit(server.run, bound)
        assert ready.wait(30)
        held.model.lost = True
        status = status_of(url_of(bound), SHORT)
        with pytest.raises(WorkFailed, match="can no longer be run"):
            ended.result(20)
    assert status == 500
    assert not server.worker.accepting
    assert "no device" in caplog.text


def test_what_is_under_way_is_finished_when_the_server_stops(held):
    with running(held, grace_s=20.0) as found, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(found.post, SHORT)
        until(lambda: held.model.passes == 1)
        found.server.stop()
        until(lambda: len(found.said) == 2)
        assert found.said[1] == "1 request has 20 s to be finished; a second signal drops what is left"
        assert not found.worker.accepting
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
        found.server.stop()
        status, _, text = answer.result()
        assert (status, "shutting down" in text) == (200 if stream else 503, True)
        found.thread.join(30)
        assert not found.thread.is_alive()
        assert held.model.passes < 2000


def test_a_body_that_is_still_on_its_way_is_dropped_when_the_server_stops(toy):
    with running(toy, grace_s=3600.0) as found:
        connection = open_request(found.url, SHORT, sent=5)
        until(lambda: bool(found.server.served.uploads))
        found.server.stop()
        answer = connection.makefile().read()
        assert answer.startswith("HTTP/1.1 503")
        assert "shutting_down" in answer
        connection.close()
        found.thread.join(30)
        assert not found.thread.is_alive()


def test_the_second_signal_ends_whatever_there_is(toy, caplog):
    """Also a request that no part of the server knows how to end."""
    entered = threading.Event()

    async def stuck(request):
        entered.set()
        while (await request.receive())["type"] != "http.disconnect":
            pass
        return Response()

    with running(toy, grace_s=3600.0) as found:
        found.server.config.app.router.add_route("/stuck", stuck)
        connection = socket.create_connection(("127.0.0.1", int(found.url.rpartition(":")[2])), timeout=30)
        connection.sendall(b"GET /stuck HTTP/1.1\r\nHost: x\r\n\r\n")
        assert entered.wait(10)
        found.server.handle_exit(signal.SIGTERM, None)
        until(lambda: found.server.stopping is not None)
        found.server.handle_exit(signal.SIGTERM, None)
        found.thread.join(30)
        assert not found.thread.is_alive()
        connection.close()
    assert caplog.text == ""


def test_two_signals_at_once_count_as_two(held):
    with running(held, grace_s=3600.0) as found, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(found.post, SHORT)
        until(lambda: held.model.passes == 1)
        for _ in range(2):
            found.server.handle_exit(signal.SIGTERM, None)
        assert answer.result(30)[0] == 503
        held.model.gate.set()
        assert len(found.said) == 1


def test_nothing_is_said_of_requests_when_none_is_under_way(toy):
    with running(toy) as found:
        assert found.post(SHORT)[0] == 200
        found.server.stop()
        found.thread.join(10)
        assert len(found.said) == 1


def test_the_requests_under_way_are_counted_and_not_their_texts(held):
    with running(held, max_batch_size=2) as found, ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(found.post, {**SHORT, "n": 2}) for _ in range(2)]
        gone = open_request(found.url, SHORT)
        until(lambda: found.worker.under_way() == 3)
        gone.close()
        until(lambda: found.worker.under_way() == 2)
        held.model.gate.set()
        assert [answer.result()[0] for answer in answers] == [200, 200]
        until(lambda: found.worker.under_way() == 0)


def test_texts_for_which_the_model_has_no_room_are_refused_at_the_start(toy, make_llada):
    def start(llm, settings):
        return Server(Served(llm, ServerConfig(port=0), policy=policies.get("fixed"), settings=settings), say=print)

    start(toy, Settings(max_tokens=4095))
    with pytest.raises(UnmaskError, match="max_tokens=5000 leaves no room for a prompt in the 4096 positions of toy"):
        start(toy, Settings(max_tokens=5000))
    with pytest.raises(UnmaskError, match="max_tokens=256 leaves no room for a prompt in the 128 positions"):
        start(unmask.load(str(make_llada()), device="cpu"), Settings())


def test_new_work_is_refused_while_the_server_stops(held):
    with running(held) as found:
        assert found.send("GET", "/health")[2] == '{"status": "ok"}'
        found.worker.refuse()
        with pytest.raises(APIStatusError, match="shutting down") as refused:
            found.client().completions.create(model="toy", **SHORT)
        assert refused.value.status_code == 503
        assert found.send("GET", "/health")[0] == 503


def test_warm_up_is_done_with_the_servers_defaults_before_the_first_answer(toy, monkeypatch):
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
            "policy": found.server.served.policy,
            "settings": found.server.served.settings,
        }
    with running(toy, warmup_prompt_tokens=100):
        assert asked[1][1]["prompt_tokens"] == 100
    with running(toy, warmup_prompt_tokens=0):
        assert len(asked) == 2


def test_clients_cannot_connect_before_the_warm_up_is_done(toy, monkeypatch):
    """The port is taken from the start, but no process listens there yet."""
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


def test_an_interrupt_does_not_wait_for_the_end_of_the_warm_up(toy):
    worker, go, preparing, prepared = Worker(toy, rows=1, max_queue=1), threading.Event(), [], []

    def prepare():
        preparing.append(threading.current_thread())
        prepared.append(go.wait(30))

    starting = threading.Thread(target=worker.start, args=(prepare,))
    starting.start()
    until(lambda: bool(preparing))
    worker.stop()
    assert not prepared
    go.set()
    for thread in (starting, *preparing):
        thread.join(10)
        assert not thread.is_alive()


def test_the_server_that_listens_first_has_the_port(toy):
    with bind(ServerConfig(port=0)) as first:
        config = ServerConfig(port=first.getsockname()[1])
        with bind(config) as second:
            first.listen()
            server = Server(Served(toy, config, policy=policies.get("fixed"), settings=Settings()), say=print)
            with pytest.raises(UnmaskError, match=f"port {config.port}: Address already in use"):
                server.run(second)


def test_warm_up_fits_a_model_with_few_positions(make_llada):
    llm = unmask.load(str(make_llada()), device="cpu")  # 128 positions
    with running(llm, settings=Settings(max_tokens=100)) as found:
        assert found.post({"prompt": "the", "max_tokens": 3})[0] == 200


def test_a_warm_up_that_fails_is_the_servers_failure(toy, monkeypatch):
    def warmup(**_):
        raise UnmaskError("no room to warm up")

    monkeypatch.setattr(toy, "warmup", warmup)
    config = ServerConfig(port=0)
    server = Server(Served(toy, config, policy=policies.get("fixed"), settings=Settings()), say=print)
    with bind(config) as bound, pytest.raises(UnmaskError, match="no room"):
        server.run(bound)
