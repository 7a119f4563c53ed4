"""What the server and the viewer's own server send, without a browser."""

import http.client
import json
import signal
import subprocess
import sys
from dataclasses import dataclass, replace

import pytest
from serve.servers import running
from web.lines import three_passes

import unmask
from unmask import policies
from unmask.cli import run
from unmask.options import described
from unmask.policies.presets import forms
from unmask.web import POLICY, document


@pytest.mark.parametrize("path", ["/", "/assets/main.js", "/assets/base.css", "/favicon.ico"])
def test_the_files_of_the_page_come_with_its_policy_and_are_not_sent_twice(path, toy_served):
    status, headers, text = toy_served.send("GET", path)
    assert status == 200
    assert headers["Content-Security-Policy"] == POLICY
    assert "unsafe" not in POLICY
    assert text
    again, _, nothing = toy_served.send("GET", path, headers={"If-None-Match": headers["ETag"]})
    assert (again, nothing) == (304, "")
    head, told, nothing = toy_served.send("HEAD", path)
    assert (head, told["Content-Length"], nothing) == (200, str(len(text.encode())), "")


KINDS = {"/": "text/html", "/docs": "text/html", "/assets/main.js": "text/javascript", "/assets/base.css": "text/css"}


@pytest.mark.parametrize("path", KINDS)
@pytest.mark.parametrize("part", ["bytes=abc", "bytes=9999999-", "bytes=0-3"])
def test_a_file_is_sent_whole_with_its_own_kind(path, part, toy_served):
    status, headers, text = toy_served.send("GET", path, headers={"Range": part})
    assert (status, headers["Content-Type"]) == (200, f"{KINDS[path]}; charset=utf-8")
    assert text == toy_served.send("GET", path)[2]


@pytest.mark.parametrize("name", ["nothing.js", "__init__.py", "..%2Fcli.py", "assets.py", "MAIN.JS", ""])
def test_no_other_file_is_sent(name, toy_served):
    status, _, text = toy_served.send("GET", f"/assets/{name}")
    assert status == 404
    assert json.loads(text)["error"]["code"] == "unknown_url"


def test_the_page_needs_no_key_and_what_it_asks_does(toy):
    with running(toy, api_keys=("secret",)) as found:
        assert found.send("GET", "/")[0] == 200
        assert found.send("GET", "/assets/main.js")[0] == 200
        assert found.send("GET", "/v1/decoding")[0] == 401
        assert found.send("GET", "/v1/decoding", headers={"Authorization": "Bearer secret"})[0] == 200


def test_the_description_has_defaults_choices_and_bounds(toy_served):
    form = json.loads(toy_served.send("GET", "/v1/decoding")[2])
    assert form["model"] == {"name": "toy", "chat": True, "positions": 4096}
    assert form["defaults"]["settings"]["max_tokens"] == 24
    assert form["defaults"]["policy"] == policies.describe(policies.preset("mean_field", "toy"))
    [policy] = [one for one in form["policies"] if one["name"] == "mean_field"]
    fields = {one["name"]: one for one in policy["parameters"]}
    assert fields["threshold"]["within"] == "(0, 1]"
    assert fields["interaction"]["choices"] == ["jsd", "uniform", "none"]
    found = {"type": "integer", "optional": True, "default": None, "least": 1}
    assert fields["vocabulary"] == {"name": "vocabulary", **found}
    for example in form["examples"]:
        assert example["prompt"]


def test_every_policy_of_ours_has_a_form_with_its_types():
    for form in forms("llada"):
        kinds = {one["name"]: one["type"] for one in form["parameters"]}
        for name, value in policies.describe(policies.get(form["name"])).items():
            if name != "name" and value is not None:
                assert kinds[name] == {bool: "boolean", int: "integer", float: "number", str: "text"}[type(value)]


def test_every_setting_is_described_with_its_help():
    fields = {one["name"]: one for one in described(unmask.Settings())}
    assert set(fields) == set(unmask.Settings().to_dict())
    assert all(one["help"] for one in fields.values())
    assert fields["stop"]["type"] == "texts"
    assert fields["stop_token_ids"]["type"] == "integers"
    assert fields["top_p"]["within"] == "(0, 1]"


def test_a_policy_of_somebody_else_is_in_the_form_too(toy):
    from unmask.policies.base import Base
    from unmask.serve.config import ServerConfig
    from unmask.serve.pages import form_of
    from unmask.serve.served import Served

    @dataclass(frozen=True, kw_only=True)
    class Mine(Base):
        """Commit what I like."""

        speed: float = 2.0

        def select(self, view, state=None):
            raise NotImplementedError

    served = Served(toy, ServerConfig(), policy=Mine(), settings=unmask.Settings())
    own = form_of(served)["policies"][-1]
    assert (own["name"], own["about"]) == ("Mine", "Commit what I like.")
    assert own["parameters"] == [{"name": "speed", "type": "number", "optional": False, "default": 2.0}]


def test_the_page_as_one_file_names_no_other_file():
    page = document([("a", three_passes())])
    assert "assets/" not in page
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "unsafe" not in page


def test_an_output_shows_itself_in_a_notebook(toy):
    plain = replace(toy.generate("Hi", max_tokens=4), text="<b>")
    assert plain._repr_html_().startswith("<pre>&lt;b&gt;</pre><small>4 tokens, ")
    framed = toy.generate("Hi", max_tokens=4, trace=True)._repr_html_()
    assert framed.startswith("<iframe")
    assert "sandbox=" in framed
    assert "<script" not in framed  # it is inside an attribute


def test_view_writes_a_file_that_stands_alone(tmp_path, toy, capsys):
    toy.generate("Hi", max_tokens=4, trace=True).trace.save(tmp_path / "run.jsonl")
    assert run(["view", str(tmp_path / "run.jsonl"), "--html", str(tmp_path / "run.html")]) == 0
    assert '"name": "run.jsonl"' in (tmp_path / "run.html").read_text()
    assert run(["view", str(tmp_path / "missing.jsonl")]) == 2
    assert "cannot read the trace" in capsys.readouterr().err
    assert run(["view", str(tmp_path / "run.jsonl"), "--html", str(tmp_path / "no" / "run.html")]) == 2


@pytest.mark.slow
def test_view_serves_the_page_on_this_machine_until_it_is_interrupted(tmp_path, toy):
    toy.generate("Hi", max_tokens=4, trace=True).trace.save(tmp_path / "run.jsonl")
    command = [sys.executable, "-m", "unmask", "view", str(tmp_path / "run.jsonl"), "--no-browser"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        where = process.stderr.readline().split("http://")[1].split("/")[0]
        answers = [get(where, "/"), get(where, "/other"), get(where, "/", Host="elsewhere.example")]
        answers.append(get(where, "/", "HEAD"))
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert where.startswith("127.0.0.1:")
    assert [status for status, _ in answers] == [200, 404, 404, 200]
    assert answers[3][1] == b""
    assert b'id="traces"' in answers[0][1]


@pytest.mark.slow
def test_play_serves_the_playground_at_a_free_port():
    command = [sys.executable, "-m", "unmask", "play", "--model", "toy", "--no-browser"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        where = process.stderr.readline().strip().split("http://")[1]
        status, page = get(where, "/")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert status == 200
    assert b"main.js" in page


def get(where: str, path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(where, timeout=30)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found
