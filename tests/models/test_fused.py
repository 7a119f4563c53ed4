"""The small operations of a layer by kernels, in Triton's interpreter, against the plain ones."""

import pytest
import torch
import torch.nn.functional as F
from kernel_inputs import DTYPES, EXACT, draw, norm_of, rotary_table

from unmask.models.layers import LayerOps

pytest.importorskip("triton")

from unmask.models.kernels.ops import KernelOps, gate

KERNELS = KernelOps()


def assert_within_an_ulp(found, expected):
    """Equal but for a few figures, which are one rounding apart."""
    torch.testing.assert_close(found, expected, rtol=torch.finfo(found.dtype).eps, atol=0.0)
    assert (found != expected).float().mean() < 0.02


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("w", [7, 64, 384])
@pytest.mark.parametrize("added", [False, True])
def test_add_norm(interpreted, dtype, w, added):
    x, update, weight = draw(2, 3, w, dtype=dtype), draw(2, 3, w, seed=1, dtype=dtype), 1 + draw(w, seed=2, dtype=dtype)
    given = x, update if added else None, norm_of(weight)
    total, normed = interpreted(KERNELS.add_norm, *given)
    expected_total, expected = LayerOps().add_norm(*given)
    assert torch.equal(total, expected_total)
    if dtype == torch.float32:
        torch.testing.assert_close(normed, expected, **EXACT)
    else:
        assert_within_an_ulp(normed, expected)


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_the_sum_of_parts_is_rounded_before_it_is_added(interpreted, parts):
    x, update = draw(2, 3, 40, dtype=torch.float16), draw(parts, 2, 3, 40, seed=1)
    norm = norm_of(torch.ones(40, dtype=torch.float16))
    total, normed = interpreted(KERNELS.add_norm, x, update, norm)
    added = torch.zeros(2, 3, 40)
    for part in update:
        added += part
    assert torch.equal(total, x + added.half())
    assert_within_an_ulp(normed, LayerOps().add_norm(x, added.half(), norm)[1])


def test_the_norm_is_that_of_the_rounded_sum_and_rounded_before_the_gain(interpreted):
    x = torch.tensor([[[1.0, 2048.0, 3.0]]], dtype=torch.float16)
    update = torch.tensor([[[0.0001, 1.0, 0.0]]], dtype=torch.float16)  # lost to rounding
    weight = draw(3, dtype=torch.float16)
    total, normed = interpreted(KERNELS.add_norm, x, update, norm_of(weight))
    assert torch.equal(total, x)
    wide = x.double() / (x.double().square().mean() + 1e-5).sqrt()
    assert torch.equal(normed, wide.half() * weight)
    assert not torch.equal(normed, (wide * weight).half())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("f", [5, 96, 1100])
def test_gate(interpreted, dtype, f):
    gate_up = draw(2, 2, 2 * f, dtype=dtype, spread=6.0)
    first, up = gate_up.chunk(2, dim=-1)
    found = interpreted(gate, gate_up)
    if dtype == torch.float32:
        torch.testing.assert_close(found, F.silu(first) * up, **EXACT)
    else:
        assert torch.equal(found, F.silu(first.double()).to(dtype) * up)


def test_the_gate_of_huge_numbers(interpreted):
    huge = torch.tensor([-torch.inf, -1e30, -200.0, -104.5, -88.6, -87.0, 0.0, 88.6, 1e30, torch.inf, torch.nan])
    found = interpreted(gate, torch.cat([huge, torch.ones(11)])[None, None])
    torch.testing.assert_close(found[0, 0], F.silu(huge), rtol=1e-6, atol=1e-38, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("h", "g", "d"), [(3, 3, 32), (7, 1, 64), (14, 2, 16), (20, 20, 16)])
@pytest.mark.parametrize("given", [False, True])
def test_turning_and_storing(interpreted, dtype, h, g, d, given):
    qkv, table = draw(2, 3, (h + 2 * g) * d, dtype=dtype), rotary_table(d, 40)
    positions = torch.tensor([[36, 0, 5], [7, 8, 9]]) if given else None
    slots = torch.tensor([3, 1])
    keys, values = draw(5, g, 37, d, seed=1, dtype=dtype), draw(5, g, 37, d, seed=2, dtype=dtype)
    found, expected = ([tensor.clone() for tensor in (qkv, keys, values)] for _ in range(2))
    interpreted(KERNELS.turn_and_store, found[0], table, positions, h, g, (*found[1:], slots))
    LayerOps().turn_and_store(expected[0], table, positions, h, g, (*expected[1:], slots))
    for one, other in zip(found, expected, strict=True):
        if dtype == torch.float32:
            torch.testing.assert_close(one, other, **EXACT)
        else:
            assert torch.equal(one, other)
    assert torch.equal(found[1] == keys, expected[1] == keys)  # nothing else was written


def test_what_has_no_position_is_not_stored(interpreted):
    qkv, positions = draw(3, 1, 4 * 16), torch.tensor([[2], [-1], [0]])
    keys, values = draw(2, 1, 3, 16, seed=1), draw(2, 1, 3, 16, seed=2)
    found = [keys.clone(), values.clone()]
    interpreted(KERNELS.turn_and_store, qkv, rotary_table(16, 3), positions, 2, 1, (*found, torch.tensor([1, 1, 0])))
    for before, after in zip((keys, values), found, strict=True):
        assert (before != after).any(-1).nonzero().tolist() == [[0, 0, 0], [1, 0, 2]]


def test_turning_without_a_store(interpreted):
    found, table = draw(2, 4, 9 * 32), rotary_table(32, 8)
    expected = found.clone()
    interpreted(KERNELS.turn_and_store, found, table, None, 5, 2, None)
    LayerOps().turn_and_store(expected, table, None, 5, 2, None)
    torch.testing.assert_close(found, expected, **EXACT)


def test_what_is_not_contiguous_is_refused():
    qkv = draw(1, 4, 6 * 32)
    with pytest.raises(AssertionError, match="is not contiguous"):
        KERNELS.turn_and_store(qkv.mT.contiguous().mT, rotary_table(32, 8), None, 2, 2, None)
