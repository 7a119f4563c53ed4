"""`unmask serve` as a user meets it: the line when it is ready, its end, and what it refuses to start with."""

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from openai import APIError, OpenAI

from unmask import cli
from unmask.models.toy import SENTENCE

MESSAGES = [{"role": "user", "content": "Countdown: 1,2"}]
COMMAND = [sys.executable, "-m", "unmask", "serve", "--port", "0"]


@contextmanager
def started(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen, str]]:
    """The process, and the line with which it says that it is ready."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": {**os.environ, **environment}}
    with subprocess.Popen([*COMMAND, *arguments], **options) as process:
        try:
            yield process, process.stderr.readline()
        finally:
            process.kill()  # which does nothing to one that has ended, as it should have


def test_the_command_says_where_it_serves_and_ends_with_0():
    flags = ["--model", "toy", "--policy", "fixed", "--set", "tokens_per_pass=2", "--served-model-name", "parrot"]
    with started(*flags, "--max-tokens", "20", UNMASK_API_KEY="sesame") as (process, line):
        url = re.fullmatch(r"unmask: serving parrot at (http://127\.0\.0\.1:\d+)\n", line)[1]
        with OpenAI(base_url=f"{url}/v1", api_key="sesame", max_retries=0, timeout=30) as client:
            answer = client.completions.create(model="parrot", prompt="Hi")
        assert answer.choices[0].text == SENTENCE[:20]
        assert answer.decoding["policy"] == "fixed"
        assert answer.decoding["forward_passes"] == 10
        process.send_signal(signal.SIGTERM)
        assert process.communicate(timeout=30) == ("", "")
        assert process.returncode == 0


@pytest.mark.slow
def test_a_second_signal_drops_what_is_under_way():
    flags = ["--model", "tiny", "--policy", "fixed", "--no-early-stop", "--max-tokens", "600"]
    with started(*flags) as (process, line):
        with OpenAI(base_url=f"{line.split()[-1]}/v1", api_key="none", max_retries=0, timeout=60) as client:
            stream = client.chat.completions.create(model="tiny", messages=MESSAGES, stream=True)
            assert next(stream).choices[0].delta.role == "assistant"
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)
            assert process.poll() is None
            process.send_signal(signal.SIGINT)
            with pytest.raises(APIError, match="shutting down"):
                list(stream)
        said = "unmask: 1 request has 30 s to be finished; a second signal drops what is left\n"
        assert process.communicate(timeout=30) == ("", said)
        assert process.returncode == 0


@pytest.mark.slow
def test_the_access_log_has_a_line_for_each_request_on_stderr():
    with started("--model", "toy", "--access-log") as (process, line):
        host, port = line.split()[-1].removeprefix("http://").split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        connection.request("GET", "/v1/nothing")
        assert connection.getresponse().status == 404
        connection.close()
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
    assert out == ""
    assert re.fullmatch(r'[\d-]+ [\d:,]+ 127\.0\.0\.1:\d+ - "GET /v1/nothing HTTP/1\.1" 404\n', err)


@pytest.fixture
def taken():
    """A port at which another program listens."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield str(listening.getsockname()[1])


def test_a_port_in_use_is_refused_before_the_model_is_loaded(taken, capsys):
    assert cli.run(["serve", "--port", taken, "--model", "./no/such/folder"]) == 2
    assert capsys.readouterr().err == f"unmask: cannot listen at 127.0.0.1, port {taken}: Address already in use\n"


WRONG = {
    "port": (["--port", "70000"], "--port must be a whole number in [0, 65535]"),
    "batch": (["--max-batch-size", "0"], "--max-batch-size must be a whole number of at least 1"),
    "queue": (["--max-queue", "0"], "--max-queue must be a whole number of at least 1"),
    "body": (["--max-body-bytes", "0"], "--max-body-bytes must be a whole number of at least 1"),
    "prompt": (["--max-prompt-tokens", "0"], "--max-prompt-tokens must be a whole number of at least 1"),
    "total": (["--max-total-tokens", "0"], "--max-total-tokens must be a whole number of at least 1"),
    "connections": (["--max-connections", "0"], "--max-connections must be a whole number of at least 1"),
    "grace": (["--grace-s", "nan"], "--grace-s must be"),
    "time of a request": (["--request-timeout-s", "-1"], "--request-timeout-s must be a number of at least 0"),
    "time of a client": (["--client-timeout-s", "0"], "--client-timeout-s must be a number in (0, inf)"),
    "stall": (["--stall-s", "0"], "--stall-s must be a number in (0, inf)"),
    "watchdog": (["--watchdog-s", "inf"], "--watchdog-s must be a number of at least 0"),
    "warm-up": (["--warmup-prompt-tokens", "-1"], "--warmup-prompt-tokens must be a whole number of at least 0"),
    "warm-up that does not fit": (["--warmup-prompt-tokens", "5000", "--port", "0"], "4096 positions"),
    "name": (["--served-model-name", ""], "--served-model-name must not be empty"),
    "name that would garble the terminal": (["--served-model-name", "a\x1b[2J"], "must be printable, got 'a\\x1b[2J'"),
    "host without letters": (["--host", ".."], "cannot listen at .., port 8000: that is no name of a host"),
    "host with a long label": (["--host", "x" * 70], "that is no name of a host"),
    "host": (["--host", "no.such.host.invalid"], "cannot listen at no.such.host.invalid"),
    "model": (["--model", "./no/such/folder", "--port", "0"], "no such folder"),
    "policy": (["--policy", "meanfield", "--port", "0"], "did you mean 'mean_field'?"),
    "setting": (["--top-p", "0", "--port", "0"], "--top-p must be a number in (0, 1]"),
    "texts as long as the model": (
        ["--max-tokens", "4096", "--port", "0"],
        "--max-tokens 4096 leaves no room for a prompt in the 4096 positions of toy",
    ),
    "flag": (["--prot", "0"], "--port"),
    "backend": (["--backend", "sky"], "unknown backend of `unmask serve` 'sky'; known: local, ray"),
    "replicas without a cluster": (["--replicas", "2"], "--replicas is for --backend ray"),
    "a free port elsewhere": (
        ["--backend", "ray", "--address", "h:1", "--port", "0"],
        "--port 0 cannot find a free port",
    ),
    "cache that the policy cannot use": (["--policy", "dawn", "--cache", "dual", "--port", "0"], "dawn needs"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_command_gets_one_line_and_exit_status_2(case, capsys):
    arguments, expected = WRONG[case]
    assert cli.run(["serve", "--model", "toy", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("unmask: ")
    assert captured.err.count("\n") == 1
    assert expected in captured.err


def test_an_empty_key_is_refused(capsys, monkeypatch):
    monkeypatch.setenv("UNMASK_API_KEY", "")
    assert cli.run(["serve", "--model", "toy", "--port", "0"]) == 2
    assert "UNMASK_API_KEY is empty" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["sesame\n", " sesame", "ses\name", "\udcff"])
def test_a_key_that_no_client_could_show_is_refused(key, capsys, monkeypatch):
    monkeypatch.setenv("UNMASK_API_KEY", key)
    assert cli.run(["serve", "--model", "toy", "--port", "0"]) == 2
    captured = capsys.readouterr()
    assert captured.err == "unmask: the API key must be printable UTF-8, without white space at its ends\n"


@pytest.mark.parametrize("missing", ["fastapi", "uvicorn", "prometheus_client"])
def test_without_the_extra_one_line_says_how_to_get_it(missing, capsys, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("unmask.serve.") and name != "unmask.serve.config"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    assert cli.run(["serve", "--model", "toy"]) == 2
    assert (
        capsys.readouterr().err == f"unmask: serving needs {missing}, which is missing: pip install 'unmask[serve]'\n"
    )


def test_help_shows_the_servers_flags_and_defaults(capsys):
    assert cli.run(["serve", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for shown in ("--host", "127.0.0.1", "--max-batch-size", "[default: 8]", "--early-stop / --no-early-stop", "--set"):
        assert shown in text
    assert "--api-key " not in text
