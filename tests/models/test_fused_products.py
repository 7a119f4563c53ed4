"""Products of a few rows, fused with the operations that follow them, in Triton's interpreter."""

import pytest
import torch
import torch.nn.functional as F
from kernel_inputs import attention_of, draw, linear_of, rotary_table

pytest.importorskip("triton")

from unmask.models.kernels.ops import KernelOps, gate
from unmask.models.kernels.products import TILES, JointOps, parts_and_tiles


def eighths(*shape, seed=0):
    """Numbers whose products have exact sums, whatever their order."""
    return (torch.randint(-16, 17, shape, generator=torch.Generator().manual_seed(seed)) / 8).half()


def product(x, weight, bias=None):
    """Rounded once."""
    return F.linear(x.double(), weight.double(), None if bias is None else bias.double()).half()


# Several tiles of everything even where the sizes are small, and none of them full.
SMALL = TILES | {"INNER": 16}
SMALL_PRODUCTS = [SMALL | {"COLUMNS": 32}, SMALL | {"COLUMNS": 64}]
# (b, q): 1, 20, 31 and 32 rows.
BATCHES = [(1, 1), (4, 5), (1, 31), (2, 16)]


@pytest.mark.parametrize(("b", "q"), BATCHES)
@pytest.mark.parametrize(("h", "g", "d", "w"), [(3, 3, 16, 48), (7, 1, 32, 21)])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("tiles", SMALL_PRODUCTS)
def test_projecting_turning_and_storing(interpreted, b, q, h, g, d, w, biased, tiles):
    normed, weight = eighths(b, q, w), eighths((h + 2 * g) * d, w, seed=1)
    bias = eighths((h + 2 * g) * d, seed=2) if biased else None
    table, slots = rotary_table(d, 64), torch.randperm(b + 2, generator=torch.Generator().manual_seed(q))[:b]
    positions = torch.stack(
        [torch.randperm(37, generator=torch.Generator().manual_seed(row))[:q].sort()[0] for row in range(b)]
    )
    kept = [draw(b + 2, g, 37, d, seed=seed, dtype=torch.float16) for seed in (1, 2)]
    found, expected = ([tensor.clone() for tensor in kept] for _ in range(2))
    attention = attention_of(weight, bias, h, g, d)
    queries = interpreted(JointOps((1, tiles)).project, attention, normed, table, positions, (*found, slots))
    qkv = product(normed, weight, bias)
    interpreted(KernelOps.turn_and_store, qkv, table, positions, h, g, (*expected, slots))
    assert queries.shape == qkv.shape
    assert torch.equal(queries[:, :, : h * d], qkv[:, :, : h * d])
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize(("b", "q"), BATCHES)
@pytest.mark.parametrize(("f", "w"), [(48, 32), (37, 21)])
@pytest.mark.parametrize("tiles", SMALL_PRODUCTS)
def test_a_gated_product(interpreted, b, q, f, w, tiles):
    normed, weight = eighths(b, q, w), eighths(2 * f, w, seed=1)
    found = interpreted(JointOps((1, tiles)).gated, linear_of(weight), normed)
    assert torch.equal(found, interpreted(gate, product(normed, weight)))


@pytest.mark.parametrize(("b", "q"), BATCHES)
@pytest.mark.parametrize(("n", "k", "parts"), [(48, 64, 2), (37, 51, 3), (5, 16, 2), (70, 64, 2)])
@pytest.mark.parametrize("columns", [16, 64])
def test_a_product_in_parts(interpreted, b, q, n, k, parts, columns):
    x, weight = eighths(b, q, k), eighths(n, k, seed=1)
    found = interpreted(JointOps((parts, SMALL | {"COLUMNS": columns})).update, linear_of(weight), x)
    assert found.shape == (parts, b, q, n)
    assert torch.equal(found.sum(0).double(), F.linear(x.double(), weight.double()))
    first = -(-k // 16 // parts) * 16 if k % 16 == 0 else -(-(k // 16 + 1) // parts) * 16
    assert torch.equal(found[0].double(), F.linear(x[:, :, :first].double(), weight[:, :first].double()))


def test_the_tiles_of_products_on_the_device(interpreted):
    normed, weight = eighths(1, 20, 200), eighths(2 * 50, 200, seed=1)
    gated = interpreted(JointOps().gated, linear_of(weight), normed)
    assert torch.equal(gated, interpreted(gate, product(normed, weight)))
    found = interpreted(JointOps().update, linear_of(weight), normed)
    assert found.shape == (2, 1, 20, 100)
    assert torch.equal(found.sum(0).half(), product(normed, weight))


def test_a_product_is_added_up_in_the_same_order_whatever_the_rows(interpreted):
    x, weight = draw(8, 4, 300, dtype=torch.float16), draw(40, 300, seed=1, dtype=torch.float16)
    among, alone = (interpreted(JointOps().update, linear_of(weight), rows) for rows in (x, x[2:3]))
    assert torch.equal(among[:, 2:3], alone)


def test_the_parts_of_large_matrices():
    parts, tiles = llada = parts_and_tiles(4096, 4096)
    assert (parts, tiles["COLUMNS"]) == (2, 32)
    assert parts_and_tiles(4096, 12_288) == llada
    parts, tiles = parts_and_tiles(3584, 18_944)  # Dream
    assert (parts, tiles["COLUMNS"]) == (4, 64)
    assert parts_and_tiles(100_000, 4096)[0] == 1
