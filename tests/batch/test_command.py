"""`unmask batch` as a user meets it: answers, kills, interrupts, two processes on one file, and what it refuses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from batch.lines import CHAT, answers_in, line_of, write

from unmask import cli, progress
from unmask.batch import Progress
from unmask.models.toy import SENTENCE

COMMAND = [sys.executable, "-m", "unmask", "batch"]
# As many passes as tokens, two texts at a time: a second or two for each hundred lines.
SLOW = ["--model", "toy", "--policy", "fixed", "--no-early-stop", "--batch-size", "2", "--temperature", "1"]


def lines_of(count: int) -> list[dict]:
    return [
        line_of(f"r-{n}", {"prompt": "Hi" * (n % 7 + 1), "max_tokens": 25 + n % 20, "seed": n}) for n in range(count)
    ]


@contextmanager
def started(*arguments: str):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*COMMAND, *arguments], **options) as process:
        try:
            yield process
        finally:
            process.kill()  # which does nothing to one that has ended


def until_answered(process: subprocess.Popen, target, count: int) -> None:
    """Wait until the file has so many lines; 0: until it is there."""
    end = time.monotonic() + 60
    while not target.exists() or target.read_bytes().count(b"\n") < count:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.002)


def test_a_file_of_requests_is_answered_and_a_second_command_does_not_even_load_the_model(tmp_path, capsys):
    talk = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "model": "parrot"}
    lines = [line_of("a", {"prompt": "Hi"}), line_of("b", talk, CHAT), line_of("c", {"prompt": 5})]
    source, target = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    flags = ["--model", "toy", "--policy", "fixed", "--set", "tokens_per_pass=2", "--max-tokens", "8"]
    command = ["batch", str(source), str(target), "--served-model-name", "parrot"]
    assert cli.run([*command, *flags]) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    first, last = shown.err.splitlines()
    assert first == "unmask: 0 of 3 requests"
    assert last.startswith("unmask: 3 requests, 1 of them failed, 13 tokens, 7 forward passes, ")
    found = answers_in(target)
    assert found["a"]["choices"][0]["text"] == SENTENCE[:8]
    assert (found["a"]["model"], found["a"]["decoding"]["policy"]) == ("parrot", "fixed")
    assert found["b"]["choices"][0]["message"] == {"role": "assistant", "content": SENTENCE[:5]}
    assert found["c"]["error"]["param"] == "prompt"
    assert cli.run([*command, "--model", "./no/such/folder"]) == 0
    assert capsys.readouterr().err.splitlines()[-1] == "unmask: nothing left to do: all 3 requests are answered"
    assert answers_in(target) == found


@pytest.mark.slow
def test_a_batch_that_is_killed_again_and_again_ends_like_one_that_is_not(tmp_path, capsys):
    source, target = write(tmp_path / "in.jsonl", lines_of(40)), tmp_path / "out.jsonl"
    assert cli.run(["batch", str(source), str(tmp_path / "calm.jsonl"), *SLOW]) == 0
    expected = answers_in(tmp_path / "calm.jsonl")
    assert len({answer["choices"][0]["text"] for answer in expected.values()}) > 10
    for count in (0, 1, 12):
        with started(str(source), str(target), *SLOW) as process:
            until_answered(process, target, count)
            process.send_signal(signal.SIGKILL)
            process.wait(30)
    kept = target.read_bytes()
    assert 12 <= kept.count(b"\n") < 40
    target.write_bytes(kept + b'{"id": "batch_req_')  # as if the kill had come within a write
    assert cli.run(["batch", str(source), str(target), *SLOW]) == 0
    assert answers_in(target) == expected
    assert target.read_bytes().startswith(kept)
    assert f"{len(kept.splitlines())} were answered before" in capsys.readouterr().err


@pytest.mark.slow
def test_a_second_process_is_refused_and_an_interrupt_says_how_to_go_on(tmp_path, capsys):
    source, target = write(tmp_path / "in.jsonl", lines_of(3000)), tmp_path / "out.jsonl"
    with started(str(source), str(target), *SLOW) as process:
        until_answered(process, target, 1)
        assert cli.run(["batch", str(source), str(target), *SLOW]) == 1
        said = f"unmask: another process writes {target}; wait for it, or choose another output file"
        assert capsys.readouterr().err.splitlines() == [said]
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=30)
        assert process.returncode == 130
    again = f"unmask: interrupted; every finished answer is in {target}, the same command goes on"
    assert err.splitlines() == ["unmask: 0 of 3000 requests", again]
    assert 1 <= len(answers_in(target)) < 3000


POLICY = """
from dataclasses import dataclass
from unmask.types import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftmost:
    count: int = 1

    def select(self, view, state=None):
        place = view.masked.cumsum(-1)
        return Decision(commit=view.masked & (place <= self.count), score=-place.float()), None
"""


@pytest.mark.slow
def test_a_policy_of_another_package_is_named_by_a_flag_or_by_a_line(tmp_path):
    (tmp_path / "elsewhere.py").write_text(POLICY)
    about = tmp_path / "elsewhere-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: elsewhere\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[unmask.policies]\nleftmost = elsewhere:Leftmost\n")
    named = {"policy": "leftmost", "count": 4}
    lines = [line_of("a", {"prompt": "Hi"}), line_of("b", {"prompt": "Hi", "decoding": named})]
    source, target = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    flags = ["--model", "toy", "--max-tokens", "8", "--policy", "leftmost", "--set", "count=2"]
    command = [*COMMAND, str(source), str(target), *flags]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, check=True, capture_output=True)
    found = answers_in(target)
    assert [found[key]["decoding"]["forward_passes"] for key in "ab"] == [4, 2]
    assert {found[key]["decoding"]["policy"] for key in "ab"} == {"leftmost"}


WRONG = {
    "stdin": (["-", "out.jsonl"], "it reads and writes files: - is not supported"),
    "stdout": (["in.jsonl", "-"], "it reads and writes files: - is not supported"),
    "no input": (["none.jsonl", "out.jsonl"], "cannot read none.jsonl: there is no such file"),
    "no folder": (["in.jsonl", "none/out.jsonl"], "cannot write none/out.jsonl"),
    "bad line": (["bad.jsonl", "out.jsonl"], "bad.jsonl, line 1 is not JSON"),
    "no output": (["in.jsonl"], "OUT"),
    "rows": (["in.jsonl", "out.jsonl", "--batch-size", "0"], "batch-size"),
    "model": (["in.jsonl", "out.jsonl", "--model", "./none"], "no such folder"),
    "policy": (["in.jsonl", "out.jsonl", "--policy", "meanfield"], "did you mean 'mean_field'?"),
    "setting": (["in.jsonl", "out.jsonl", "--top-p", "0"], "--top-p must be a number in (0, 1]"),
    "room": (["in.jsonl", "out.jsonl", "--max-tokens", "4096"], "--max-tokens 4096 leaves no room for a prompt"),
    "cache": (["in.jsonl", "out.jsonl", "--policy", "dawn", "--cache", "dual"], "dawn needs"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_command_gets_one_line_and_exit_status_2(case, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "in.jsonl", lines_of(2))
    (tmp_path / "bad.jsonl").write_text("{\n")
    arguments, expected = WRONG[case]
    given = ["--model", "toy"] if "--model" not in arguments else []
    assert cli.run(["batch", *given, *arguments]) == 2
    *before, last = capsys.readouterr().err.splitlines()
    assert before in ([], ["unmask: 0 of 2 requests"])
    assert last.startswith("unmask: ")
    assert expected in last


def test_without_the_extra_one_line_says_how_to_get_it(tmp_path, capsys, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("unmask.serve.", "unmask.batch"))]:
        if name != "unmask.serve.config":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette.exceptions", None)
    source = write(tmp_path / "in.jsonl", lines_of(1))
    assert cli.run(["batch", "--model", "toy", str(source), str(tmp_path / "out.jsonl")]) == 2
    said = "unmask: a batch needs starlette.exceptions, which is missing: pip install 'unmask[serve]'\n"
    assert capsys.readouterr().err == said


def test_where_there_is_no_terminal_progress_is_a_line_every_half_minute(capsys, monkeypatch):
    with progress.batch() as on_progress:
        for seconds in range(71):
            monkeypatch.setattr("time.monotonic", lambda now=1000.0 + seconds: now)
            on_progress(Progress(total=5000, before=1000, done=10 * seconds, seconds=float(seconds)))
    assert capsys.readouterr().err.splitlines() == [
        "unmask: 1000 of 5000 requests",
        "unmask: 1300 of 5000 requests, 10.0 a second, 0:06:10 left",
        "unmask: 1600 of 5000 requests, 10.0 a second, 0:05:40 left",
    ]


def test_the_command_of_the_documentation_restores_the_order(tmp_path, capsys):
    page = Path(__file__).parents[2] / "docs" / "batch.md"
    command = next(line for line in page.read_text().splitlines() if line.startswith("LC_ALL=C sort"))
    lines = [line_of(f"r-{n:07}", {"prompt": "Hi", "max_tokens": 40 - 3 * n}) for n in range(12)]
    source, target = write(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    assert cli.run(["batch", str(source), str(target), "--model", "toy", "--policy", "fixed"]) == 0
    assert list(answers_in(target)) == [f"r-{n:07}" for n in reversed(range(12))]  # the shortest text is done first
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    assert list(answers_in(tmp_path / "ordered.jsonl")) == [f"r-{n:07}" for n in range(12)]
    assert len(answers_in(target)) == 12
