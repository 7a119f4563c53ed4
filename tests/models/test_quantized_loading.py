"""How 8-bit weights get into a model, what memory that takes, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from doubles import tiny_config
from torch import Tensor, nn

import unmask
from unmask import tasks
from unmask.errors import OutOfMemory, UnknownName, UnmaskError
from unmask.models import device as memory
from unmask.models.checkpoint.loading import load_model
from unmask.models.checkpoint.weights import Weights
from unmask.models.quantized import FORMATS, QuantizedLinear, bytes_to_load, check_format
from unmask.models.random_weights import random_model

MakeFolder = Callable[..., Path]
CONFIG = tiny_config("llada", n_layers=2)


def linears(model: nn.Module, kind: type[nn.Module] = QuantizedLinear) -> dict[str, Any]:
    return {name: module for name, module in model.named_modules() if isinstance(module, kind)}


@pytest.mark.parametrize("quantize", FORMATS)
@pytest.mark.parametrize("family", ["make_llada", "make_dream"])
def test_loading_quantised_is_loading_and_then_quantising(
    request: pytest.FixtureRequest, family: str, quantize: str
) -> None:
    folder = request.getfixturevalue(family)(shards=3)
    plain, model = (load_model(folder, device="cpu", quantize=name).model for name in (None, quantize))
    found, expected = linears(model), linears(plain.blocks, nn.Linear)
    assert sorted(found) == sorted(f"blocks.{name}" for name in expected)
    assert len(found) == 8
    for name, linear in expected.items():
        layer, again = found[f"blocks.{name}"], QuantizedLinear(linear, quantize)
        assert torch.equal(layer.stored.view(torch.int8), again.stored.view(torch.int8))
        assert torch.equal(layer.scale, again.scale)
        assert layer.bias is None if linear.bias is None else torch.equal(layer.bias, linear.bias)
    others = dict(model.named_parameters())
    rest = {name: value for name, value in plain.named_parameters() if not name.startswith("blocks") or "norm" in name}
    assert {"embedding.weight", "head.weight", "norm.weight", "blocks.1.mlp_norm.weight"} <= rest.keys()
    assert all(torch.equal(others[name], value) for name, value in rest.items())
    assert (plain.dtype, model.dtype) == (torch.float32, torch.float32)


def test_a_model_says_that_it_is_quantised(llada_folder: Path) -> None:
    assert getattr(load_model(llada_folder, device="cpu", quantize="fp8").model, "quantized", None) == "fp8"
    assert getattr(load_model(llada_folder, device="cpu").model, "quantized", None) is None


def test_a_quantised_model_predicts_nearly_the_same() -> None:
    tokens = torch.arange(40)[None]
    with torch.inference_mode():
        plain, int8, fp8 = (
            load_model("tiny", device="cpu", quantize=name).model.predict(tokens).logits
            for name in (None, "int8", "fp8")
        )
    assert 0 < (int8 - plain).abs().mean() < 0.1 < (fp8 - plain).abs().mean() < 0.5


def test_the_embedded_model_still_answers() -> None:
    task = tasks.get("countdown", numbers=3)
    items = task.generate(0, 4)
    llm = unmask.load("tiny", device="cpu", quantize="int8")
    outputs = llm.generate([item.prompt for item in items], max_tokens=task.max_tokens, block_size=task.block_size)
    assert task.check_many(items, [output.text for output in outputs]) == [True] * 4


def test_an_unknown_name_is_refused_with_the_nearest(llada_folder: Path) -> None:
    with pytest.raises(UnknownName) as caught:
        load_model(llada_folder, device="cpu", quantize="int4")
    assert str(caught.value) == "unknown quantisation 'int4'; did you mean 'int8'? known: fp8, int8"
    with pytest.raises(UnknownName):
        random_model(CONFIG, quantize="nf4")


def test_a_device_without_the_format_is_refused() -> None:
    check_format("int8", torch.device("mps"))
    with pytest.raises(UnmaskError, match=r"^quantize='fp8' is not for mps, which has no such numbers; use quantize="):
        check_format("fp8", torch.device("mps"))


def test_the_toy_has_nothing_to_quantise() -> None:
    with pytest.raises(UnmaskError, match=r"^quantize='int8' applies to checkpoints, and 'toy' is none; leave it out$"):
        load_model("toy", quantize="int8")


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(UnmaskError, match=r"^quantize needs layers in a ModuleList `blocks`; Linear"):
        bytes_to_load(nn.Linear(2, 2, device="meta"), "int8")


def test_memory_is_counted_in_bytes_of_what_is_stored(monkeypatch: pytest.MonkeyPatch, llada_folder: Path) -> None:
    outside = 2 * (2 * 280 * 32 + 32)  # embedding, head and norm in bfloat16
    norms = 2 * (2 * 2 * 32)
    # Inputs of 32 and 48 are both padded to 64; a scale of four bytes for each output.
    stored = 2 * (96 + 32 + 96 + 32) * (64 + 4)
    layer = 2 * 96 * 32  # the largest that waits to be quantised
    needed = outside + norms + stored + layer
    monkeypatch.setattr(memory, "free_memory", lambda device: needed)
    load_model(llada_folder, device="cpu", dtype="bfloat16", quantize="int8")
    monkeypatch.setattr(memory, "free_memory", lambda device: needed - 1)
    with pytest.raises(OutOfMemory):
        load_model(llada_folder, device="cpu", dtype="bfloat16", quantize="int8")


def test_only_one_layer_at_a_time_is_wide(monkeypatch: pytest.MonkeyPatch, make_llada: MakeFolder) -> None:
    folder, sizes = make_llada(n_layers=5), []
    fill = Weights.fill

    def watch(weights: Weights, slots: dict[str, Tensor]) -> None:
        sizes.append(len([name for name in slots if "_proj" in name and "blocks" in name]))
        fill(weights, slots)

    monkeypatch.setattr(Weights, "fill", watch)
    load_model(folder, device="cpu", quantize="int8")
    assert [size for size in sizes if size] == [3, 2] * 5  # queries, keys and values; gate and up


def test_random_weights_are_those_of_the_model_that_is_not_quantised() -> None:
    plain, model = (random_model(CONFIG, seed=3, quantize=name) for name in (None, "int8"))
    assert torch.equal(plain.head.weight, model.head.weight)
    for name, linear in linears(plain.blocks, nn.Linear).items():
        layer = model.get_submodule(f"blocks.{name}")
        assert torch.equal(layer.stored, QuantizedLinear(linear, "int8").stored)
    assert model.quantized == "int8"
