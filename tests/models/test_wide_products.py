"""The gated product of many rows in Triton's interpreter, in float16 (test_fused.py says why), and when it is taken."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from unmask.models.layers import LayerOps

pytest.importorskip("triton")

from unmask.models.kernels import fused, wide
from unmask.models.kernels.ops import KernelOps
from unmask.models.kernels.wide import WideTiles


def gated(x, weight, tiles):
    """Nothing that the kernel leaves out is a number."""
    torch.use_deterministic_algorithms(True)  # fills what is allocated
    try:
        return wide.gated(x, weight, tiles=tiles)
    finally:
        torch.use_deterministic_algorithms(False)


def small(programs):
    return WideTiles(rows=32, columns=64, inner=16, group=2, programs=programs)


def parts_of_64(*shape, seed=0):
    """Numbers whose products have exact sums in float32, whatever their order, but not in float16."""
    return (torch.randint(-128, 129, shape, generator=torch.Generator().manual_seed(seed)) / 64).half()


def product(x, weight):
    """Rounded once."""
    return F.linear(x.double(), weight.double()).half()


def silu(x):
    """Rounded once."""
    return F.silu(x.double()).to(x.dtype)


# 32 rows and 32 features are a tile: of these there are 5 x 3, 2 x 2 and 1 x 2, and the last are not all full.
@pytest.mark.parametrize(
    ("b", "n", "f", "k", "programs"),
    [
        *((1, 130, 96, 64, 15), (1, 130, 96, 64, 4)),  # none is halved
        *((2, 65, 96, 64, 7), (1, 130, 96, 64, 6)),  # the last, or the last three
        *((1, 45, 40, 24, 3), (1, 45, 40, 24, 20), (3, 15, 40, 24, 1)),  # the last, all, none
        (1, 32, 48, 16, 20),
    ],
)
def test_a_gated_product_of_many_rows(interpreted, b, n, f, k, programs):
    x, weight = parts_of_64(b, n, k), parts_of_64(2 * f, k, seed=1)
    found = interpreted(gated, x, weight, small(programs))
    gate, up = product(x, weight).chunk(2, -1)
    expected = silu(gate) * up
    assert (found != expected).float().mean() < 1 / 400  # the silu may be rounded to the next number
    torch.testing.assert_close(found, expected, rtol=2 * torch.finfo(torch.float16).eps, atol=0.0)


def test_every_silu_is_rounded_to_the_nearest_number_or_the_next(interpreted):
    x = torch.arange(-(2**15), 2**15).short().view(torch.float16)
    x = x[torch.isfinite(x)].float()
    rows, weight = torch.zeros(1, len(x), 16), torch.zeros(16, 16)
    rows[0, :, 0], rows[0, :, 1], weight[:8, 0], weight[8:, 1] = x, 1.0, 1.0, 1.0
    tiles = WideTiles(rows=4096, columns=64, inner=16, group=2, programs=3)
    found = interpreted(gated, rows.half(), weight.half(), tiles)[0, :, 0]
    expected = silu(x.half())
    assert torch.equal(torch.nextafter(found, expected), expected)
    assert (found != expected).sum() <= 50


@pytest.mark.parametrize("whole", [False, True])
def test_where_many_rows_are_taken(monkeypatch, whole):
    monkeypatch.setattr(wide, "kernels_run", lambda device: whole)
    monkeypatch.setattr(wide, "_is_measured", lambda device: True)
    monkeypatch.setattr(wide, "_multiprocessors", lambda device: 16)
    x, weight = torch.zeros(2, 256, 64).bfloat16(), torch.zeros(1024, 64).bfloat16()
    assert wide.serves(x, weight) == whole
    assert wide.serves(x.half(), weight.half()) == whole
    for others in (
        *((x[:, 1:], weight), (x.float(), weight.float()), (x.half(), weight), (x.transpose(0, 1), weight)),
        *((x[..., :60].contiguous(), weight[:, :60].contiguous()), (x, weight[:1020]), (x, weight[:, :64][::2])),
        (x[:, :127].contiguous(), weight),  # too few rows
        (x, weight[:768]),  # too few tiles
        (x, torch.zeros(1024 * 64 + 1).bfloat16()[1:].view(1024, 64)),  # not at a multiple of 16 bytes
    ):
        assert not wide.serves(*others)
    monkeypatch.setattr(wide, "_is_measured", lambda device: False)
    assert not wide.serves(x, weight)


@pytest.mark.parametrize(
    ("count", "busy"),
    [(16, 1.0), (12, 0.75), (17, 17 / 24), (24, 1.0), (25, 25 / 32), (160, 1.0), (164, 164 / 168)],
)
def test_how_busy_tiles_keep_sixteen_programs(count, busy):
    assert wide._busy(count, 16) == pytest.approx(busy)


def test_steps_take_it_by_the_weight_of_a_layer_without_a_bias(monkeypatch):
    class Other(nn.Linear):
        pass

    x, linear = torch.randn(1, 4, 16), nn.Linear(16, 8, bias=False)
    assert not wide.serves(x, linear.weight)
    at_once, apart = torch.randn(2, 1, 4, 4)
    monkeypatch.setattr(wide, "serves", lambda normed, weight: weight is linear.weight)
    monkeypatch.setattr(wide, "gated", lambda normed, weight: at_once)
    monkeypatch.setattr(fused, "gate", lambda gate_up: apart)
    assert Steps(fused).gated(linear, x) is at_once
    assert Steps(fused).gated(nn.Linear(16, 8, bias=False), x) is apart
    assert torch.equal(Steps(plain).gated(linear, x), plain.gate(linear(x)))
    monkeypatch.setattr(wide, "serves", lambda normed, weight: True)
    for other in (nn.Linear(16, 8), Other(16, 8, bias=False)):
        assert Steps(fused).gated(other, x) is apart
