"""A fingerprint tells checkpoints of one name apart, and costs little however large they are."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from unmask.errors import CheckpointError
from unmask.models.checkpoint import folder as module
from unmask.models.checkpoint.folder import fingerprint


@pytest.fixture
def copy(llada_folder: Path, tmp_path: Path) -> Path:
    shutil.copytree(llada_folder, tmp_path / "copy")
    return tmp_path / "copy"


def test_a_copy_has_the_same_and_toy_one_of_its_own(llada_folder: Path, copy: Path) -> None:
    (copy / "README.md").write_text("not part of the model")
    assert fingerprint(str(copy)) == fingerprint(str(llada_folder))
    assert fingerprint("toy") == fingerprint("toy") != fingerprint("tiny")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
def test_it_knows_what_the_weights_mean(copy: Path, name: str) -> None:
    before = fingerprint(str(copy))
    (copy / name).write_text((copy / name).read_text() + " ")
    assert fingerprint(str(copy)) != before


@pytest.mark.parametrize("place", [0, -1])
def test_it_knows_a_changed_number_in_the_first_and_in_the_last_tensor(copy: Path, place: int) -> None:
    before = fingerprint(str(copy))
    (path,) = copy.glob("*.safetensors")
    raw = bytearray(path.read_bytes())
    at = 8 + int.from_bytes(raw[:8], "little") if place == 0 else len(raw) - 1
    raw[at] ^= 1
    path.write_bytes(raw)
    assert fingerprint(str(copy)) != before


def test_a_training_step_shows_though_only_samples_are_read(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLE_BYTES", 64)
    (path,) = copy.glob("*.safetensors")
    before = fingerprint(str(copy))
    save_file({name: tensor + 1e-3 * torch.sign(tensor) for name, tensor in load_file(path).items()}, path)
    assert fingerprint(str(copy)) != before


def test_a_folder_without_weights_has_none(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"there is no model\.safetensors"):
        fingerprint(str(tmp_path))
