"""Help, suggestions and error lines of the command line: our own words, none of them cut."""

import io
import json
import os
import subprocess
import sys
from dataclasses import fields
from typing import get_type_hints

import pytest

from unmask import cli, policies
from unmask.cli import run
from unmask.models.checkpoint.folder import TINY
from unmask.settings import Settings

COMMANDS = [
    name.split()
    for name in (
        " ",
        "generate",
        "chat",
        "serve",
        "batch",
        "eval",
        "report",
        "policies",
        "bench",
        "bench rule",
        "bench step",
        "bench generate",
        "bench serve",
        "play",
        "view",
    )
]
THEIRS = ("Input should be", "Invalid value", "No such", "Got unexpected", "Missing ", "requires an argument")


@pytest.mark.parametrize("columns", [80, 60])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_fits_the_screen_cuts_nothing_and_has_plain_words(command, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert run([*command, "-h"]) == 0
    usage, *lines = capsys.readouterr().out.splitlines()
    assert usage.startswith("Usage: unmask ")
    assert max(map(len, lines)) <= columns
    assert not [line for line in lines if line.endswith("...")]
    assert not [line for line in lines for theirs in ("<", "x>=", "RANGE", "INTEGER", "[required]") if theirs in line]


def test_help_of_the_command_tells_what_each_verb_does_however_narrow(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    assert run(["-h"]) == 0
    text = capsys.readouterr().out
    assert "List the installed policies with their parameters and defaults." in " ".join(text.split())
    assert 'eval "$(_UNMASK_COMPLETE=bash_source unmask)"\n' in text  # one line, as it is typed
    verbs = ["generate", "chat", "serve", "play", "view", "batch", "policies", "eval", "report", "bench"]
    found = [line.split()[0] for line in text.partition("Commands:")[2].splitlines() if line.startswith("  ")]
    assert [word for word in found if word in verbs][: len(verbs)] == verbs  # in the order of use


WRONG = {
    "unknown flag": (["generate", "x", "--max-token", "5"], "unknown flag '--max-token'; did you mean '--max-tokens'?"),
    "flag unlike any": (["generate", "x", "--zzz"], "unknown flag '--zzz'; see `unmask generate --help`"),
    "argument as a flag": (["bench", "step", "--model", "toy"], "unknown flag '--model'; give MODEL without a flag"),
    "argument with another name": (["batch", "--source", "x"], "unknown flag '--source'; give IN without a flag"),
    "letters swapped": (["generate", "x", "--modle", "toy"], "unknown flag '--modle'; did you mean '--model'?\n"),
    "unknown command": (["generat"], "unknown command 'generat'; did you mean 'generate'?"),
    "unknown benchmark": (["bench", "stp"], "did you mean 'step'?"),
    "no number": (["generate", "x", "--temperature", "hot"], "--temperature must be a number, got 'hot'"),
    "no whole number": (["generate", "x", "--seed", "1.5"], "--seed must be a whole number, got '1.5'"),
    "too small": (["generate", "x", "--batch-size", "0"], "--batch-size must be a whole number of at least 1, got 0"),
    "no value": (["generate", "x", "--seed"], "--seed needs a value\n"),
    "a value too many": (["generate", "x", "--chat=yes"], "--chat takes no value"),
    "an argument too many": (["policies", "x"], "it takes no argument x; see `unmask policies --help`"),
    "an argument missing": (["batch"], "IN is missing; see `unmask batch --help`"),
    "several missing": (["report"], "RUNS is missing; see `unmask report --help`"),
    "flag like help": (["eval", "--recip", "x"], "unknown flag '--recip'; see `unmask eval --help`"),
    "a port beyond": (["view", "x", "--port", "70000"], "--port must be a whole number in [0, 65535], got 70000"),
    "a cache of other models": (["generate", "x", "--model", "toy", "--cache", "exact"], "--cache exact is for"),
    "an unknown cache": (["generate", "x", "--cache", "foo"], "unknown cache 'foo'; known: "),
    "an empty prompt": (["generate", "", "--model", "toy"], "the prompt is empty"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_command_is_told_in_our_words(case, capsys):
    arguments, expected = WRONG[case]
    assert run(arguments) == 2
    message = capsys.readouterr().err
    assert expected in message
    assert message.count("\n") == 1
    assert not [words for words in THEIRS if words in message]


NUMBERS = [item.name for item in fields(Settings) if get_type_hints(Settings)[item.name] in (int, float, int | None)]
PARAMETERS = [
    (policy, item.name)
    for policy in policies.names()
    for item in fields(policies.get(policy))
    if type(item.default) in (int, float)
]


@pytest.mark.parametrize("name", [*NUMBERS, "stop_token_ids", "refresh"])
def test_a_wrong_setting_is_named_as_it_is_typed(name, capsys):
    flag = f"--{name.replace('_', '-')}"
    assert run(["generate", "x", "--model", "toy", flag, "-1"]) == 2
    assert capsys.readouterr().err.startswith(f"unmask: {flag} must ")


@pytest.mark.parametrize(("policy", "name"), PARAMETERS, ids=map(":".join, PARAMETERS))
def test_a_wrong_parameter_of_a_policy_is_named_as_it_is_typed(policy, name, capsys):
    assert run(["generate", "x", "--model", "toy", "--policy", policy, "--set", f"{name}=word"]) == 2
    assert capsys.readouterr().err.startswith(f"unmask: --set {name} must ")


def test_what_a_file_says_is_named_as_the_file_has_it(tmp_path, capsys):
    path = tmp_path / "recipe.yaml"
    path.write_text("model: tiny\npolicy: mean_field\ntasks: [sudoku]\nsettings: {top_p: 0.0}\n")
    assert run(["eval", str(path), "--limit", "1"]) == 2
    assert capsys.readouterr().err.startswith(f"unmask: {path}: top_p must be")
    path.write_text("model: tiny\npolicy: mean_field\ntasks: [sudoku]\n")
    assert run(["eval", str(path), "--data-dir", "no/such/folder"]) == 2
    assert capsys.readouterr().err == "unmask: --data-dir must be a folder, got no/such/folder\n"


@pytest.mark.parametrize("arguments", [["-"], ["--file", "-"], []])
def test_a_prompt_is_read_from_a_pipe(arguments, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("piped\n"))
    assert run(["generate", "--model", "toy", "--max-tokens", "4", "--json", *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["usage"]["prompt_tokens"] == 6


def test_ids_of_json_lines_come_back(capsys, tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a", "id": "first"}\n{"prompt": "bb", "id": 2}\n"ccc"\n')
    assert run(["generate", "--model", "toy", "--max-tokens", "4", "--json", "--file", str(path)]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.get("id") for line in lines] == ["first", 2, None]
    assert [line["usage"]["prompt_tokens"] for line in lines] == [2, 3, 4]


def test_a_prompt_that_looks_like_a_flag_stays_a_prompt(capsys):
    assert run(["generate", "--model", "toy", "--max-tokens", "4", "--json", "--", "--json=full"]) == 0
    assert json.loads(capsys.readouterr().out)["usage"]["prompt_tokens"] == len("--json=full") + 1


def test_an_instruct_checkpoint_without_its_template_gets_a_hint(capsys, tmp_path):
    folder = tmp_path / "Tiny-Instruct"
    folder.symlink_to(TINY)
    command = ["generate", "--model", str(folder), "--max-tokens", "4", "Countdown: 3,4,5,12"]
    for more, hints in (([], 1), (["--chat"], 0)):
        assert run([*command, *more]) == 0
        assert capsys.readouterr().err.count("with --chat the prompt goes through its chat template") == hints


def test_a_shell_completes_commands_and_flags():
    words = {"_UNMASK_COMPLETE": "bash_complete", "COMP_WORDS": "unmask generate --max-t", "COMP_CWORD": "2"}
    command = [sys.executable, "-m", "unmask"]
    done = subprocess.run(command, env=os.environ | words, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["plain,--max-tokens"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_can_ask_how_to_complete(shell):
    asking = os.environ | {"_UNMASK_COMPLETE": f"{shell}_source"}
    done = subprocess.run([sys.executable, "-m", "unmask"], env=asking, capture_output=True, text=True, check=True)
    assert f"{shell}_complete" in done.stdout


def test_every_command_is_looked_at_above():
    verbs = cli.app.commands
    names = {(name,) for name in verbs} | {("bench", name) for name in verbs["bench"].commands}
    assert names <= {tuple(command) for command in COMMANDS}
