"""Whatever a client sends: an answer or an error of OpenAI's form, never a 5xx, and a server that goes on as before.

See fuzzing.py for how to make many more cases.
"""

from __future__ import annotations

import json
import socket
from collections import Counter
from copy import deepcopy
from http.client import HTTPException, HTTPResponse
from typing import Any

import pytest
from fuzzing import fuzz, tell
from hypothesis import given, note
from hypothesis import strategies as st
from serve.small_toy import load

from unmask.bench.workload import ServeWorkload
from unmask.engine.generator import Generator
from unmask.server_process import started

CHECKED: dict[str, Any] = {"prompt": "Hi", "max_tokens": 6}
VALID: list[dict[str, Any]] = [
    CHECKED,
    {"prompt": ["a", "bc"], "n": 2, "temperature": 0.5, "seed": 3, "stop": ["x"], "stream": True, "max_tokens": 5},
    {"prompt": [5, 6, 7], "suffix": "end", "decoding": {"policy": "klass", "kl": 0.1, "step_map": True}, "user": "u"},
    {"messages": [{"role": "user", "content": "Hi"}], "stream": True, "stream_options": {"include_usage": True}},
    {"messages": [{"role": "system", "content": [{"type": "text", "text": "Hi"}]}], "decoding": {"cache": "dual"}},
    {"prompt": "a", "stream": True, "decoding": {"events": {"candidates": 3, "overlap": True}}},
]
OTHER_NAMES = ["tools", "logprobs", "echo", "top_k", "model", "best_of", "a", "", "\0"]
NAMES = sorted({name for body in VALID for name in body} | set(OTHER_NAMES))
HOSTILE: list[Any] = [
    *(0, -1, 1, 2, 7, 65, 2**31, 2**63, 10**30, -(10**400), 0.5, 1e-300, 1e300, float("nan"), float("inf")),
    *(None, True, False, "", "x", "\0", "\ud800", "é" * 999, "a" * 9999, "[MASK]", "<|eot_id|>", "\u202e\r\n"),
    *("{{ messages }}", "../../etc/passwd", "fixed", "dawn", "dual", "toy", {"role": "user"}, {"type": "image_url"}),
    *([], {}, [[]], [{}], [1, "a"], [[1], ["a"]], {"a": 1}, {"": None}, ["a"] * 99, [10**9] * 99),
    json.loads("[" * 900 + "]" * 900),
]  # fmt: skip
plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
nested = st.recursive(plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))
values = st.sampled_from([json.dumps(value) for value in HOSTILE]).map(json.loads) | nested
changes = st.tuples(st.lists(st.integers(0, 99), max_size=4), st.sampled_from(NAMES), values, st.booleans())


def changed(found: Any, path: list[int], name: str, value: Any, remove: bool) -> Any:
    """The data with another value at a place; each number of the path chooses a child, an end adds or removes one."""
    children = list(found) if isinstance(found, dict) else list(range(len(found))) if isinstance(found, list) else []
    if path and children:
        child = children[path[0] % len(children)]
        found[child] = changed(found[child], path[1:], name, value, remove)
        return found
    if not isinstance(found, dict):
        return value
    return {key: kept for key, kept in found.items() if key != name} | ({} if remove else {name: value})


@st.composite
def bodies(draw: st.DrawFn) -> tuple[str, bytes]:
    """A valid body, values of which are others, and then perhaps bytes of it; after the route that it is for."""
    data: Any = deepcopy(draw(st.sampled_from(VALID)))
    route = "/v1/chat/completions" if "messages" in data else "/v1/completions"
    for change in draw(st.just([]) | st.lists(changes, max_size=2)):
        data = changed(data, *change)
    raw = json.dumps(draw(values) if draw(st.integers(0, 9)) == 0 else data).encode()
    damage, at, some = draw(st.integers(0, 29)), draw(st.integers(0, len(raw))), draw(st.binary(max_size=8))
    odd = {
        0: raw[:at],
        1: raw[:at] + some + raw[at + len(some) :],
        2: raw[:at] + some + raw[at:],
        3: some,
        4: b"\xef\xbb\xbf" + raw,
        5: raw.decode().encode("utf-16"),
        6: b'{"prompt": "a", "prompt": ' + raw + b"}",
        7: b'{"prompt": ' + b"[" * at * 100,
        8: b'{"prompt": "a", "max_tokens": ' + b"9" * at * 9 + b"}",
        9: raw.replace(b"6", b"6e9", 1),
        10: raw + b" " * 2**22,
    }
    return route, odd.get(damage, raw)


STILL_THERE = (
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n" % len(json.dumps(CHECKED))
) + json.dumps(CHECKED).encode()
TARGETS = ["/v1/completions", "/v1/chat/completions", "/" + "a" * 9000]
TARGETS += """/health /metrics /v1/models /v1/models/toy /openapi.json /v1/models/../../etc/passwd /v1/models/%00%ff
/ // /v1//completions /v1/completions/ /v1/completions?x=%zz /v1/completions#x
http://elsewhere/v1/completions /% *""".split()
METHODS = [*["POST"] * 30, "GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "post", "FOO"]
NOT_HTTP = ("post", "FOO", "*", "HTTP/9.9", "HTTP", "")
KINDS = [*["application/json"] * 30, "Application/JSON; charset=utf-16", "text/plain", "", "application/json, x", "é"]
HEADERS = ["X: " + "a" * 9000, "Authorization: \xff", "Host:"]
HEADERS += """Accept: text/event-stream
Authorization: Bearer x
Content-Encoding: gzip
Upgrade: websocket
Range: bytes=0-1
Cookie: a
Origin: x
X-Forwarded-For: ' OR 1=1
Connection: keep-alive, upgrade
Accept-Encoding: *;q=0
Keep-Alive: timeout=-1""".split("\n")
# These say where the body ends, or are no headers at all.
FRAMING = ["Content-Length: 3\r\nContent-Length: 4", "X:\x00", "\x00\x01", "a b: c", ":", "Expect: 100-continue"]
FRAMING += """Transfer-Encoding: chunked
Transfer-Encoding: gzip
Content-Length: 0
Content-Length: -5
Content-Length: +5
Content-Length: 99999999999""".split("\n")


@st.composite
def messages(draw: st.DrawFn) -> tuple[bytes, bool]:
    """The bytes of a request, and whether they are whole and in order as HTTP has it."""
    (route, body), kind = draw(bodies()), draw(st.sampled_from(KINDS))
    target = draw(st.sampled_from([route] * 30 + TARGETS))
    version = draw(st.sampled_from(["HTTP/1.1"] * 20 + ["HTTP/1.0", "HTTP/9.9", "HTTP", ""]))
    odd = draw(st.sampled_from([[]] * 4 + [[each] for each in HEADERS]))
    framing = draw(st.sampled_from([[]] * 60 + [[each] for each in FRAMING]))
    method = draw(st.sampled_from(METHODS))
    lines = [f"{method} {target} {version}", "Host: x", "Connection: close"]
    lines += [f"Content-Type: {kind}", f"Content-Length: {len(body)}", *odd, *framing]
    whole = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
    return whole, not framing and not {method, target, version} & set(NOT_HTTP)


def exchanged(url: str, message: bytes, *, framed: bool) -> tuple[int, str, bytes] | None:
    """The status, the type and the body of the answer; None if there is none."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        try:
            connection.sendall(message)
            if not framed:  # the server may wait for more
                connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the server has answered already, and hung up
        method = "HEAD" if message.startswith(b"HEAD ") else "POST"
        answer = HTTPResponse(connection, method=method)
        try:
            answer.begin()
            return answer.status, answer.headers.get("Content-Type", ""), answer.read()
        except (HTTPException, ConnectionError):
            return None


def check(answer: tuple[int, str, bytes] | None, *, framed: bool, headless: bool) -> str:
    """How the message ended, in a word, if it ended as it should."""
    if answer is None:
        assert not framed
        return "hung up"
    status, kind, body = answer
    assert status < 500, body
    assert b"Traceback" not in body
    if status >= 400 and not headless and not (status == 400 and kind.startswith("text/plain") and not framed):
        error = json.loads(body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert "\n" not in error["message"]
        assert len(error["message"]) < 600
    elif status == 200 and kind.startswith("text/event-stream"):
        frames = [frame for frame in body.split(b"\n\n") if frame]
        assert frames[-1] == b"data: [DONE]"
    return str(status)


@pytest.mark.slow
def test_every_message_gets_an_answer_that_is_no_fault_of_the_server(capfd: pytest.CaptureFixture[str]) -> None:
    ends, workload = Counter[str](), ServeWorkload(max_tokens=8, policies=("mean_field",))
    expected = Generator(load()).generate(**CHECKED, early_stop=True).text

    # In a process of its own, because types are checked at run time in this one.
    with started(load, workload, {}) as place:

        @fuzz(400)
        @given(messages())
        def one(made: tuple[bytes, bool]) -> None:
            message, framed = made
            note(repr(message[:2000]))
            headless = message.startswith(b"HEAD ")
            ends[check(exchanged(place.url, message, framed=framed), framed=framed, headless=headless)] += 1
            if sum(ends.values()) % 50 == 0:
                answer = exchanged(place.url, STILL_THERE, framed=True)
                assert answer is not None
                assert json.loads(answer[2])["choices"][0]["text"] == expected

        one()
    assert capfd.readouterr() == ("", "")
    assert {"200", "400", "404", "405"} <= set(ends), ends
    with capfd.disabled():
        tell(ends)
