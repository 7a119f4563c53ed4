"""`unmask serve --config FILE`: keys are flags, flags win, and what is wrong is one line."""

import pytest

from unmask import cli
from unmask.cli import Command
from unmask.flags import EARLY_STOP, Backend, Model
from unmask.serve.config import ServerConfig
from unmask.settings import Settings


@pytest.fixture
def parse():
    """What `unmask serve` would be called with; the flags are put together as there."""
    seen = {}

    def serve(model: Model, cluster: Backend, server: ServerConfig, settings: Settings = EARLY_STOP) -> None:
        seen.update(model=model, cluster=cluster, settings=settings, config=server)

    def call(*arguments: str) -> dict:
        Command(serve, config_file=True)(list(arguments), standalone_mode=False)
        return seen

    return call


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "serve.yaml"

    def write(text: str) -> str:
        path.write_text(text)
        return str(path)

    return write


def test_keys_are_flags_in_either_spelling(parse, file):
    text = """
model: toy
policy: fixed
set: [tokens_per_pass=2]
max-tokens: 64
temperature: 1
early_stop: false
stop: END
max_batch_size: 4
cors-origin: [https://a.example, https://b.example]
seed: 0
grace-s:
"""
    found = parse("--config", file(text))
    assert (found["model"].model, found["model"].policy, found["model"].set_) == (
        "toy",
        "fixed",
        ("tokens_per_pass=2",),
    )
    assert found["settings"] == Settings(max_tokens=64, temperature=1.0, early_stop=False, stop=["END"])
    config = found["config"]
    assert (config.max_batch_size, config.seed, config.grace_s) == (4, 0, 30.0)
    assert list(config.cors_origin) == ["https://a.example", "https://b.example"]


def test_flags_win_over_the_file(parse, file):
    text = "{port: 1, early-stop: false, stop: [a, b], model: toy}"
    found = parse("--config", file(text), "--port", "2", "--early-stop", "--stop", "c")
    assert (found["config"].port, found["settings"].early_stop, found["settings"].stop) == (2, True, ("c",))
    assert found["model"].model == "toy"


def test_without_a_file_everything_is_as_it_was(parse):
    found = parse()
    assert found["config"] == ServerConfig()
    assert found["settings"] == Settings(early_stop=True)


WRONG = {
    "misspelt": ("max-batch-sise: 4", "'max-batch-sise'; did you mean 'max-batch-size'?"),
    "a word for a number": ("port: http", "port in {} must be a whole number, got 'http'"),
    "a fraction": ("port: 1.5", "must be a whole number, got 1.5"),
    "a truth value for a number": ("grace-s: true", "must be a number, got True"),
    "a number for a text": ("model: 7", "must be a text (in quotes), got 7"),
    "a number for a truth value": ("access-log: 1", "must be true or false, got 1"),
    "a list for a number": ("port: [1]", "must be a whole number, got [1]"),
    "a wrong element": ("cors-origin: [7]", "must be a text (in quotes), got 7"),
    "nothing in a list": ("stop: [A, null]", "stop in {} must be a text (in quotes), got None"),
    "too large": ("grace-s: 1" + "0" * 400, "grace-s in {} must be a number of at least 0, got inf"),
    "out of range": ("port: 70000", "port in {} must be a whole number in [0, 65535], got 70000"),
    "an octal number for a text": ("served-model-name: 0123", "must be a text (in quotes), got 83"),
    "a truth value for a text": ("api-key-file: yes", "api-key-file in {} must be a text (in quotes), got True"),
    "a list for a text": ("model: [a, b]", "model in {} must be a text (in quotes), got ['a', 'b']"),
    "twice": ("max-queue: 1\nmax_queue: 2", "gives max_queue twice"),
    "a list": ("- port", "must be a mapping of flags"),
    "no YAML": ("port: [", "is not YAML"),
    "not a flag": ("config-file: x", "unknown key"),
    "a number as a key": ("1: 2", "unknown key"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_in_it_is_one_line(case, file, capsys):
    text, says = WRONG[case]
    path = file(text)
    assert cli.run(["serve", "--config", path]) == 2
    err = capsys.readouterr().err
    assert err.startswith("unmask: ")
    assert err.count("\n") == 1
    assert says.replace("{}", path) in err


def test_a_file_that_is_missing_is_named(capsys):
    assert cli.run(["serve", "--config", "no/such.yaml"]) == 2
    assert capsys.readouterr().err == "unmask: cannot read the config no/such.yaml: No such file or directory\n"
