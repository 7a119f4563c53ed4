"""examples/deploy: the files can be read, name each other rightly, and their commands are commands of ours."""

import configparser
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from unmask import cli

FOLDER = Path(__file__).parent.parent.parent / "examples" / "deploy"
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())


def unit() -> configparser.ConfigParser:
    found = configparser.ConfigParser(strict=False, interpolation=None)
    found.optionxform = str
    found.read(FOLDER / "unmask.service")
    return found


def docker_command() -> list[str]:
    return yaml.safe_load(re.search(r"^CMD (.*)", (FOLDER / "Dockerfile").read_text(), re.M)[1])


COMMANDS = {
    "compose.yaml": COMPOSE["services"]["unmask"]["command"],
    "unmask.service": shlex.split(unit()["Service"]["ExecStart"])[1:],
    "Dockerfile": docker_command(),
}


@pytest.mark.parametrize("file", COMMANDS)
def test_a_command_is_understood_to_the_point_where_it_would_listen(file, tmp_path, capsys):
    keys = tmp_path / "keys"
    keys.write_text("sesame\n")
    keys.chmod(0o600)
    places = {"/etc/unmask/serve.yaml": FOLDER / "serve.yaml", "/run/secrets/keys": keys}
    places["${CREDENTIALS_DIRECTORY}/keys"] = keys
    arguments = [str(places.get(word, word)) for word in COMMANDS[file]]
    assert cli.run([*arguments, "--host", ".."]) == 2
    assert capsys.readouterr().err == "unmask: cannot listen at .., port 8000: that is no name of a host\n"


def test_the_server_and_its_proxy_know_each_other():
    service, proxy = COMPOSE["services"]["unmask"], COMPOSE["services"]["proxy"]
    assert "ports" not in service  # only the proxy can be reached
    assert "reverse_proxy unmask:8000" in (FOLDER / "Caddyfile").read_text()
    assert "flush_interval -1" in (FOLDER / "Caddyfile").read_text()
    for volume in (*service["volumes"], *proxy["volumes"]):
        source = volume.split(":")[0]
        assert (FOLDER / source).is_file() if source.startswith(".") else source in COMPOSE["volumes"]
    context = FOLDER / service["build"]["context"]
    assert (context / service["build"]["dockerfile"]).samefile(FOLDER / "Dockerfile")
    for line in re.findall(r"^COPY (.*) \S+$", (FOLDER / "Dockerfile").read_text(), re.M):
        assert all((context / name).exists() for name in line.split())


def test_requests_have_the_time_that_they_were_promised():
    grace_s = yaml.safe_load((FOLDER / "serve.yaml").read_text())["grace-s"]
    assert int(unit()["Service"]["TimeoutStopSec"]) > grace_s
    assert int(COMPOSE["services"]["unmask"]["stop_grace_period"].removesuffix("s")) > grace_s


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_knows_every_line_of_the_unit(tmp_path):
    text = (FOLDER / "unmask.service").read_text().replace("/opt/unmask/bin/unmask", "/bin/true")
    (tmp_path / "unmask.service").write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "unmask.service")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
