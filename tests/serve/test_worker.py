"""The engine thread: its line and the limit of it, clients that leave, and work that fails."""

import asyncio
import gc
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from openai import InternalServerError, RateLimitError
from serve.servers import FOREVER, LONG, SHORT, Held, counted, open_request, running, until

from unmask.engine.generator import Generator
from unmask.engine.scheduler import Request
from unmask.errors import UnmaskError
from unmask.models.base import LoadedModel
from unmask.models.toy import SENTENCE
from unmask.serve.errors import ApiError
from unmask.serve.worker import Ticket, Worker
from unmask.types import StreamEvent


async def events_of(ticket: Ticket) -> list[StreamEvent]:
    """Everything that is told of the texts of a ticket."""
    found = []
    while sum(event.output is not None for event in found) < len(ticket.requests):
        found.append((await ticket.next())[1])
    return found


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_takes_its_request_with_it(held, stream):
    with running(held) as found:
        connection = open_request(found.url, {**LONG, "stream": stream})
        until(lambda: held.model.passes == 1)
        if stream:
            assert connection.recv(10).startswith(b"HTTP/1.1 2")
        connection.close()
        until(lambda: counted(found, 499) == 1)
        held.model.gate.set()
        answer = found.post(SHORT)[1]
        assert answer["choices"][0]["text"] == SENTENCE[:6]
        passes = found.worker.metrics.registry.get_sample_value("unmask_forward_passes_total")
        assert passes - answer["decoding"]["forward_passes"] <= 2  # of the 2000 that the text would have taken


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


def test_a_request_whose_client_left_the_line_is_forgotten_while_no_row_is_free(held):
    def kept() -> int:
        gc.collect()
        return sum(type(thing) is Request for thing in gc.get_objects())

    before = kept()
    with running(held, max_batch_size=1, max_queue=2) as found:
        first = open_request(found.url, LONG)
        until(lambda: held.model.passes == 1)
        for number in range(1, 11):
            open_request(found.url, SHORT).close()
            until(lambda: counted(found, 499) == number)  # noqa: B023
        assert kept() - before >= 11
        held.model.pace_s = 0.02
        held.model.gate.set()
        until(lambda: kept() - before <= 3)
        assert found.worker.under_way() == 1
        first.close()


def test_a_full_queue_is_429_with_a_time_to_come_again_before_anything_is_encoded(held, monkeypatch):
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
        encoded = []
        monkeypatch.setattr(held, "request", lambda *given, **options: encoded.append(given))
        assert found.post(SHORT)[0] == 429
        assert encoded == []
        with pytest.raises(RateLimitError):
            found.client().completions.create(model="toy", **SHORT)
        held.model.gate.set()
        assert [answer.result()[0] for answer in answers] == [200, 200, 200]


def cpu_allocators_error() -> Exception:
    with pytest.raises(RuntimeError, match="CPUAllocator") as raised:
        torch.empty(2**50, dtype=torch.uint8)
    return raised.value


FAILURES = {
    "a fault": (RuntimeError("boom\nsecret"), 500, "decoding failed: RuntimeError", "engine_failed"),
    "ours": (UnmaskError("the model is tired"), 500, "the model is tired", "engine_failed"),
    "memory of the device": (torch.OutOfMemoryError("CUDA out of memory"), 503, "ran out of memory", "out_of_memory"),
    "memory of the host": (cpu_allocators_error(), 503, "ran out of memory", "out_of_memory"),
    "memory": (MemoryError(), 503, "ran out of memory", "out_of_memory"),
    "what is no Exception": (SystemExit(3), 500, "decoding failed: SystemExit", "engine_failed"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_a_failure_ends_the_requests_of_the_batch_and_the_rest_goes_on(case, held, caplog):
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


class Spoiling(Held):
    """The third pass waits for the gate, and what it gives for the first row are no numbers."""

    def predict(self, tokens, **options):
        if self.passes < 2:
            self.passes += 1
            return self.model.predict(tokens, **options)
        found = super().predict(tokens, **options)
        if self.passes == 3:
            found.logits[0] = float("nan")
        return found


def test_a_text_that_fails_is_not_another_clients_trouble(toy, caplog):
    model = Spoiling(toy.model)
    llm = Generator(LoadedModel(model=model, codec=toy.codec))
    with running(llm, max_batch_size=4) as found, ThreadPoolExecutor(3) as pool:
        first = pool.submit(found.post, LONG)
        until(lambda: model.passes == 3)
        others = [pool.submit(found.post, {**SHORT, "n": n, "decoding": FOREVER}) for n in (1, 2)]
        until(lambda: found.worker.waiting() == 3)
        model.gate.set()
        status, body = first.result()
        assert (status, "no usable logits" in body["error"]["message"]) == (500, True)
        for n, other in enumerate(others, 1):
            status, body = other.result()
            assert (status, [choice["text"] for choice in body["choices"]]) == (200, [SENTENCE[:6]] * n)


class FailingLater(Held):
    """Its first pass works, and no other, but for the one that tries a single token."""

    rows: list[int]

    def predict(self, tokens, **options):
        if tokens.shape[1] == 1:
            return self.model.predict(tokens, **options)
        self.rows.append(len(tokens))
        if len(self.rows) > 1:
            raise RuntimeError("boom")
        return super().predict(tokens, **options)


def test_a_request_without_a_pass_is_put_back_once_and_keeps_its_place(toy, caplog):
    model = FailingLater(toy.model)
    model.rows = []
    llm, told = Generator(LoadedModel(model=model, codec=toy.codec)), {}

    async def ask():
        worker, tickets = Worker(llm, rows=4, max_queue=8), {}
        worker.start()
        tickets["a"] = worker.submit([llm.request("Hi") for _ in range(2)])
        await asyncio.to_thread(until, lambda: bool(model.rows))
        for name in "bcd":
            tickets[name] = worker.submit([llm.request("Hi")])
        model.gate.set()
        for name, ticket in tickets.items():
            with pytest.raises(ApiError, match="decoding failed") as failed:
                await asyncio.wait_for(events_of(ticket), 10)
            told[name] = failed.value.status_code
        await asyncio.to_thread(worker.stop)

    asyncio.run(ask())
    # The two texts of a; then b and c beside them; these two again, with d; then d alone.
    assert model.rows[:4] == [2, 4, 3, 1]
    assert told == dict.fromkeys("abcd", 500)


def test_a_fault_over_the_last_event_of_a_text_is_its_own_trouble_alone(held, monkeypatch, caplog):
    """The row is finished by then, and the next text has joined without a pass yet."""
    made, faults = Request.stream, [MemoryError()]

    def stream(request: Request, step):
        if step.finished and faults:
            raise faults.pop()
        return made(request, step)

    monkeypatch.setattr(Request, "stream", stream)
    with running(held, max_batch_size=1) as found, ThreadPoolExecutor(2) as pool:
        first = pool.submit(found.post, SHORT)
        until(lambda: held.model.passes == 1)
        second = pool.submit(found.post, SHORT)
        until(lambda: found.worker.waiting() == 1)
        held.model.gate.set()
        assert first.result(10)[0] == 503
        assert second.result(10)[0] == 200
        assert found.worker.under_way() == 0
    assert "decoding failed" in caplog.text


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_when_the_engines_thread_ends_by_a_fault_every_client_is_told(held, monkeypatch):
    monkeypatch.setattr("unmask.serve.worker.log.error", lambda *_, **__: 1 / 0)  # as with a full disk
    ended = []

    async def ask():
        worker = Worker(held, rows=1, max_queue=4)
        worker.on_broken = lambda: ended.append(worker.broken)
        worker.start()
        tickets = [worker.submit([held.request("Hi")]) for _ in range(2)]
        held.model.failure = RuntimeError("boom")
        held.model.gate.set()
        for ticket in tickets:
            with pytest.raises(ApiError, match="shutting down"):
                await asyncio.wait_for(events_of(ticket), 10)
        await asyncio.to_thread(worker.stop)

    asyncio.run(ask())
    assert ended == [True]


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


class TakingNothing(Generator):
    """Fails before it takes a request from the line."""

    def decode(self, scheduler):
        raise RuntimeError("no device")


def test_an_engine_that_takes_nothing_does_not_turn_for_ever(toy, caplog):
    with running(TakingNothing(LoadedModel(model=toy.model, codec=toy.codec))) as found:
        assert found.post(SHORT)[0] == 500
        assert found.post(SHORT)[0] == 500
        with pytest.raises(InternalServerError):
            found.client().completions.create(model="toy", **SHORT)


def test_a_request_that_fails_again_and_again_does_not_end_the_server(held, caplog):
    held.model.gate.set()
    with running(held) as found:
        for _ in range(5):
            held.model.failure = RuntimeError("boom")
            assert found.post(SHORT)[0] == 500
        assert found.post(SHORT)[0] == 200
        assert found.worker.accepting


def test_a_ticket_whose_events_are_not_read_is_dropped(held, monkeypatch):
    monkeypatch.setattr("unmask.serve.worker.MOST_UNREAD", 5)

    async def read_late() -> int:
        worker = Worker(held, rows=1, max_queue=4)
        worker.start()
        ticket = worker.submit([held.request("Hi", max_tokens=400, policy="fixed")])
        held.model.pace_s = 0.005
        held.model.gate.set()
        while not ticket.requests[0].abandoned:
            await asyncio.sleep(0.005)
        with pytest.raises(ApiError, match="the client is 5 events behind"):
            await events_of(ticket)
        await asyncio.to_thread(worker.stop)
        return held.model.passes

    assert 5 <= asyncio.run(read_late()) < 400


def test_a_ticket_that_is_not_streamed_gets_its_output_alone(held):
    async def told(streamed: bool) -> int:
        worker = Worker(held, rows=1, max_queue=4)
        worker.start()
        ticket = worker.submit([held.request("Hi", max_tokens=8, policy="fixed")], streamed=streamed)
        events = await events_of(ticket)
        await asyncio.to_thread(worker.stop)
        assert worker.metrics.registry.get_sample_value("unmask_forward_passes_total") == 8
        assert worker.metrics.registry.get_sample_value("unmask_time_to_first_text_seconds_count") == 1
        return len(events)

    held.model.gate.set()
    assert asyncio.run(told(True)) == 8
    assert asyncio.run(told(False)) == 1
