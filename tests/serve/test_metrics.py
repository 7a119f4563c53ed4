"""What Prometheus reads."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.parser import text_string_to_metric_families
from serve.servers import LONG, SHORT, counted, open_request, running, until


def samples(found) -> dict[tuple, float]:
    status, headers, text = found.send("GET", "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_requests_passes_tokens_and_times_are_counted(toy):
    with running(toy) as found:
        out = found.llm.generate("Hi", max_tokens=12, early_stop=True)
        assert found.post({"prompt": "Hi", "max_tokens": 12})[0] == 200
        assert found.send("POST", "/v1/completions", {"prompt": "Hi", "max_tokens": 12, "stream": True})[0] == 200
        assert found.post({"prompt": 5})[0] == 400
        for path in ("/made/up", "/made/up/too"):
            assert found.send("GET", path)[0] == 404
        seen = samples(found)
    route = ("route", "/v1/completions")
    assert seen["unmask_http_requests_total", route, ("status", "200")] == 2
    assert seen["unmask_http_requests_total", route, ("status", "400")] == 1
    assert seen["unmask_http_requests_total", ("route", "other"), ("status", "404")] == 2
    assert seen["unmask_http_request_duration_seconds_count", route] == 3
    assert seen["unmask_http_requests_in_flight",] == 1  # the one that asks
    assert seen["unmask_queue_texts",] == 0
    assert seen["unmask_forward_passes_total",] == 2 * out.usage.forward_passes
    assert seen["unmask_committed_tokens_total",] == 24
    assert seen["unmask_kept_tokens_total",] == 24
    assert seen["unmask_prompt_tokens_total",] == 2 * out.usage.prompt_tokens
    assert seen["unmask_time_to_first_text_seconds_count",] == 2
    assert 0 < seen["unmask_time_to_first_text_seconds_sum",] <= seen["unmask_http_request_duration_seconds_sum", route]


@pytest.mark.parametrize(
    ("fault", "status", "code"), [(KeyError("x"), 500, None), (MemoryError(), 503, "out_of_memory")]
)
def test_a_fault_of_the_server_is_not_counted_as_a_client_that_left(fault, status, code, toy, monkeypatch):
    def fail(*_):
        raise fault

    monkeypatch.setattr("unmask.serve.translate.translate", fail)
    with running(toy) as found:
        answered, body = found.post(SHORT)
        assert (answered, body["error"]["code"]) == (status, code)
        until(lambda: counted(found, 500) == 1)
        assert counted(found, 499) is None


def test_a_client_that_leaves_during_its_upload_is_counted_as_gone(toy):
    with running(toy) as found:
        connection = open_request(found.url, SHORT, sent=9)
        until(lambda: samples(found)["unmask_http_requests_in_flight",] == 2)
        connection.close()
        until(lambda: counted(found, 499) == 1)


def test_a_text_whose_client_left_is_not_counted_as_finished(held):
    with running(held) as found:
        connection = open_request(found.url, LONG)
        until(lambda: held.model.passes == 1)
        connection.close()
        until(lambda: counted(found, 499) == 1)
        held.model.gate.set()
        until(lambda: samples(found)["unmask_committed_tokens_total",] > 0)
        assert found.worker.under_way() == 0
        seen = samples(found)
        assert seen["unmask_forward_passes_total",] > 0
        assert seen["unmask_kept_tokens_total",] == seen["unmask_prompt_tokens_total",] == 0


def test_the_line_is_seen_while_it_is_there(held):
    with running(held, max_batch_size=1) as found, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(found.post, {"prompt": "Hi", "max_tokens": 4, "n": 3})
        until(lambda: held.model.passes == 1)
        seen = samples(found)
        assert seen["unmask_queue_texts",] == 2
        assert seen["unmask_http_requests_in_flight",] == 2
        held.model.gate.set()
        assert answer.result()[0] == 200


def test_two_servers_in_one_process_count_for_themselves(toy):
    with running(toy) as one, running(toy) as two:
        assert one.post({"prompt": "Hi", "max_tokens": 4})[0] == 200
        assert samples(one)["unmask_kept_tokens_total",] == 4
        assert samples(two)["unmask_kept_tokens_total",] == 0
