"""The canvas in a terminal: what is drawn while a text is decoded, and what is left when it is done."""

import io
import json
import os
import pty
import re
import sys
import threading

import pytest
from rich.console import Console

import unmask
from unmask import progress
from unmask.cli import run
from unmask.errors import UnmaskError
from unmask.live import CanvasView, visible
from unmask.models.toy import SENTENCE, Toy
from unmask.trace.record import Trace

ESCAPE = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
COLOUR = re.compile(rb"\x1b\[[0-9;]*3[0-7]m")


@pytest.fixture(scope="module")
def toy():
    return unmask.load("toy", device="cpu")


class Screen:
    """A pseudo-terminal for stdout and stderr; what arrives there is kept."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, columns: int = 80, **environment: str) -> None:
        self.monkeypatch, self.shown = monkeypatch, b""
        for name in ("NO_COLOR", "FORCE_COLOR"):
            monkeypatch.delenv(name, raising=False)
        settings = {"COLUMNS": str(columns), "LINES": "24", "TERM": "xterm-256color"} | environment
        for name, value in settings.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("sys.stdin", io.StringIO(""))

    def run(self, *arguments: str, stdout: bool = True, stderr: bool = True) -> int:
        primary, secondary = pty.openpty()
        reader = threading.Thread(target=self._read, args=(primary,))
        reader.start()
        with os.fdopen(secondary, "w", encoding="utf-8") as screen, self.monkeypatch.context() as patch:
            for name in ["stdout"] * stdout + ["stderr"] * stderr:
                patch.setattr(sys, name, screen)
            status = run(list(arguments))
        reader.join()
        os.close(primary)
        return status

    def _read(self, primary: int) -> None:
        try:
            while part := os.read(primary, 65536):
                self.shown += part
        except OSError:  # the other end is closed
            pass

    def left(self) -> list[str]:
        """What stands on the screen in the end: lines that were wiped are gone."""
        lines = [""]
        for part in re.split(rb"(\x1b\[[0-9;?]*[A-Za-z]|\r\n|\r)", self.shown):
            if part == b"\x1b[2K":
                lines[-1] = ""
            elif part == b"\x1b[1A":
                lines.pop()
            elif part == b"\r\n":
                lines.append("")
            elif not part.startswith(b"\x1b") and part != b"\r":
                lines[-1] += part.decode()
        return lines


TOY = ("generate", "--model", "toy", "Hello", "--max-tokens", "40", "--policy", "fixed")


@pytest.mark.parametrize("columns", [80, 30])
def test_the_canvas_fills_on_a_terminal_and_gives_way_to_the_text(monkeypatch, columns):
    screen = Screen(monkeypatch, columns=columns)
    assert screen.run(*TOY) == 0
    assert "░".encode() in screen.shown
    assert b"\xc2\xb7 40 of 40 tok" in screen.shown
    text, cost, *rest = screen.left()
    assert text == SENTENCE[:40]
    assert cost.startswith("40 tokens, 40 forward passes")
    assert rest == [""]
    drawn = ESCAPE.sub(b"", screen.shown.split(b"\x1b[?25h")[0]).decode()  # until the cursor is back
    assert all(len(line) <= columns for line in re.split("[\r\n]+", drawn))


def test_without_colours_new_tokens_are_bold(monkeypatch):
    screen = Screen(monkeypatch, NO_COLOR="1")
    assert screen.run(*TOY) == 0
    assert b"\x1b[1m" in screen.shown
    assert not COLOUR.search(screen.shown)
    coloured = Screen(monkeypatch)
    coloured.monkeypatch.delenv("NO_COLOR", raising=False)
    assert coloured.run(*TOY) == 0
    assert COLOUR.search(coloured.shown)


@pytest.mark.parametrize("way", ["dumb", "no-live"])
def test_where_nothing_can_be_drawn_the_text_is_streamed(monkeypatch, way):
    screen = Screen(monkeypatch, **({"TERM": "dumb"} if way == "dumb" else {}))
    assert screen.run(*TOY, *(["--no-live"] if way == "no-live" else [])) == 0
    assert "░".encode() not in screen.shown
    assert screen.left()[0] == SENTENCE[:40]
    assert way == "no-live" or b"\x1b" not in screen.shown


def test_stdout_gets_the_text_once_while_stderr_shows_the_canvas(monkeypatch, capsys):
    screen = Screen(monkeypatch)
    assert screen.run(*TOY, "--live", stdout=False) == 0
    assert capsys.readouterr().out == SENTENCE[:40] + "\n"
    assert "░".encode() in screen.shown
    assert screen.run(*TOY, "--live", "--json", stdout=False) == 0
    assert json.loads(capsys.readouterr().out)["text"] == SENTENCE[:40]


def test_a_pipe_gets_plain_text_and_refuses_to_be_drawn_on(monkeypatch, capsys):
    assert run(list(TOY)) == 0
    assert capsys.readouterr() == (SENTENCE[:40] + "\n", "")
    assert run([*TOY, "--live"]) == 2
    assert "--live needs a terminal" in capsys.readouterr().err
    screen = Screen(monkeypatch)
    assert screen.run(*TOY, "another", "--live") == 2
    assert "--live shows one prompt, got 2" in "\n".join(screen.left())


def test_a_conversation_is_drawn_too(monkeypatch):
    screen = Screen(monkeypatch)
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\nagain\n"))
    assert screen.run("chat", "--model", "toy", "--max-tokens", "20", "--policy", "fixed") == 0
    assert "░".encode() in screen.shown
    left = screen.left()
    assert left[::2] == [SENTENCE[:20]] * 2 + [""]


HOSTILE = "a\x1b]0;title\x07b\x1b[2J\x9bc\r\x7f\u202e d\n\te"


def test_control_characters_are_symbols(monkeypatch, toy):
    shown = visible(HOSTILE)
    assert shown == "a␛]0;title␇b␛[2J\ufffdc␍␡\ufffd d\n\te"
    assert (
        visible("caf\u00e9 \u4f60 \u00a0 \U0001f468\u200d\U0001f469")
        == "caf\u00e9 \u4f60 \u00a0 \U0001f468\u200d\U0001f469"
    )
    for live in ("--live", "--no-live"):
        screen = Screen(monkeypatch)
        prompt = "<|answer|>\x1b]0;x\x07[MASK]"
        assert screen.run("generate", "--model", "toy", "--infill", prompt, live) == 0
        assert b"\x1b]" not in screen.shown
        assert b"\x07" not in screen.shown
        assert "␛]0;x␇" in "\n".join(screen.left())


def drawn(view: CanvasView, width: int, height: int | None = None) -> list[str]:
    return view.frame(width, height).plain.split("\n")


def test_a_picture_shows_what_is_open_what_is_new_and_what_was_given(toy):
    request = toy.request("<|answer|>Eve[MASK]y\nmask[MASK]", infill=True, policy="fixed")
    view = CanvasView(request)
    assert drawn(view, 80) == ["<|answer|>Eve░y↵", "mask░"]
    events = toy.stream(request)
    view.hear(next(events).step)
    first = view.frame(80)
    [position] = [commit.position for commit in view.step.committed]
    fresh = [first.plain[span.start : span.end] for span in first.spans if span.style == "bold green"]
    assert fresh == [toy.codec.token_text(request.canvas.tokens[position])]
    assert first.plain.count("░") == 1
    assert "1 of 2 tokens" in view.status().plain
    list(events)
    assert "░" not in view.frame(80).plain
    with pytest.raises(UnmaskError, match="a request has its options already, got max_tokens"):
        toy.stream(request, max_tokens=5)


def test_positions_that_were_opened_again_stand_out(toy):
    policy = unmask.policies.Wino(draft_threshold=0.2, verify_threshold=0.99)
    request = toy.request("Hello", policy=policy, max_tokens=40)
    view, marked = CanvasView(request), False
    for event in toy.stream(request):
        view.hear(event.step)
        marked |= any(span.style == "yellow" for span in view.frame(80).spans)
    assert marked


def test_a_long_canvas_is_shown_around_its_block(toy):
    request = toy.request("Hello", policy=unmask.policies.get("fixed", passes=2), max_tokens=400, block_size=20)
    view, events = CanvasView(request), toy.stream(request)
    for event in events:
        view.hear(event.step)
        if request.canvas.block_index == 10 and request.canvas.block_step == 1:
            break
    lines = drawn(view, 20, 8)  # a block is a line
    assert lines[0] == "⋮ 8 more above"
    assert "░" not in "".join(lines[1:3])
    assert 0 < lines[3].count("░") < 20
    assert lines[4:] == ["░" * 20] * 3 + ["⋮ 6 more below"]
    list(events)
    assert drawn(view, 20, 8)[-1] == ""
    assert drawn(view, 20)[0].startswith("Every masked l")


def test_a_character_of_several_tokens_is_shown_whole(toy):
    euro = list("\u20ac".encode())
    ids = toy.codec.encode("\u20ac", special=False)
    assert len(ids) == len(euro)
    request = toy.request([*ids, toy.spec.mask_id, *ids], infill=True)
    assert drawn(CanvasView(request), 80) == ["\u20ac░\u20ac"]


def test_an_interrupt_leaves_the_last_picture_and_the_cursor(toy):
    request = toy.request("Hello", policy="fixed", max_tokens=9)
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=40)
    with pytest.raises(KeyboardInterrupt), CanvasView(request).on(console):
        raise KeyboardInterrupt
    assert screen.getvalue().endswith("\x1b[?25h")
    assert "░" * 9 in screen.getvalue().rsplit("\x1b[2K", 1)[-1]


@pytest.fixture
def interrupted(monkeypatch):
    """The third pass is interrupted, as by Ctrl-C."""
    passes, real = [], Toy.predict

    def predict(self, tokens, **options):
        passes.append(len(tokens))
        if len(passes) == 3:
            raise KeyboardInterrupt
        return real(self, tokens, **options)

    monkeypatch.setattr(Toy, "predict", predict)


@pytest.mark.parametrize("on_terminal", [True, False])
def test_an_interrupted_command_has_status_130_and_keeps_its_trace(
    interrupted, on_terminal, monkeypatch, tmp_path, capsys
):
    path = tmp_path / "t.jsonl"
    screen = Screen(monkeypatch)
    assert screen.run(*TOY, "--trace", str(path), stdout=on_terminal, stderr=on_terminal) == 130
    said = "\n".join(screen.left()) + capsys.readouterr().err
    assert f"unmask: interrupted; {path} has the passes up to here" in said
    trace = Trace.load(path)
    assert [line["step"] for line in trace.steps] == [0, 1]
    assert trace.results == []


def test_prompts_that_were_done_before_an_interrupt_have_their_results(interrupted, tmp_path, capsys):
    path = tmp_path / "t.jsonl"
    command = ["generate", "--model", "toy", "a", "b", "--max-tokens", "2", "--policy", "fixed", "--batch-size", "1"]
    assert run([*command, "--trace", str(path)]) == 130
    assert capsys.readouterr().out == SENTENCE[:2] + "\n"
    trace = Trace.load(path)
    assert [line["row"] for line in trace.results] == [0]
    assert len(trace.header["prompts"]) == 2


def test_loading_tells_how_many_bytes_were_read():
    heard = []
    unmask.load("tiny", device="cpu", on_bytes=lambda done, total: heard.append((done, total)))
    done, totals = zip(*heard, strict=True)
    assert list(done) == sorted(done)
    assert set(totals) == {done[-1]}
    assert done[-1] > 10_000_000


def test_a_model_that_loads_for_a_while_has_a_bar(monkeypatch):
    screen = Screen(monkeypatch)
    command = ["generate", "Countdown: 3,4,5,12", "--max-tokens", "4", "--policy", "fixed", "--device", "cpu"]
    monkeypatch.setattr(progress, "LOADING_S", -1.0)
    assert screen.run(*command) == 0
    assert b"loading tiny" in screen.shown
    assert not any("loading" in line for line in screen.left())
