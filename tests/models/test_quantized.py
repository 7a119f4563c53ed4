"""Weights in 8 bits: how far they are off, how they are stored, and the layer that multiplies by them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from kernel_inputs import draw
from torch import Tensor, nn

from unmask.models.quantized import FORMATS, QuantizedLinear, deinterleave, interleave, quantize_rows, widened

INT8, FP8 = FORMATS["int8"], FORMATS["fp8"]


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
    torch.testing.assert_close(layer(x), F.linear(x, widened(layer.stored, layer.scale, 70, x.dtype), layer.bias))


def test_what_is_stored_moves_with_the_model() -> None:
    layer = QuantizedLinear(nn.Linear(70, 9).requires_grad_(False), "fp8").to("meta", torch.bfloat16)
    assert {buffer.device.type for buffer in layer.buffers()} == {"meta"}
    assert (layer.stored.dtype, layer.scale.dtype) == (FP8, torch.float32)
