"""The kernels for 8-bit weights on a CUDA device, at the sizes of real models, against float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from cuda_inputs import never_waiting
from torch import Tensor, nn

from unmask.models.quantized import FEW_ROWS, FORMATS, QuantizedLinear, deinterleave, interleave, widened
from unmask.models.random_weights import random_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SHAPES = [(12288, 4096), (4096, 12288), (4608, 3584), (1000, 864), (333, 1001)]
DTYPES = [torch.bfloat16, torch.float16]
CONFIG = {
    "model_type": "llada",
    "d_model": 512,
    "n_heads": 8,
    "n_layers": 2,
    "mlp_hidden_size": 1024,
    "vocab_size": 640,
    "max_sequence_length": 1024,
    "mask_token_id": 63,
    "eos_token_id": 62,
}


@pytest.fixture(autouse=True)
def needs_triton() -> None:
    pytest.importorskip("triton")


def draw(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cuda").to(dtype)


def layer_of(n: int, k: int, quantize: str, dtype: torch.dtype, *, bias: bool = True) -> QuantizedLinear:
    linear = nn.Linear(k, n, bias=bias, device="cuda", dtype=dtype).requires_grad_(False)
    linear.weight.copy_(draw(n, k, dtype=dtype) * 0.02)
    return QuantizedLinear(linear, quantize)


def wide(layer: QuantizedLinear, dtype: torch.dtype) -> Tensor:
    return widened(layer.stored, layer.scale, layer.in_features, dtype)


def exact(layer: QuantizedLinear, x: Tensor) -> Tensor:
    weight = deinterleave(layer.stored, layer.in_features).float().double() * layer.scale.double()[:, None]
    return F.linear(x.double(), weight, None if layer.bias is None else layer.bias.double())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("quantize", FORMATS)
def test_every_code_is_widened_exactly(quantize: str, dtype: torch.dtype) -> None:
    codes = torch.arange(256, device="cuda").to(torch.uint8).view(torch.int8)
    if quantize == "fp8":
        codes = codes[(codes & 0x7F) != 0x7F]  # not a number: never stored
    kind = FORMATS[quantize]
    layer = layer_of(64, len(codes), quantize, dtype, bias=False)
    layer.stored = interleave(codes.expand(64, -1).contiguous().view(kind))
    layer.scale = torch.ones(64, device="cuda")
    expected = codes.view(kind).to(dtype)
    assert torch.equal(layer(torch.eye(len(codes), device="cuda", dtype=dtype)), expected[:, None].expand(-1, 64))
    assert torch.equal(wide(layer, dtype), expected.expand(64, -1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("quantize", FORMATS)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_a_product_is_rounded_once(n: int, k: int, quantize: str, dtype: torch.dtype) -> None:
    layer = layer_of(n, k, quantize, dtype)
    x = draw(200, k, dtype=dtype, seed=1)
    expected = exact(layer, x)
    for rows in (1, 17, 32, 64, 100, 200):
        step = torch.finfo(dtype).eps
        torch.testing.assert_close(layer(x[:rows]).double(), expected[:rows], rtol=step, atol=1e-5 * k**0.5)


@pytest.mark.parametrize("quantize", FORMATS)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_a_row_is_the_same_alone_and_every_time(n: int, k: int, quantize: str) -> None:
    layer = layer_of(n, k, quantize, torch.bfloat16)
    x = draw(200, k, dtype=torch.bfloat16, seed=1)
    together = layer(x)
    for _ in range(20):
        assert torch.equal(layer(x), together)
    few = layer(x[:64])
    for rows in (1, 17, 32):
        assert torch.equal(layer(x[:rows]), few[:rows])
    x[1:] = 3e38
    assert torch.equal(layer(x)[:1], together[:1])
    assert torch.equal(layer(x[:64])[:1], few[:1])


@pytest.mark.parametrize("quantize", FORMATS)
def test_many_rows_agree_with_few(quantize: str) -> None:
    model = random_model(CONFIG, device=torch.device("cuda"), dtype=torch.bfloat16, quantize=quantize, std=0.05)
    tokens = torch.arange(100, device="cuda").expand(3, -1)
    with torch.inference_mode():
        few = model.predict(tokens[:2]).logits.float()
        many = model.predict(tokens).logits[:2].float()  # more rows than meet the stored bytes themselves
    # Both round to bfloat16 after every layer, in another order of addition.
    assert (few - many).abs().mean() < 0.02 * few.std()
    assert (few - many).abs().max() < 0.15 * few.std()


def test_a_graph_can_hold_it_and_the_host_never_waits() -> None:
    layer = layer_of(4096, 4096, "int8", torch.bfloat16)
    x = draw(32, 4096, dtype=torch.bfloat16)
    expected = layer(x)
    with never_waiting():
        layer(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer(x)
    for _ in range(3):
        graph.replay()
        assert torch.equal(out, expected)


def test_loading_needs_little_more_than_what_stays() -> None:
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    config = CONFIG | {"d_model": 1024, "mlp_hidden_size": 4096, "n_layers": 12}
    model = random_model(config, device=torch.device("cuda"), dtype=torch.bfloat16, quantize="int8")
    block = 4 * 1024 * 1024 + 3 * 1024 * 4096
    held, peak = torch.cuda.memory_allocated() - before, torch.cuda.max_memory_allocated() - before
    assert model.quantized == "int8"
    assert held < 1.1 * 12 * block
    # One block in bfloat16, its largest layer in 8 bits a few times, and a piece of it in float32 a few times.
    assert peak < held + 2 * block + 3 * 2 * 1024 * 4096 + 6 * 4 * 256 * 4096


@pytest.mark.parametrize("quantize", FORMATS)
@pytest.mark.parametrize("rows", [1, FEW_ROWS, FEW_ROWS + 1])
def test_a_layer_says_the_same_without_kernels(monkeypatch: pytest.MonkeyPatch, rows: int, quantize: str) -> None:
    layer = layer_of(1000, 864, quantize, torch.bfloat16)
    x = draw(rows, 864, dtype=torch.bfloat16, seed=1)
    found, before = layer(x), wide(layer, torch.bfloat16)
    monkeypatch.setenv("UNMASK_KERNELS", "0")
    torch.testing.assert_close(found, layer(x), rtol=1e-2, atol=1e-2)
    assert torch.equal(before, wide(layer, torch.bfloat16))
