"""Who may ask: keys, how many requests of each, and which web pages."""

import threading

import pytest
from openai import AuthenticationError, RateLimitError
from serve.servers import LONG, SHORT, running, until

from unmask import cli
from unmask.errors import UnmaskError
from unmask.serve.config import ServerConfig, with_keys

KEYS = ("sesame", "open sesame")


def test_with_a_key_only_health_is_open(toy):
    with running(toy, api_keys=KEYS) as found:
        assert found.send("GET", "/health")[0] == 200
        for headers in ({}, {"Authorization": "Bearer open"}, {"Authorization": "Basic sesame"}):
            for path in ("/v1/models", "/metrics", "/v1/nothing"):
                status, answered, text = found.send("GET", path, headers=headers)
                assert status == 401
                assert answered["WWW-Authenticate"] == "Bearer"
                assert '"code":"invalid_api_key"' in text
        with pytest.raises(AuthenticationError):
            found.client(api_key="sesam").completions.create(model="toy", prompt="Hi")
        for key in KEYS:
            answer = found.client(api_key=key).completions.create(model="toy", prompt="Hi", max_tokens=4)
            assert answer.usage.completion_tokens == 4


def test_a_key_has_so_many_requests_at_a_time_and_other_keys_as_many(held):
    with running(held, api_keys=KEYS, max_requests_per_key=2) as found:
        mine, other = (found.client(api_key=key) for key in KEYS)
        body = {"model": "toy", "prompt": LONG["prompt"], "max_tokens": 4}
        asked = [threading.Thread(target=mine.completions.create, kwargs=body) for _ in range(2)]
        for thread in asked:
            thread.start()
        until(lambda: found.worker.under_way() == 2)
        with pytest.raises(RateLimitError) as refused:
            mine.completions.create(**body)
        assert refused.value.code == "too_many_requests_of_key"
        assert refused.value.response.headers["Retry-After"] == "1"
        assert [model.id for model in mine.models.list()] == ["toy"]  # no work, and so not counted
        held.model.gate.set()
        assert other.completions.create(**body).usage.completion_tokens == 4
        for thread in asked:
            thread.join(30)
        assert mine.completions.create(**body).usage.completion_tokens == 4


def test_keys_come_from_a_file_beside_the_environment(tmp_path, monkeypatch):
    file, said = tmp_path / "keys", []
    file.write_text("# of the laboratory\n  sesame \n\nopen sesame\nsesame\n")
    file.chmod(0o600)
    monkeypatch.setenv("UNMASK_API_KEY", "mine")
    config = with_keys(ServerConfig(api_key_file=str(file)), said.append)
    assert config.api_keys == ("mine", *KEYS)
    assert "sesame" not in repr(config)
    assert said == []
    file.chmod(0o644)
    with_keys(ServerConfig(api_key_file=str(file)), said.append)
    assert said == [f"everyone on this machine can read the API keys in {file}; chmod 600 keeps them secret"]


@pytest.mark.parametrize("content", [b"", b"# none\n", b"\xff\n", b"a\x00b\n", None])
def test_a_file_without_keys_is_refused(content, tmp_path, monkeypatch):
    monkeypatch.delenv("UNMASK_API_KEY", raising=False)
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content)
        file.chmod(0o600)
    with pytest.raises(UnmaskError, match="API key"):
        with_keys(ServerConfig(api_key_file=str(file)), print)


def test_a_bound_for_each_key_needs_keys(capsys, monkeypatch):
    monkeypatch.delenv("UNMASK_API_KEY", raising=False)
    assert cli.run(["serve", "--model", "toy", "--port", "0", "--max-requests-per-key", "2"]) == 2
    assert "--max-requests-per-key needs keys" in capsys.readouterr().err


PAGE = {"Origin": "https://lab.example"}
PREFLIGHT = {**PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-a"}


def test_pages_of_other_origins_are_let_in_if_they_are_named(toy):
    with running(toy, api_keys=KEYS, cors_origin=["https://lab.example", "http://localhost:3000"]) as found:
        status, headers, _ = found.send("OPTIONS", "/v1/completions", headers=PREFLIGHT)  # a browser sends no key here
        assert status == 200
        assert headers["Access-Control-Allow-Origin"] == "https://lab.example"
        assert headers["Access-Control-Allow-Headers"] == "authorization,x-a"
        status, headers, _ = found.send("POST", "/v1/completions", SHORT, {**PAGE, "Authorization": "Bearer sesame"})
        assert (status, headers["Access-Control-Allow-Origin"]) == (200, "https://lab.example")
        status, headers, _ = found.send("POST", "/v1/completions", SHORT, PAGE)
        assert (status, headers["Access-Control-Allow-Origin"]) == (401, "https://lab.example")
        stranger = {**PREFLIGHT, "Origin": "https://evil.example"}
        status, headers, _ = found.send("OPTIONS", "/v1/completions", headers=stranger)
        assert (status, headers["Access-Control-Allow-Origin"]) == (400, None)


def test_no_page_of_another_origin_is_let_in_by_default(toy_served):
    status, headers, _ = toy_served.send("OPTIONS", "/v1/completions", headers=PREFLIGHT)
    assert (status, headers["Access-Control-Allow-Origin"]) == (405, None)
    assert toy_served.send("POST", "/v1/completions", SHORT, PAGE)[1]["Access-Control-Allow-Origin"] is None


@pytest.mark.parametrize("origin", ["https://lab.example/", "lab.example", "", "https://LAB.example", "**"])
def test_an_origin_that_no_browser_sends_is_refused(origin):
    with pytest.raises(UnmaskError, match=r"cors_origin must be \* or like https://example.com:8443"):
        ServerConfig(cors_origin=[origin])
