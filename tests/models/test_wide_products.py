"""The gated product of many rows in Triton's interpreter, in float16 (see kernel_inputs.py), and when it is taken."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from unmask.models.layers import LayerOps

pytest.importorskip("triton")

from unmask.models.kernels import wide
from unmask.models.kernels.ops import KernelOps

SMALL = {"ROWS": 32, "COLUMNS": 64, "INNER": 16, "GROUP": 2}


def gated(x, weight, programs, **tiles):
    """Nothing that the kernel leaves out is a number."""
    torch.use_deterministic_algorithms(True)  # fills what is allocated
    try:
        return wide.gated(x, weight, tiles=wide.TILES | SMALL | tiles, programs=programs)
    finally:
        torch.use_deterministic_algorithms(False)


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
    found = interpreted(gated, x, weight, programs)
    gate, up = product(x, weight).chunk(2, -1)
    expected = silu(gate) * up
    assert (found != expected).float().mean() < 1 / 400  # the silu may be rounded to the next number
    torch.testing.assert_close(found, expected, rtol=2 * torch.finfo(torch.float16).eps, atol=0.0)


def test_every_silu_is_rounded_to_the_nearest_number_or_the_next(interpreted):
    x = torch.arange(-(2**15), 2**15).short().view(torch.float16)
    x = x[torch.isfinite(x)].float()
    rows, weight = torch.zeros(1, len(x), 16), torch.zeros(16, 16)
    rows[0, :, 0], rows[0, :, 1], weight[:8, 0], weight[8:, 1] = x, 1.0, 1.0, 1.0
    found = interpreted(gated, rows.half(), weight.half(), 3, ROWS=4096)[0, :, 0]
    expected = silu(x.half())
    assert torch.equal(torch.nextafter(found, expected), expected)
    assert (found != expected).sum() <= 50


X, WEIGHT = torch.zeros(2, 256, 64).bfloat16(), torch.zeros(1024, 64).bfloat16()


def test_half_precision_in_rows_that_begin_at_multiples_of_16_bytes_is_taken():
    assert wide.takes(X, WEIGHT)
    assert wide.takes(X.half(), WEIGHT.half())
    for others in (
        *((X[:, 1:], WEIGHT), (X.float(), WEIGHT.float()), (X.half(), WEIGHT), (X.transpose(0, 1), WEIGHT)),
        *((X[..., :60].contiguous(), WEIGHT[:, :60].contiguous()), (X, WEIGHT[:1020]), (X, WEIGHT[:, :64][::2])),
        (X, torch.zeros(1024 * 64 + 1).bfloat16()[1:].view(1024, 64)),  # not at a multiple of 16 bytes
    ):
        assert not wide.takes(*others)


def test_it_never_serves_on_a_cpu():
    assert not wide.serves(X, WEIGHT)


@pytest.mark.parametrize(
    ("rows", "features", "pays"),
    [
        (512, 512, True),
        (256, 1024, True),
        (255, 1024, False),  # too few rows
        (512, 384, False),  # too few tiles for the last programs
        (513, 512, False),  # a few rows more begin another tile
    ],
)
def test_it_pays_where_many_rows_keep_sixteen_programs_busy(rows, features, pays):
    assert wide.pays(rows, features, 16) == pays


@pytest.mark.parametrize(
    ("count", "busy"),
    [(16, 1.0), (12, 0.75), (17, 17 / 24), (24, 1.0), (25, 25 / 32), (160, 1.0), (164, 164 / 168)],
)
def test_how_busy_tiles_keep_sixteen_programs(count, busy):
    assert wide._busy(count, 16) == pytest.approx(busy)


def gated_by_ops(x, linear):
    return KernelOps().gated(linear, x)


class Other(nn.Linear):
    """A layer of another class."""


@pytest.mark.parametrize("linear", [nn.Linear(16, 8, bias=False), nn.Linear(16, 8), Other(16, 8, bias=False)])
def test_where_it_does_not_serve_the_layer_is_called_and_its_product_gated(interpreted, linear):
    x = torch.randn(1, 4, 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = LayerOps().gated(linear, x)
    torch.testing.assert_close(interpreted(gated_by_ops, x, linear.requires_grad_(False)), expected)
