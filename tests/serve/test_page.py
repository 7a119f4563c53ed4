"""docs/serving.md: its examples are run against a server, and its tables name what there is."""

import re
import shutil
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest

from unmask.serve.config import ServerConfig
from unmask.serve.translate import REFUSED

PAGE = (Path(__file__).parent.parent.parent / "docs" / "serving.md").read_text()


def block(language: str) -> str:
    return re.search(rf"^```{language}\n(.*?)^```", PAGE, re.M | re.S)[1]


def test_the_client_example_runs(served, capsys):
    names: dict = {}
    exec(compile(block("python").replace("http://127.0.0.1:8000", served.url), "block", "exec"), names)
    names["client"].close()
    first, figures, streamed = capsys.readouterr().out.split("\n")
    assert first.endswith("=12")
    assert float(figures.split()[1]) > 0
    assert streamed.endswith("=12")


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_curl_example_runs(served):
    command = block("bash").replace("http://127.0.0.1:8000", served.url)
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, check=True)
    assert "=12" in done.stdout


def test_every_flag_route_metric_and_refused_field_is_on_the_page(toy_served):
    for item in fields(ServerConfig):
        if item.metadata:
            assert f"--{item.name.replace('_', '-')}`" in PAGE
    for family in toy_served.worker.metrics.registry.collect():
        assert family.name in PAGE
    for name in REFUSED:
        grammar = any(word in name for word in ("grammar", "regex", "json_schema", "guided", "ebnf", "structured"))
        assert grammar or f"`{name}`" in PAGE or name == "function_call"
