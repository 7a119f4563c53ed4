"""Names on the hub: every failure is one line, and only data files are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import errors

from unmask.errors import CheckpointError
from unmask.models.checkpoint import folder
from unmask.models.checkpoint.loading import load_model

NAME = "GSAI-ML/LLaDA-8B-Instruct"


def refusal(name: str = NAME, **options: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_model(name, device="cpu", **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_being_offline_is_said(tmp_path: Path) -> None:
    assert refusal(cache_dir=tmp_path) == (
        f"cannot load '{NAME}': it is neither a folder here nor in the cache, and the hub cannot be reached (offline?)"
    )


@pytest.mark.parametrize("name", ["two words", "owner//name", "-dash"])
def test_an_impossible_name_is_said(name: str) -> None:
    assert refusal(name) == f"cannot load '{name}': it is neither a folder here nor a possible name on the hub"


def failing(kind: type[Exception], message: str) -> Exception:
    error = kind.__new__(kind)  # their constructors want a response, whose type depends on the client's version
    Exception.__init__(error, message)
    return error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            failing(errors.RepositoryNotFoundError, "404"),
            "it is neither a folder here nor a repository on the hub that this token may read",
        ),
        (
            failing(errors.GatedRepoError, "403"),
            "it is gated; accept its terms on its hub page, and set HF_TOKEN (in Python, token= does too)",
        ),
        (failing(errors.RevisionNotFoundError, "404"), "the repository has no revision 'v9'"),
        (
            failing(errors.HfHubHTTPError, "500 Server Error\nID: 1"),
            "the hub answered: 500 Server Error ID: 1",
        ),
        (ConnectionError("no route\nto host"), "the download failed: no route to host"),
        (TimeoutError(), "the download failed: TimeoutError"),
    ],
)
def test_each_failure_of_the_hub_is_one_line(monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str) -> None:
    def fail(*args: Any, **options: Any) -> str:
        raise error

    monkeypatch.setattr(folder, "snapshot_download", fail)
    assert refusal(revision="v9") == f"cannot load '{NAME}': {reason}"


def test_only_data_files_are_downloaded(monkeypatch: pytest.MonkeyPatch, llada_folder: Path) -> None:
    asked: dict[str, Any] = {}

    def serve(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(llada_folder)

    monkeypatch.setattr(folder, "snapshot_download", serve)
    loaded = load_model(NAME, device="cpu", revision="main", token="secret", cache_dir="cache")
    assert loaded.model.spec.name == NAME
    assert asked == {
        "name": NAME,
        "revision": "main",
        "token": "secret",
        "cache_dir": "cache",
        "allow_patterns": ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"],
        "ignore_patterns": "*/*",
    }
