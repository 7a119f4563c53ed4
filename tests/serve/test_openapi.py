"""The OpenAPI document, and what the server makes of requests that are made up from it."""

import warnings

import pytest
from serve.servers import running

from unmask import Settings
from unmask.engine.generator import Generator

# What it imports from elsewhere warns of its own affairs.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import schemathesis
    from hypothesis import HealthCheck, given, seed, settings
    from schemathesis.checks import (
        content_type_conformance,
        not_a_server_error,
        response_schema_conformance,
        status_code_conformance,
    )

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
EXAMPLES = 60
READ = ("/health", "/health/live", "/health/ready", "/metrics", "/v1/models", "/v1/models/{name}", "/v1/decoding")
WRITTEN = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize")


@pytest.fixture(scope="module")
def brief(toy: Generator):
    """A server whose answers are short, so that many fit into a few seconds."""
    with running(toy, settings=Settings(max_tokens=8, early_stop=True)) as found:
        yield found


def test_the_document_says_400_and_never_422(brief):
    document = schemathesis.openapi.from_url(f"{brief.url}/openapi.json").raw_schema
    for path in ("/v1/completions", "/v1/chat/completions"):
        responses = document["paths"][path]["post"]["responses"]
        assert set(responses) == {"200", "400", "401", "404", "408", "413", "429", "500", "503", "504"}
        assert set(responses["200"]["content"]) == {"application/json", "text/event-stream"}
    schemas = document["components"]["schemas"]
    assert set(schemas["CompletionChoice"]["required"]) == {"index", "text"}
    assert set(schemas["ChatChoice"]["required"]) == {"index", "message", "finish_reason"}
    for path in READ:
        if path != "/v1/decoding":  # whose answer is a form
            [content] = document["paths"][path]["get"]["responses"]["200"]["content"].values()
            assert content["schema"] != {}, path
    known = schemas["Decoding"]["properties"]
    assert {"policy", "step_map", "events", "block_size", "cache"} <= set(known)


@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
@pytest.mark.parametrize("path", READ)
def test_what_is_read_conforms_to_the_document(path, brief):
    fuzz(brief, path, "GET")


# Its strategies draw from `random` here and there.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
@pytest.mark.parametrize("path", WRITTEN)
def test_made_up_requests_get_what_the_document_says(path, brief):
    assert {200, 400} <= fuzz(brief, path, "POST")


def test_every_route_of_the_document_is_tried_above(brief):
    document = schemathesis.openapi.from_url(f"{brief.url}/openapi.json").raw_schema
    assert set(document["paths"]) == {*READ, *WRITTEN}


def fuzz(found, path: str, method: str) -> set[int]:
    """The statuses that made-up requests got."""
    operation = schemathesis.openapi.from_url(f"{found.url}/openapi.json")[path][method]

    @seed(0)
    @settings(max_examples=EXAMPLES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def ask(case):
        if isinstance(case.body, dict):
            case.body.pop("model", None)  # no made-up name is ours, and all would end there
        seen.add(case.call_and_validate(checks=CHECKS, timeout=30).status_code)

    seen: set[int] = set()
    ask()
    assert found.worker.accepting
    return seen
