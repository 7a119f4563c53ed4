"""Products of many rows in Triton's interpreter, in float16, and in a process of its own (test_fused.py says why)."""

import pytest
import torch
import torch.nn.functional as F

from unmask.models import fused
from unmask.models.rotary import Rotary

TILES = {"ROWS": 32, "INNER": 16, "GROUP": 2}


def descriptors(*tensors_and_blocks):
    from triton.tools.tensor_descriptor import TensorDescriptor

    return [TensorDescriptor.from_tensor(tensor, list(block)) for tensor, block in tensors_and_blocks]


def gated(x, weight, columns, whole, programs):
    from unmask.models import wide_products

    (m, k), f = x.shape, weight.shape[0] // 2
    out, both = torch.full((m, f), torch.nan, dtype=x.dtype), weight.view(2, f, k)
    rows, inner = TILES["ROWS"], TILES["INNER"]
    x, *others = descriptors(
        (x, (rows, inner)),
        *((both, (2, columns // 2, inner)), (out, (rows, columns // 2))),
        *((both, (2, columns // 4, inner)), (out, (rows, columns // 4))),
    )
    wide_products.gate_wide[(programs,)](x, *others, m, k, f, whole, COLUMNS=columns, **TILES)
    return out


def heads(x, weight, bias, table, positions, n, h, g, store, whole, programs):
    from unmask.models import wide_products

    (m, k), d = x.shape, table.shape[-1]
    qkv = torch.full((m, (h + 2 * g) * d), torch.nan, dtype=x.dtype)
    inner = TILES["INNER"]
    x, pairs, singles = descriptors((x, (TILES["ROWS"], inner)), (weight, (2 * d, inner)), (weight, (d, inner)))
    keys, values, slots = (qkv, qkv, table) if store is None else store
    wide_products.heads_wide[(programs,)](
        *(x, pairs, singles, qkv if bias is None else bias, table, table if positions is None else positions),
        *(keys, values, slots, qkv, m, k, n, table.shape[1], 0 if store is None else keys.shape[2], whole),
        H=h,
        G=g,
        D=d,
        BIASED=bias is not None,
        GIVEN=positions is not None,
        STORE=store is not None,
        **TILES,
    )
    return qkv


def turned(qkv, *given):
    fused.turn_and_store(qkv, *given)
    return qkv


def rotary_table(d):
    return Rotary(d, 10_000.0)(128, device=torch.device("cpu"))


def eighths(*shape, seed=0):
    """Numbers whose products have exact sums, whatever their order."""
    return (torch.randint(-16, 17, shape, generator=torch.Generator().manual_seed(seed)) / 8).half()


def product(x, weight, bias=None):
    """Rounded once."""
    return F.linear(x.double(), weight.double(), None if bias is None else bias.double()).half()


# 32 rows and 32 features are a tile: of these there are 5 x 3, 2 x 2 and 1 x 2, and the last are not all full.
@pytest.mark.parametrize(
    ("m", "f", "k", "halved", "programs"),
    [(130, 96, 64, 0, 3), (130, 96, 64, 3, 4), (45, 40, 24, 4, 3), (45, 40, 24, 1, 20), (32, 48, 16, 0, 20)],
)
def test_a_gated_product_of_many_rows(interpreted, m, f, k, halved, programs):
    x, weight = eighths(m, k), eighths(2 * f, k, seed=1)
    whole = -(-m // 32) * -(-f // 32) - halved
    found = interpreted(gated, x, weight, 64, whole, programs)
    assert torch.equal(found, interpreted(fused.gate, product(x, weight)[None])[0])


# 3 rows of tiles of two heads each, the last with one head only where their number is odd.
@pytest.mark.parametrize(
    ("b", "n", "h", "g", "d", "halved"), [(1, 70, 3, 3, 16, 0), (3, 30, 7, 1, 32, 4), (3, 30, 2, 1, 16, 6)]
)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_heads_of_many_rows_are_turned_and_stored(interpreted, b, n, h, g, d, halved, biased, given):
    x, weight = eighths(b * n, 48), eighths((h + 2 * g) * d, 48, seed=1)
    bias = eighths((h + 2 * g) * d, seed=2) if biased else None
    draws = torch.Generator().manual_seed(n)
    positions = torch.stack([torch.randperm(90, generator=draws)[:n] for _ in range(b)]) if given else None
    slots = torch.randperm(b + 2, generator=draws)[:b]
    kept = [eighths(b + 2, g, 90, d, seed=seed) for seed in (3, 4)]
    found, expected = ([tensor.clone() for tensor in kept] for _ in range(2))
    whole = 3 * -(-(h + 2 * g) // 2) - halved
    table = rotary_table(d)
    qkv = interpreted(heads, x, weight, bias, table, positions, n, h, g, (*found, slots), whole, 5)
    plain = product(x, weight, bias).view(b, n, -1)
    assert torch.equal(qkv.view(b, n, -1), interpreted(turned, plain, table, positions, h, g, (*expected, slots)))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_heads_without_a_store(interpreted):
    x, weight = eighths(70, 48), eighths(9 * 16, 48, seed=1)
    table = rotary_table(16)
    found = interpreted(heads, x, weight, None, table, None, 35, 5, 2, None, 13, 4)
    expected = interpreted(turned, product(x, weight).view(2, 35, -1), table, None, 5, 2, None)
    assert torch.equal(found.view(2, 35, -1), expected)
