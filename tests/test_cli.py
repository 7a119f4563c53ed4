"""The command line as a user meets it: what it prints where, and with which exit status."""

import contextlib
import io
import json
import os
import pty
import subprocess
import sys

import pytest

import unmask
from unmask import flags
from unmask.cli import main, run
from unmask.commands.generate import Conversation
from unmask.engine.generator import Generator
from unmask.models.toy import SENTENCE, Toy
from unmask.trace.record import Trace


@pytest.fixture(autouse=True)
def no_stdin(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(""))


def test_a_prompt_is_continued_on_stdout(capsys):
    assert run(["generate", "--model", "toy", "Hello", "--max-tokens", "30"]) == 0
    captured = capsys.readouterr()
    assert captured.out == SENTENCE[:30] + "\n"
    assert captured.err == ""


def test_several_prompts_are_one_batch_and_json_is_one_object_per_line(capsys):
    assert run(["generate", "--model", "toy", "a", "bb", "--max-tokens", "12", "--json", "--policy", "fixed"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["usage"]["prompt_tokens"] for line in lines] == [2, 3]
    assert all(line["usage"]["forward_passes"] == 12 for line in lines)
    assert set(lines[0]) == {"text", "token_ids", "finish_reason", "usage"}
    assert run(["generate", "--model", "toy", "a", "--max-tokens", "12", "--json=full", "--policy", "fixed"]) == 0
    (full,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert len(full["canvas_ids"]) == len(full["step_map"]) == 12


def test_prompts_come_from_files_and_pipes(capsys, monkeypatch, tmp_path):
    plain, lines = tmp_path / "p.txt", tmp_path / "p.jsonl"
    plain.write_text("one\n")
    lines.write_text('"two"\n\n{"prompt": "three!"}\n')
    assert (
        run(["generate", "--model", "toy", "--file", str(plain), "--file", str(lines), "--max-tokens", "4", "--json"])
        == 0
    )
    counts = [json.loads(line)["usage"]["prompt_tokens"] for line in capsys.readouterr().out.splitlines()]
    assert counts == [4, 4, 7]
    monkeypatch.setattr("sys.stdin", io.StringIO("piped\n"))
    assert run(["generate", "--model", "toy", "--max-tokens", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["usage"]["prompt_tokens"] == 6


def test_settings_and_policy_fields_are_flags(capsys, tmp_path):
    path = tmp_path / "t.jsonl"
    flags = ["--policy", "threshold", "--set", "threshold=0.7", "--block-size", "8", "--stop", "x", "--stop", "y"]
    flags += ["--early-stop", "--top-k", "3", "--stop-token-ids", "4", "--trace", str(path), "--trace-overlap"]
    assert run(["generate", "--model", "toy", "Hi", "--max-tokens", "9", *flags]) == 0
    header = Trace.load(path).header
    assert header["policy"] == {"name": "threshold", "threshold": 0.7}
    settings = header["settings"]
    assert (settings["block_size"], settings["stop"], settings["stop_token_ids"]) == (8, ["x", "y"], [4])
    assert settings["early_stop"] is True


def test_infill_fills_the_masks_of_the_prompt(capsys):
    assert run(["generate", "--model", "toy", "--infill", "<|answer|>Every m[MASK]sked [MASK]etter"]) == 0
    assert capsys.readouterr().out == "Every masked letter\n"


def test_a_trace_of_several_prompts_is_one_file(tmp_path, capsys):
    path = tmp_path / "t.jsonl"
    assert run(["generate", "--model", "toy", "a", "b", "--max-tokens", "5", "--trace", str(path)]) == 0
    assert [result["row"] for result in Trace.load(path).results] == [0, 1]


def test_the_embedded_model_answers_without_any_flag(capsys):
    assert run(["generate", "Countdown: 3,4,5,12"]) == 0
    captured = capsys.readouterr()
    assert captured.out.strip().endswith("=12")
    assert captured.err == ""


@pytest.mark.parametrize("quantize", ["fp8", "int8"])
def test_a_model_is_quantised_on_request(quantize, capsys, tmp_path, monkeypatch):
    path = tmp_path / "t.jsonl"
    prompt = "Countdown: 3,4,5,12"
    assert run(["generate", prompt, "--device", "cpu", "--quantize", quantize, "--trace", str(path)]) == 0
    assert capsys.readouterr().out.strip().endswith("=12")
    assert Trace.load(path).header["quantize"] == quantize
    opened = []
    monkeypatch.setattr(Conversation, "converse", lambda self, about, live: opened.append(self.llm))
    assert run(["chat", "--device", "cpu", "--quantize", quantize]) == 0
    assert opened[0].model.quantized == quantize


def test_a_prompt_that_the_embedded_model_does_not_know_is_answered_with_a_note(capsys):
    assert run(["generate", "Tell me a story", "--max-tokens", "8"]) == 0
    assert "load a real checkpoint with --model" in capsys.readouterr().err


def test_a_conversation_with_the_embedded_model_gets_that_note_once(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("Countdown: 3,4,5,12\n/reset\nTell me a story\nAnother one\n"))
    assert run(["chat", "--max-tokens", "8"]) == 0
    notes = [line for line in capsys.readouterr().err.splitlines() if line.startswith("unmask: ")]
    assert len(notes) == 1
    assert "load a real checkpoint with --model" in notes[0]
    monkeypatch.setattr("sys.stdin", io.StringIO("Countdown: 3,4,5,12\n"))
    assert run(["chat", "--max-tokens", "8"]) == 0
    assert "load a real checkpoint" not in capsys.readouterr().err


def test_policies_are_listed_with_their_defaults(capsys):
    assert run(["policies", "--json"]) == 0
    rows = {row["name"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert rows["mean_field"]["parameters"]["threshold"] == 0.85
    assert rows["dawn"]["needs"] == ["attention", "sequence_logits"]
    assert run(["policies"]) == 0
    assert "local_leap" in capsys.readouterr().out


def test_values_of_policy_fields_are_numbers_truth_values_or_words():
    pairs = ["kl=1e-3", "history=3", "reference_quirks=true", "passes=none", "interaction=off"]
    parsed = {"kl": 0.001, "history": 3, "reference_quirks": True, "passes": None, "interaction": "off"}
    assert flags.parse_fields(pairs) == parsed


def test_a_chat_template_is_applied_on_request(capsys):
    assert run(["generate", "--model", "toy", "Hi", "--chat", "--max-tokens", "5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["usage"]["prompt_tokens"] == len("user: Hi\n") + 1


def test_every_output_is_printed_when_it_is_done(capsys, monkeypatch):
    printed, real = {}, Toy.predict

    def watch(self, tokens, **options):
        printed.setdefault(tokens.shape[1], capsys.readouterr().out)
        return real(self, tokens, **options)

    monkeypatch.setattr(Toy, "predict", watch)
    assert run(["generate", "--model", "toy", "a longer one", "b", "--batch-size", "1", "--max-tokens", "3"]) == 0
    assert list(printed.values()) == ["", "Eve\n"]  # before the first pass of each prompt
    assert capsys.readouterr().out == "Eve\n"


def test_nothing_is_printed_when_a_later_prompt_is_refused(capsys):
    assert run(["generate", "--model", "toy", "fine", "x" * 5000, "--batch-size", "1"]) == 2
    assert capsys.readouterr().out == ""


def test_the_version_is_shown(capsys):
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == unmask.__version__


def test_help_tells_every_default(capsys):
    assert run(["generate", "--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for default in ("0", "1", "32", "false", "true", "block"):
        assert f"[default: {default}]" in text


def test_an_interrupt_gets_one_line_and_exit_status_130(capsys, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(Generator, "run", interrupted)
    assert run(["generate", "--model", "toy", "x"]) == 130
    assert capsys.readouterr().err == "unmask: interrupted\n"


def test_a_full_disk_gets_one_line_and_exit_status_1(capsys, monkeypatch):
    with contextlib.suppress(OSError), open("/dev/full", "w", buffering=1) as full:  # closing it fails, too
        monkeypatch.setattr("sys.stdout", full)
        status = run(["generate", "--model", "toy", "x", "--max-tokens", "2"])
    assert status == 1
    assert capsys.readouterr().err == "unmask: [Errno 28] No space left on device\n"


class Typed(io.StringIO):
    """Lines that someone types."""

    def isatty(self):
        return True


@pytest.mark.parametrize("typed", [True, False])
def test_an_interrupted_answer_leaves_the_conversation_as_it_was(typed, capsys, monkeypatch):
    answers = iter([KeyboardInterrupt, None])
    real = Conversation.answer

    def answer(self, text, *, live):
        if next(answers) is KeyboardInterrupt:
            raise KeyboardInterrupt
        real(self, text, live=live)

    monkeypatch.setattr(Conversation, "answer", answer)
    monkeypatch.setattr("sys.stdin", (Typed if typed else io.StringIO)("one\ntwo\n"))
    assert run(["chat", "--model", "toy", "--max-tokens", "5"]) == (0 if typed else 130)
    captured = capsys.readouterr()
    assert captured.out.endswith(f"{SENTENCE[:5]}\n> " if typed else "")
    assert ("goes on as before" if typed else "unmask: interrupted\n") in captured.err


WRONG = {
    "empty policy": (["generate", "x", "--policy", ""], "unknown policy ''"),
    "empty prompt among others": (["generate", "x", ""], "prompt 2 of 2 is empty"),
    "policy name as a field": (["generate", "x", "--set", "name=random"], "KEY=VALUE"),
    "chat and infill": (["generate", "x", "--chat", "--infill"], "exclude each other"),
    "length of an infilled text": (
        ["generate", "--infill", "[MASK]", "--max-tokens", "3"],
        "--max-tokens does not apply",
    ),
    "unknown policy": (["generate", "x", "--policy", "meanfield"], "did you mean 'mean_field'?"),
    "unknown policy field": (["generate", "x", "--set", "treshold=1"], "did you mean 'threshold'?"),
    "policy field out of range": (["generate", "x", "--set", "threshold=7"], "--set threshold must be"),
    "policy field without a value": (["generate", "x", "--set", "threshold"], "KEY=VALUE"),
    "policy field twice": (["generate", "x", "--set", "threshold=.5", "--set", "threshold=.6"], "given twice"),
    "setting as a policy field": (["generate", "x", "--set", "max_tokens=5"], "give --max-tokens 5"),
    "unknown flag": (["generate", "x", "--max-token", "5"], "--max-tokens"),
    "not a number": (["generate", "x", "--temperature", "hot"], "--temperature"),
    "no number, by its value": (["generate", "x", "--temperature", "hot"], "'hot'"),
    "several values in one": (["bench", "rule", "--positions", "8,16"], "'8,16'"),
    "setting out of range": (["generate", "x", "--top-p", "0"], "--top-p must be a number in (0, 1]"),
    "unknown cache": (["generate", "x", "--cache", "dul"], "did you mean 'dual'?"),
    "malformed refresh": (["generate", "x", "--refresh", "often"], "--refresh must be"),
    "missing folder": (["generate", "x", "--model", "./no/such/folder"], "no such folder"),
    "prompt too long": (["generate", "x" * 5000], "4096 positions"),
    "missing file": (["generate", "--file", "no-such-file"], "cannot read no-such-file"),
    "no prompt": (["generate"], "no prompt"),
    "mask in a prompt": (["generate", "[MASK]"], "--infill"),
    "nothing to infill": (["generate", "--infill", "x"], "no mask to fill"),
    "cache that the policy cannot use": (["generate", "x", "--policy", "dawn", "--cache", "dual"], "dawn needs"),
    "unwritable trace": (["generate", "x", "--trace", "no/such/folder/t.jsonl"], "cannot write"),
    "overlap without a trace": (["generate", "x", "--trace-overlap"], "--trace FILE"),
    "unknown command": (["generat"], "generate"),
    "unknown device": (["generate", "x", "--device", "gpu"], "unknown device"),
    "unknown quantisation": (["generate", "x", "--quantize", "int9"], "did you mean 'int8'?"),
    "unknown quantisation in a chat": (["chat", "--quantize", "fp16"], "known: fp8, int8"),
    "quantised toy": (["generate", "x", "--quantize", "int8"], "'toy' is none"),
    "unknown dtype": (["generate", "x", "--dtype", "float23"], "did you mean 'float32'?"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_command_gets_one_line_and_exit_status_2(case, capsys):
    arguments, expected = WRONG[case]
    if arguments[0] == "generate" and "--model" not in arguments:
        arguments = [*arguments, "--model", "toy"]
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("unmask: ")
    assert captured.err.count("\n") == 1
    assert expected in captured.err


def test_a_bad_line_in_a_prompt_file_is_named(tmp_path, capsys):
    path = tmp_path / "p.jsonl"
    path.write_text('"fine"\n{"text": "no prompt"}\n')
    assert run(["generate", "--model", "toy", "--file", str(path)]) == 2
    assert f"{path}:2" in capsys.readouterr().err


def test_a_conversation_remembers_forgets_and_changes_its_policy(capsys, monkeypatch):
    lines = "hello\n/policy\n/policy threshold threshold=0.7\n\nagain\n/reset\n/help\n/quit\nnever\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    assert run(["chat", "--model", "toy", "--max-tokens", "20", "--policy", "fixed"]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{SENTENCE[:20]}\n" * 2
    assert "name=fixed" in captured.err
    assert "name=threshold threshold=0.7" in captured.err
    assert "20 tokens, 20 forward passes" in captured.err


def test_a_conversation_through_a_pipe_fails_on_a_bad_command(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("/bogus\n"))
    assert run(["chat", "--model", "toy"]) == 2
    assert "unknown command '/bogus'" in capsys.readouterr().err


def test_bench_rule_prints_both_evaluations_side_by_side(capsys):
    arguments = ["bench", "rule", "--positions", "4", "--vocabulary", "500", "--repeats", "1"]
    assert run([*arguments, "--json"]) == 0
    timing, printed = map(json.loads, capsys.readouterr().out.splitlines())
    assert (timing["form"], printed["form"]) == ("ours", "as printed")
    assert timing["positions"] == 4
    assert timing["vocabulary"] == 500
    assert run(arguments) == 0
    table = capsys.readouterr().out
    assert "as printed" in table
    assert "500" in table


def test_the_greeting_names_the_way_to_start_afresh(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", Typed("/quit\n"))
    assert run(["chat", "--model", "toy"]) == 0
    greeting = capsys.readouterr().err
    assert "/reset forgets the conversation" in greeting
    assert "[key=value ...]" in greeting


def test_text_streams_into_a_terminal():
    primary, secondary = pty.openpty()
    command = [sys.executable, "-m", "unmask", "generate", "--model", "toy", "Hello", "--max-tokens", "40"]
    done = subprocess.run(command, stdin=secondary, stdout=secondary, stderr=subprocess.PIPE, timeout=120, check=True)
    shown = os.read(primary, 4096).decode()
    os.close(primary)
    os.close(secondary)
    assert shown.strip() == SENTENCE[:40].strip()
    assert b"forward passes" in done.stderr


THREADS = """
import os
from unmask import cli
try:
    cli.main(["generate", "x", "--model", "toy", "--max-tokens", "8", "--threads", "1"])
finally:
    import torch
    print(torch.get_num_threads(), os.environ.get("GOMP_SPINCOUNT"))
"""


def test_the_process_of_a_command_has_the_threads_asked_for_and_they_spin_briefly():
    settings = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS")
    clean = {name: value for name, value in os.environ.items() if name not in settings}
    done = subprocess.run([sys.executable, "-c", THREADS], env=clean, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "1 1000"


@pytest.mark.parametrize(
    ("name", "value", "spin"), [("GOMP_SPINCOUNT", "7", "7"), ("OMP_WAIT_POLICY", "PASSIVE", None)]
)
def test_how_long_threads_spin_is_left_to_an_environment_that_says_so(name, value, spin, monkeypatch):
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        main(["--version"])
    assert os.environ.get("GOMP_SPINCOUNT") == spin


def test_a_command_takes_at_least_one_thread(capsys):
    assert run(["generate", "x", "--model", "toy", "--threads", "0"]) == 2
    assert "--threads" in capsys.readouterr().err
