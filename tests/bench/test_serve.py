"""`unmask bench serve`: a good server passes, and whatever a bad server does to an answer is counted."""

from __future__ import annotations

import json
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from serve.servers import running

import unmask
from unmask import cli
from unmask.bench.measure import Held, growth_of, held_by
from unmask.bench.serve import ENDS, bench_serve, lone_answer
from unmask.bench.serve_client import Ask, Client, asks_of
from unmask.bench.workload import ServeWorkload

QUIET: dict[str, Any] = {"share_streamed": 0.0, "share_cancelled": 0.0, "share_bad": 0.0}
CLEAN = {"wrong": 0, "lost": 0, "doubled": 0}


@pytest.fixture(scope="module")
def toy() -> unmask.Generator:
    return unmask.load("toy", device="cpu")


@pytest.mark.slow
def test_a_good_server_gives_every_client_its_lone_answer(make_llada: Callable[..., Path]) -> None:
    llm = unmask.load(str(make_llada()), device="cpu", dtype="float32")
    workload = ServeWorkload(clients=8, requests=4, prompt_tokens=24, max_tokens=8)
    with running(llm, settings=workload.settings()) as found:
        timing = bench_serve(workload, url=found.url, llm=llm)
    figures = timing.figures
    assert timing.failed == ""
    assert {end: figures[end] for end in CLEAN} == CLEAN
    assert figures["compared"] == figures["answered"] > 20
    assert figures["different"] == figures["refused"] == 0
    assert figures["answered"] + figures["cancelled"] + figures["bad"] == 8 + 8 * 4
    assert figures["bad"] > 0
    assert 1.0 < figures["rows_per_pass"] <= 8.0
    assert 0.0 < figures["latency_p50_ms"] <= figures["latency_p95_ms"] <= figures["latency_p99_ms"]
    assert 0.0 < figures["first_text_p50_ms"] <= figures["first_text_p99_ms"]


def test_every_kind_of_bad_request_gets_the_status_that_the_bench_expects(toy: unmask.Generator) -> None:
    asks = asks_of(ServeWorkload(clients=30, requests=10, share_bad=1.0), {}, chats=True)
    kinds = {ask.fault: ask for ask in asks}
    assert len(kinds) == 15
    with running(toy) as found:
        client = Client(found.url)
        ends = {kind: (client.send(ask).end, client.send(ask).why) for kind, ask in kinds.items()}
        client.close()
    assert set(ends.values()) == {("bad", "")}, ends


def test_a_policy_that_no_cache_can_serve_is_asked_for_without_one() -> None:
    asks = asks_of(ServeWorkload(clients=4, requests=4, caches=("dual",), share_bad=0.0), {}, chats=False)
    found = {(ask.body["decoding"]["policy"], ask.body["decoding"]["cache"]) for ask in asks}
    assert found == {("mean_field", "dual"), ("threshold", "dual"), ("klass", "none"), ("fixed", "dual")}


def test_plain_requests_are_alike_and_decode_every_position(toy: unmask.Generator) -> None:
    workload = ServeWorkload(clients=2, requests=3, prompt_tokens=9, max_tokens=8, policies=("fixed",), plain=True)
    asks = asks_of(workload, {"passes": 2}, chats=True)
    assert {(len(ask.body["prompt"]), ask.body["max_tokens"], ask.fault, ask.streams) for ask in asks} == {
        (9, 8, "", 0)
    }
    with running(toy) as found:
        timing = bench_serve(workload, url=found.url, llm=toy, parameters={"passes": 2})
    figures = timing.figures
    assert (figures["answered"], figures["wrong"]) == (8, 0)
    assert figures["tokens_per_s"] * figures["seconds"] == pytest.approx(6 * 8)


def test_requests_beyond_the_queue_are_refused_and_no_fault(toy: unmask.Generator) -> None:
    workload = ServeWorkload(clients=12, requests=3, **QUIET)
    with running(toy, max_queue=2, max_batch_size=1) as found:
        timing = bench_serve(workload, url=found.url, llm=toy)
    assert timing.failed == ""
    assert timing.figures["refused"] > 0
    assert timing.figures["answered"] + timing.figures["refused"] + timing.figures["wrong"] == 12 + 36


def whole(answer: Any, number: int) -> dict[str, Any]:
    texts = enumerate(zip(answer.texts, answer.reasons, strict=True))
    choices = [{"index": index, "text": text, "finish_reason": reason} for index, (text, reason) in texts]
    costs = {"usage": {"completion_tokens": answer.tokens}, "decoding": {"forward_passes": answer.passes}}
    return {"id": f"cmpl-{number}", "choices": choices, **costs}


def sent(status: int, body: bytes, kind: str = "application/json") -> bytes:
    fields = f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close"
    return f"HTTP/1.1 {status} X\r\n{fields}\r\n\r\n".encode() + body


def as_json(data: dict[str, Any], status: int = 200) -> bytes:
    return sent(status, json.dumps(data).encode())


def as_stream(data: dict[str, Any], *, done: int = 1, again: bool = False) -> bytes:
    chunks = [b"data: " + json.dumps(data).encode() + b"\n\n"] * (2 if again else 1)
    return sent(200, b"".join(chunks) + b"data: [DONE]\n\n" * done)


ERROR = {"error": {"message": "no", "type": "x", "param": None, "code": None}}
Spoil = Callable[[dict[str, Any], bool], bytes]  # the right answer, and whether it is streamed -> the bytes to send
FAULTS: dict[str, tuple[str, bool, Spoil]] = {
    "a right answer": ("answered", False, lambda right, stream: as_json(right)),
    "a right stream": ("answered", True, lambda right, stream: as_stream(right)),
    "another text": (
        "wrong",
        False,
        lambda right, stream: as_json(right | {"choices": [each | {"text": "?"} for each in right["choices"]]}),
    ),
    "another number of passes": (
        "wrong",
        False,
        lambda right, stream: as_json(right | {"decoding": {"forward_passes": 1000}}),
    ),
    "a refusal": ("wrong", False, lambda right, stream: as_json(ERROR, 400)),
    "an error of the server": ("lost", False, lambda right, stream: as_json(ERROR, 500)),
    "half an answer": ("lost", False, lambda right, stream: as_json(right)[:-10]),
    "no answer": ("lost", False, lambda right, stream: b""),
    "no choice": ("lost", False, lambda right, stream: as_json(right | {"choices": []})),
    "a stream without an end": ("lost", True, lambda right, stream: as_stream(right, done=0)),
    "an error in a stream": ("lost", True, lambda right, stream: as_stream(ERROR, done=0)),
    "an end twice": ("doubled", True, lambda right, stream: as_stream(right, done=2)),
    "a choice twice in a stream": ("doubled", True, lambda right, stream: as_stream(right, again=True)),
    "a choice twice": (
        "doubled",
        False,
        lambda right, stream: as_json(right | {"choices": right["choices"] * 2}),
    ),
    "one answer for two": ("doubled", False, lambda right, stream: as_json(right | {"id": "cmpl-0"})),
}


@contextmanager
def stub(llm: unmask.Generator, spoil: Spoil) -> Iterator[str]:
    """The URL of a server that does with every right answer what it is told."""
    numbers, lock = iter(range(10**6)), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.wfile.write(sent(200, b"", "text/plain"))
            self.close_connection = True

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = next(numbers)
                answer = lone_answer(llm, Ask(number=0, body=body), {})
            right = whole(answer, number)
            self.wfile.write(spoil(right, body.get("stream", False)))
            self.close_connection = True

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_server_does_to_an_answer_is_counted(fault: str, toy: unmask.Generator) -> None:
    end, streamed, spoil = FAULTS[fault]
    workload = ServeWorkload(clients=2, requests=2, **QUIET | {"share_streamed": float(streamed)})
    with stub(toy, spoil) as url:
        timing = bench_serve(workload, url=url, llm=toy)
    assert timing.figures[end] >= 5, timing.figures["faults"]
    assert {each for each in ENDS if timing.figures[each]} <= {end, "answered"}, timing.figures["faults"]
    assert bool(timing.failed) == (end != "answered")


@pytest.mark.parametrize(("more", "end"), [(0, "answered"), (2**18, "doubled")])  # more than a reader buffers
def test_what_a_server_does_to_an_idle_connection_is_noticed(more: int, end: str, toy: unmask.Generator) -> None:
    """It promises to keep the connection and closes it, which is its right; or it sends bytes that nobody asked for."""

    def spoil(right: dict[str, Any], stream: bool) -> bytes:
        return as_json(right).replace(b"Connection: close", b"Connection: keep-alive") + bytes(more)

    (ask,) = asks_of(ServeWorkload(clients=1, requests=1, **QUIET), {}, chats=False)
    with stub(toy, spoil) as url:
        client = Client(url)
        assert client.send(ask).end == "answered"
        assert select.select([client.connection.sock], [], [], 30)[0]
        heard = client.send(ask)
        client.close()
    assert heard.end == end, heard.why


def test_a_connection_that_the_server_closes_just_before_a_request_is_opened_again(toy, monkeypatch) -> None:
    """At the look at the connection it is still open; the request then meets the end of it."""
    (ask,) = asks_of(ServeWorkload(clients=1, requests=1, **QUIET), {}, chats=False)
    with running(toy) as found:
        client = Client(found.url)
        assert client.send(ask).end == "answered"
        request, sent = client.connection.request, []

        def fails_once(*arguments: Any) -> None:
            sent.append(arguments)
            if len(sent) == 1:
                raise BrokenPipeError
            request(*arguments)

        monkeypatch.setattr(client.connection, "request", fails_once)
        heard = client.send(ask)
        client.close()
    assert (heard.end, heard.why, len(sent)) == ("answered", "", 2)


def test_a_server_that_is_gone_is_one_line_and_exit_status_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["bench", "serve", "toy", "--url", "http://127.0.0.1:9", "--no-compare"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("unmask: the server's /metrics cannot be read")


def test_wrong_answers_end_the_command_with_status_1(toy: unmask.Generator, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--clients", "2", "--requests", "2", "--json"]
    flags += ["--share-streamed", "0", "--share-cancelled", "0", "--share-bad", "0"]
    with stub(toy, FAULTS["another text"][2]) as url:
        assert cli.run(["bench", "serve", "toy", "--url", url, *flags]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["wrong"] == 6
    assert captured.err.endswith("unmask: answers: 6 wrong\n")


WRONG = {
    "clients": (["--clients", "0"], "--clients must be a whole number of at least 1"),
    "lengths": (["--prompt-tokens", "4"], "--prompt-tokens must be a whole number of at least 8"),
    "share": (["--share-bad", "2"], "--share-bad must be a number in [0,1]"),
    "time": (["--minutes", "0"], "--minutes must be a number in (0, inf)"),
    "parameter of several": (["--set", "threshold=1"], "--set is for one --policy"),
    "URL": (["--url", "ftp://x"], "--url must begin with http://"),
    "a limit of a server elsewhere": (["--url", "http://x", "--max-queue", "9"], "--max-queue is for the server"),
    "cache": (["--cache", "big"], "unknown cache 'big'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_command_gets_one_line_and_exit_status_2(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, expected = WRONG[case]
    assert cli.run(["bench", "serve", "toy", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert expected.replace(" ", "") in captured.err.replace(" ", "")


def test_memory_files_and_threads_may_grow_by_a_stated_amount_only() -> None:
    before = Held(500.0, 20, 10)
    assert growth_of(before, Held(540.0, 25, 15)) == ""
    assert growth_of(before, Held(700.0, 20, 10)) == "memory grew from 500 to 700 MiB"
    assert growth_of(before, Held(500.0, 90, 70)) == "open files grew from 20 to 90; threads grew from 10 to 70"
    assert held_by(None) is None
    assert held_by(2**22 + 1) is None


@pytest.mark.slow
def test_the_command_starts_a_server_of_random_weights_watches_and_ends_it() -> None:
    command = [
        sys.executable,
        "-m",
        "unmask",
        "bench",
        "serve",
        "--shape",
        "tiny",
        "--random-weights",
        "--device",
        "cpu",
    ]
    flags = ["--clients", "3", "--requests", "2", "--minutes", "0.05", "--max-tokens", "8", "--threads", "1", "--json"]
    done = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert {end: figures[end] for end in CLEAN} == CLEAN
    assert figures["compared"] == figures["answered"] > 0
    assert len(figures["held"]) >= 3
    assert all(held["mib"] > 50 and held["files"] > 3 for held in figures["held"])
    lines = done.stderr.splitlines()
    assert all(line.startswith("unmask: 0 min: ") and "the server holds" in line for line in lines), done.stderr
