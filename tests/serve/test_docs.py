"""The page at /docs: our own files, drawn from the OpenAPI document, and nothing from elsewhere."""

import json
import re

import pytest
from serve.servers import running

FILES = ("/docs", "/assets/docs.css", "/assets/docs.js")


def test_the_page_and_its_files_are_there_under_a_strict_policy(toy_served):
    kinds = {"": "text/html", "css": "text/css", "js": "text/javascript"}
    for path in FILES:
        status, headers, text = toy_served.send("GET", path)
        assert status == 200
        assert headers["Content-Type"].startswith(kinds[path.partition(".")[2]])
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "://" not in text
        assert "innerHTML" not in text


def test_the_page_names_only_files_that_are_served(toy_served):
    page = toy_served.send("GET", "/docs")[2]
    named = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert named
    for name in named:
        assert toy_served.send("GET", f"/{name}")[0] == 200


def test_the_page_needs_no_key_and_its_document_says_that_the_routes_do(toy, toy_served):
    with running(toy, api_keys=["sesame"]) as found:
        for path in FILES:
            assert found.send("GET", path)[0] == 200
        status, _, text = found.send("GET", "/openapi.json")
    assert status == 200
    assert json.loads(text)["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert "security" not in json.loads(toy_served.send("GET", "/openapi.json")[2])


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"])
def test_every_field_is_described_and_the_example_works(path, toy_served):
    document = json.loads(toy_served.send("GET", "/openapi.json")[2])
    operation = document["paths"][path]["post"]
    assert operation["description"]
    name = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].rsplit("/", 1)[1]
    schema = document["components"]["schemas"][name]
    bare = [field for field, about in schema["properties"].items() if "description" not in about]
    assert set(bare) <= {"prompt", "tokens", "stream_options", "decoding"}  # the name, or the object itself, says it
    for example in schema["examples"]:
        status, answer = toy_served.post(example, path)
        assert status == 200, answer
