"""What is measured: a checkpoint, or a shape with random weights."""

import json

import pytest
from doubles import tiny_config

import unmask
from unmask.bench.subject import open_loaded
from unmask.cli import run
from unmask.errors import OutOfMemory


@pytest.mark.parametrize("random_weights", [True, False])
def test_a_model_is_opened_quantised(random_weights):
    opened = open_loaded("tiny", random_weights=random_weights, device="cpu", quantize="int8").model
    assert opened.quantized == "int8"
    assert str(opened.blocks[0].down.stored.dtype) == "torch.int8"
    assert str(opened.embedding.weight.dtype) == "torch.float32"


@pytest.mark.parametrize("command", ["step", "generate"])
@pytest.mark.parametrize("subject", [[], ["tiny"], ["--shape", "tiny", "--random-weights"]])
def test_an_unknown_format_is_refused_before_anything_is_loaded_or_measured(command, subject, capsys, monkeypatch):
    def never(*_, **__):
        raise AssertionError

    for name in ("load_model", "random_model", "measure_ceilings"):
        monkeypatch.setattr(f"unmask.bench.subject.{name}", never)
    assert run(["bench", command, *subject, "--device", "cpu", "--quantize", "int9"]) == 2
    assert capsys.readouterr().err == ("unmask: unknown quantisation 'int9'; did you mean 'int8'? known: fp8, int8\n")


def test_random_weights_take_the_shape_of_a_folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(tiny_config("dream")))
    opened = open_loaded(str(tmp_path), random_weights=True, dtype="bfloat16", device="cpu").model
    assert opened.spec.name == f"{tmp_path.name} with random weights"
    assert opened.spec.family == "dream"
    assert str(opened.dtype) == "torch.bfloat16"


def test_without_a_choice_a_cpu_gets_the_shape_of_tiny():
    opened, embedded = open_loaded(device="cpu").model, unmask.load("tiny", device="cpu").model
    assert opened.shape == embedded.shape
    assert opened.spec.name == "tiny with random weights"


def test_a_model_that_does_not_fit_is_refused_before_it_is_built(monkeypatch):
    monkeypatch.setattr("unmask.models.device.free_memory", lambda device: 2**30)
    with pytest.raises(
        OutOfMemory, match=r"llada-8b with random weights needs 29\.86 GiB on cpu, but 1\.00 GiB are free"
    ):
        open_loaded(shape="llada-8b", random_weights=True, device="cpu")
