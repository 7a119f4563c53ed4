"""Weights in 8 bits: how far they are off, how they get into a model, and the kernel in Triton's interpreter.

Triton decides when it is imported whether it interprets, so the kernel runs in a process of its own. The interpreter
has no products in bfloat16; those are checked on a device. Run as a script, this compiles the kernels for two devices.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from doubles import tiny_config
from torch import Tensor, nn

import unmask
from unmask import tasks
from unmask.errors import OutOfMemory, UnknownName, UnmaskError
from unmask.models.checkpoint import memory
from unmask.models.checkpoint.loading import load_model
from unmask.models.checkpoint.weights import Weights
from unmask.models.quantized import (
    FORMATS,
    QuantizedLinear,
    bytes_to_load,
    check_format,
    deinterleave,
    interleave,
    product,
    quantize_rows,
)
from unmask.models.random_weights import random_model

MakeFolder = Callable[..., Path]
INT8, FP8 = FORMATS["int8"], FORMATS["fp8"]
CONFIG = tiny_config("llada", n_layers=2)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def restored(weight: Tensor, kind: torch.dtype) -> Tensor:
    stored, scale = quantize_rows(weight, kind)
    assert (stored.dtype, scale.dtype) == (kind, torch.float32)
    return stored.double() * scale.double()[:, None]


def test_int8_is_off_by_half_a_step_at_most() -> None:
    weight = draw(40, 300) * draw(40, 1, seed=1).exp()
    step = weight.abs().amax(1, keepdim=True) / 127
    error = (restored(weight, INT8) - weight).abs() / step
    assert 0.49 < error.max() < 0.50001


def test_fp8_is_off_by_a_sixteenth_at_most() -> None:
    weight = draw(40, 300) * (4 * draw(40, 300, seed=1)).exp()
    scale = weight.abs().amax(1, keepdim=True) / 448
    error = (restored(weight, FP8) - weight).abs()
    normal = weight.abs() >= scale * 2**-6
    assert 0.055 < (error / weight.abs())[normal].max() <= 1 / 16 + 1e-6
    assert 0.9 * 2**-10 < (error / scale)[~normal].max() <= 2**-10 + 1e-6  # where the steps no longer shrink


@pytest.mark.parametrize("kind", [INT8, FP8])
def test_outputs_are_quantised_alone(kind: torch.dtype) -> None:
    weight = draw(600, 7)
    stored, scale = quantize_rows(weight, kind)
    for output in (0, 255, 256, 599):
        one, its_scale = quantize_rows(weight[output : output + 1], kind)
        assert torch.equal(stored[output].view(torch.int8), one[0].view(torch.int8))
        assert scale[output] == its_scale[0]


@pytest.mark.parametrize("kind", [INT8, FP8])
def test_the_largest_weight_of_an_output_is_kept_and_so_is_its_sign(kind: torch.dtype) -> None:
    weight = torch.tensor([[3.0, -7.0, 0.0], [1e-6, 2e-6, 5e-7], [-3e38, 1.0, 3e38]])
    again = restored(weight, kind)
    largest = weight.abs().argmax(1, keepdim=True)
    torch.testing.assert_close(again.gather(1, largest), weight.double().gather(1, largest), rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", [INT8, FP8])
def test_an_output_without_weights_stays_zero(kind: torch.dtype) -> None:
    weight = torch.stack([torch.zeros(5), torch.full((5,), 1e-44), torch.ones(5)])
    assert restored(weight, kind)[:2].abs().max() < 1e-38
    assert restored(weight, kind)[2].allclose(torch.ones(5).double())


def test_a_word_holds_inputs_a_quarter_of_a_row_apart() -> None:
    stored = torch.arange(128, dtype=torch.int8)[None]
    words = interleave(stored).view(1, 32, 4)
    assert words[0, 0].tolist() == [0, 32, 64, 96]
    assert words[0, 31].tolist() == [31, 63, 95, 127]


@pytest.mark.parametrize("kind", [INT8, FP8])
@pytest.mark.parametrize("k", [1, 63, 64, 65, 200])
def test_interleaving_can_be_undone_and_pads_with_zeros(kind: torch.dtype, k: int) -> None:
    stored, _ = quantize_rows(draw(3, k), kind)
    words = interleave(stored)
    assert words.shape == (3, -(-k // 64) * 64)
    assert torch.equal(deinterleave(words, k).view(torch.int8), stored.view(torch.int8))
    assert not deinterleave(words, words.shape[1])[:, k:].float().any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("quantize", FORMATS)
@pytest.mark.parametrize("bias", [True, False])
def test_the_layer_multiplies_by_what_it_stores(quantize: str, bias: bool, dtype: torch.dtype) -> None:
    linear = nn.Linear(70, 9, bias=bias).to(dtype).requires_grad_(False)
    linear.weight.copy_(draw(9, 70))
    layer = QuantizedLinear(linear, quantize)
    x = draw(2, 3, 70).to(dtype)
    weight = restored(linear.weight, FORMATS[quantize]).to(dtype)
    torch.testing.assert_close(layer(x), F.linear(x, weight, linear.bias))
    assert layer(x).dtype == dtype
    assert not torch.equal(layer(x), linear(x))


@pytest.mark.parametrize("cast", [lambda model: model.to(torch.bfloat16), nn.Module.half, nn.Module.double])
@pytest.mark.parametrize("quantize", FORMATS)
def test_what_is_stored_cannot_be_cast(quantize: str, cast: Callable[[nn.Module], nn.Module]) -> None:
    layer = QuantizedLinear(nn.Linear(70, 9).requires_grad_(False), quantize)
    before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    cast(nn.Sequential(layer))
    assert {name: buffer.dtype for name, buffer in layer.named_buffers()} == {
        "stored": FORMATS[quantize],
        "scale": torch.float32,
        "arrived": torch.int32,
    }
    assert all(torch.equal(buffer.float(), before[name].float()) for name, buffer in layer.named_buffers())
    assert layer.bias.dtype != torch.float32
    x = draw(2, 70).to(layer.bias.dtype)
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight(x.dtype), layer.bias))


def test_what_is_stored_moves_with_the_model() -> None:
    layer = QuantizedLinear(nn.Linear(70, 9).requires_grad_(False), "fp8").to("meta", torch.bfloat16)
    assert {buffer.device.type for buffer in layer.buffers()} == {"meta"}
    assert (layer.stored.dtype, layer.scale.dtype) == (FP8, torch.float32)


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
    with pytest.raises(UnmaskError, match=r"^quantize='int8' applies to weights, and 'toy' has none; leave it out$"):
        load_model("toy", quantize="int8")


def test_a_model_without_blocks_is_refused() -> None:
    with pytest.raises(UnmaskError, match=r"^quantize needs a model with its layers in a ModuleList `blocks`; Linear"):
        bytes_to_load(nn.Linear(2, 2, device="meta"), "int8")


def test_memory_is_counted_in_bytes_of_what_is_stored(monkeypatch: pytest.MonkeyPatch, llada_folder: Path) -> None:
    outside = 2 * (2 * 280 * 32 + 32)  # embedding, head and norm in bfloat16
    norms = 2 * (2 * 2 * 32)
    # Inputs of 32 and 48 are both padded to 64; a scale of four bytes for each output.
    stored = 2 * (96 + 32 + 96 + 32) * (64 + 4)
    block = 2 * (2 * 32 + (96 + 32 + 96) * 32 + 32 * 48)  # the largest that waits to be quantised
    needed = outside + norms + stored + block
    monkeypatch.setattr(memory, "free_memory", lambda device: needed)
    load_model(llada_folder, device="cpu", dtype="bfloat16", quantize="int8")
    monkeypatch.setattr(memory, "free_memory", lambda device: needed - 1)
    with pytest.raises(OutOfMemory):
        load_model(llada_folder, device="cpu", dtype="bfloat16", quantize="int8")


def test_only_one_block_at_a_time_is_wide(monkeypatch: pytest.MonkeyPatch, make_llada: MakeFolder) -> None:
    folder, sizes = make_llada(n_layers=5), []
    fill = Weights.fill

    def watch(weights: Weights, slots: dict[str, Tensor]) -> None:
        sizes.append(len([name for name in slots if "_proj" in name and "blocks" in name]))
        fill(weights, slots)

    monkeypatch.setattr(Weights, "fill", watch)
    load_model(folder, device="cpu", quantize="int8")
    assert [size for size in sizes if size] == [5] * 5


def test_random_weights_are_those_of_the_model_that_is_not_quantised() -> None:
    plain, model = (random_model(CONFIG, seed=3, quantize=name) for name in (None, "int8"))
    assert torch.equal(plain.head.weight, model.head.weight)
    for name, linear in linears(plain.blocks, nn.Linear).items():
        layer = model.get_submodule(f"blocks.{name}")
        assert torch.equal(layer.stored, QuantizedLinear(linear, "int8").stored)
    assert model.quantized == "int8"


@pytest.fixture
def interpreter(interpreted: Callable[..., Any]) -> Callable[..., tuple[Tensor, Tensor]]:
    """The kernels, in the process that interprets."""
    return partial(interpreted, by_kernels)


def by_kernels(
    x: Tensor, stored: Tensor, scale: Tensor, bias: Tensor | None, kind: torch.dtype, **tiles: int
) -> tuple[Tensor, Tensor]:
    """The product, and the widened weights. Bytes travel as int8, which a pipe can carry."""
    from unmask.models.kernels.quantized import Tiles, multiply, widened

    words, arrived = interleave(stored).view(torch.int32), torch.zeros(64, dtype=torch.int32)
    out = multiply(x, words, scale, bias, arrived, kind=kind, tiles=Tiles(**tiles))
    again = multiply(x, words, scale, bias, arrived, kind=kind, tiles=Tiles(**tiles))
    assert torch.equal(out, again)
    assert not arrived.any()
    return out, widened(words.view(kind), scale, x.shape[1], x.dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("kind", [INT8, FP8])
@pytest.mark.parametrize(
    ("m", "n", "k", "tiles"),
    [
        (1, 1, 1, {"outputs": 16, "words": 16}),
        (3, 70, 100, {"outputs": 64, "words": 16}),
        (17, 65, 257, {"outputs": 16, "words": 16, "parts": 2}),
        (33, 5, 64, {"outputs": 16, "words": 16, "parts": 4}),  # more parts than there is to divide
        (35, 70, 300, {"outputs": 64, "words": 32, "parts": 3, "rows": 16}),
    ],
)
def test_the_kernel_multiplies_by_what_is_stored(
    interpreter: Callable[..., tuple[Tensor, Tensor]],
    m: int,
    n: int,
    k: int,
    tiles: dict[str, int],
    kind: torch.dtype,
    dtype: torch.dtype,
) -> None:
    weight, x, bias = draw(n, k), draw(m, k, seed=1).to(dtype), draw(n, seed=2).to(dtype)
    stored, scale = quantize_rows(weight, kind)
    out, wide = interpreter(x, stored.view(torch.int8), scale, bias, kind, **tiles)
    expected = x.double() @ restored(weight, kind).T + bias.double()
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), expected, rtol=2 * step, atol=step * k)
    torch.testing.assert_close(wide, (stored.float() * scale[:, None]).to(dtype), rtol=0, atol=0)
    unbiased, _ = interpreter(x, stored.view(torch.int8), scale, None, kind, **tiles)
    torch.testing.assert_close(unbiased.double(), expected - bias.double(), rtol=2 * step, atol=step * k)


@pytest.mark.parametrize("kind", [INT8, FP8])
def test_every_code_is_widened_exactly(interpreter: Callable[..., tuple[Tensor, Tensor]], kind: torch.dtype) -> None:
    codes = torch.arange(256).to(torch.uint8).view(torch.int8)
    if kind == FP8:
        codes = codes[(codes & 0x7F) != 0x7F]  # not a number: never stored
    x = torch.eye(len(codes), dtype=torch.float16)
    out, wide = interpreter(x, codes[None], torch.ones(1), None, kind, outputs=16, words=16)
    assert torch.equal(wide[0].float(), codes.view(kind).float())
    assert torch.equal(out[:, 0].float(), codes.view(kind).float())


def test_no_row_depends_on_another(interpreter: Callable[..., tuple[Tensor, Tensor]]) -> None:
    stored, scale = quantize_rows(draw(20, 128), INT8)
    x = draw(5, 128, seed=1)
    x[3] = 1e30
    out, _ = interpreter(x, stored, scale, None, INT8, outputs=16, words=16, parts=2)
    alone, _ = interpreter(x[:1], stored, scale, None, INT8, outputs=16, words=16, parts=2)
    assert torch.equal(out[:1], alone)
    assert out[[0, 1, 2, 4]].abs().max() < 100


def product_by_kernels(
    x: Tensor, stored: Tensor, scale: Tensor, bias: Tensor | None, kind: torch.dtype
) -> tuple[Tensor, Tensor]:
    """As a layer calls it; and the counters afterwards."""
    from unmask.models.kernels.quantized import product

    arrived = torch.zeros(64, dtype=torch.int32)
    return product(x, interleave(stored.view(kind)), scale, bias, arrived), arrived


@pytest.mark.parametrize("kind", [INT8, FP8])
@pytest.mark.parametrize("rows", [(1,), (2, 3), (256,)])
def test_the_kernel_takes_the_place_of_the_plain_product(
    interpreted: Callable[..., Any], rows: tuple[int, ...], kind: torch.dtype
) -> None:
    stored, scale = quantize_rows(draw(20, 100), kind)
    x, bias = draw(*rows, 100, seed=1).half(), draw(20, seed=2).half()
    found, arrived = interpreted(product_by_kernels, x, stored.view(torch.int8), scale, bias, kind)
    assert not arrived.any()
    expected = product(x.float(), interleave(stored), scale, bias.float(), arrived)
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.float(), expected, rtol=2e-3, atol=2e-2)


@pytest.mark.usefixtures("needs_triton")
def test_the_kernel_leaves_many_rows_and_single_precision_to_the_plain_product() -> None:
    from unmask.models.kernels import quantized

    stored, scale = quantize_rows(draw(20, 100), INT8)
    rest = interleave(stored), scale, None, torch.zeros(64, dtype=torch.int32)
    for x in (draw(257, 100).half(), draw(2, 129, 100).bfloat16(), draw(3, 100), torch.empty(0, 100).half()):
        assert quantized.product(x, *rest) is NotImplemented
        assert product(x, *rest).shape == (*x.shape[:-1], 20)


# Outputs and inputs of the layers of LLaDA-8B and Dream-7B, and parts with 32 rows and with 256.
@pytest.mark.parametrize(
    ("n", "k", "few", "many"),
    [
        (12288, 4096, 1, 1),
        (4096, 4096, 4, 2),
        (24576, 4096, 1, 1),
        (4096, 12288, 4, 2),
        (4608, 3584, 3, 2),
        (37888, 3584, 1, 1),
        (3584, 18944, 4, 2),
        (64, 256, 1, 1),  # nothing to divide
    ],
)
@pytest.mark.usefixtures("needs_triton")
def test_parts_fill_the_device(n: int, k: int, few: int, many: int) -> None:
    from unmask.models.kernels.quantized import tiles_for

    assert [tiles_for(m, n, k // 4).parts for m in (1, 32, 64, 256)] == [few, few, few, many]
    assert len({tiles_for(m, n, k // 4) for m in range(1, 65)}) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("needs_triton")
def test_the_kernels_compile_without_a_device(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    script = Path(__file__).parents[1] / "compile_quantized.py"
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 10
    # Shared memory that a program may have: an H100 or H200, and the smallest of the others, with 8.6 or 8.9.
    room = {("90", "4"): 227 * 1024, ("80", "3"): 99 * 1024}
    for kind, dtype, rows, architecture, stages, shared in lines:
        assert int(shared) <= room[architecture, stages], (kind, dtype, rows)
