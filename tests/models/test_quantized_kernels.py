"""Products with 8-bit weights by kernels, in Triton's interpreter (see kernel_inputs.py), and their compilation."""

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
from kernel_inputs import draw
from torch import Tensor

from unmask.models.quantized import FORMATS, interleave, product, quantize_rows

INT8, FP8 = FORMATS["int8"], FORMATS["fp8"]


@pytest.fixture
def interpreter(interpreted: Callable[..., Any]) -> Callable[..., tuple[Tensor, Tensor]]:
    """The kernels, in the process that interprets."""
    return partial(interpreted, by_kernels)


def by_kernels(
    x: Tensor, stored: Tensor, scale: Tensor, bias: Tensor | None, kind: torch.dtype, parts: int = 1, **tiles: int
) -> tuple[Tensor, Tensor]:
    """The product, and the widened weights. Bytes travel as int8, which a pipe can carry."""
    from unmask.models.kernels.quantized import multiply, widened

    cut = parts, {"ROWS": 64, "num_warps": 4, "num_stages": 3} | tiles
    rows, arrived = interleave(stored).view(kind), torch.zeros(64, dtype=torch.int32)
    out = multiply(x, rows, scale, bias, arrived, cut=cut)
    again = multiply(x, rows, scale, bias, arrived, cut=cut)
    assert torch.equal(out, again)
    assert not arrived.any()
    return out, widened(rows, scale, x.shape[1], x.dtype)


SIZES = [
    (3, 70, 100, {"OUTPUTS": 64, "WORDS": 16}),
    (1, 1, 1, {"OUTPUTS": 16, "WORDS": 16}),
    (17, 33, 130, {"OUTPUTS": 16, "WORDS": 16, "parts": 2}),
    (33, 5, 64, {"OUTPUTS": 16, "WORDS": 16, "parts": 4}),  # more parts than there is to divide
    (17, 70, 300, {"OUTPUTS": 64, "WORDS": 32, "parts": 3, "ROWS": 16}),
]
KINDS = [(kind, dtype) for kind in (INT8, FP8) for dtype in (torch.float32, torch.float16)]


@pytest.mark.parametrize(
    ("m", "n", "k", "tiles", "kind", "dtype"),
    [(*size, *kind) for size in SIZES for kind in (KINDS if size is SIZES[0] else (KINDS[0], KINDS[3]))],
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
    expected = x.double() @ (stored.double() * scale.double()[:, None]).T + bias.double()
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
    out, wide = interpreter(x, codes[None], torch.ones(1), None, kind, OUTPUTS=16, WORDS=16)
    assert torch.equal(wide[0].float(), codes.view(kind).float())
    assert torch.equal(out[:, 0].float(), codes.view(kind).float())


def test_no_row_depends_on_another(interpreter: Callable[..., tuple[Tensor, Tensor]]) -> None:
    stored, scale = quantize_rows(draw(20, 128), INT8)
    x = draw(5, 128, seed=1)
    x[3] = 1e30
    out, _ = interpreter(x, stored, scale, None, INT8, OUTPUTS=16, WORDS=16, parts=2)
    alone, _ = interpreter(x[:1], stored, scale, None, INT8, OUTPUTS=16, WORDS=16, parts=2)
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
    from unmask.models.kernels.quantized import parts_and_tiles

    assert [parts_and_tiles(m, n, k // 4)[0] for m in (1, 32, 64, 256)] == [few, few, few, many]
    assert all(parts_and_tiles(m, n, k // 4) == parts_and_tiles(1, n, k // 4) for m in range(1, 65))


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
