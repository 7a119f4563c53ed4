"""The operations of a layer by kernels on a CUDA device, at the sizes of real models, against the plain ones."""

import pytest
import torch
import torch.nn.functional as F
from cuda_inputs import DREAM, DTYPES, LLADA, NEEDS_CUDA, WIDTHS, draw, some_positions, table
from kernel_inputs import attention_of, linear_of, norm_of

from unmask.models.layers import LayerOps

pytest.importorskip("triton")

from unmask.models.kernels.ops import KernelOps, gate
from unmask.models.kernels.products import JointOps

pytestmark = NEEDS_CUDA


KERNELS, JOINT = KernelOps(), JointOps()


def plain_gate(gate_up):
    first, second = gate_up.chunk(2, dim=-1)
    return F.silu(first) * second


def assert_nearly_the_same_bits(found, expected, *, different=1e-3):
    """A last bit of float32 decides how a few figures are rounded."""
    rtol = max(2e-6, 2 * torch.finfo(found.dtype).eps)
    torch.testing.assert_close(found, expected, rtol=rtol, atol=2e-6)
    if found.dtype != torch.float32:
        assert (found != expected).float().mean() <= different


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("b", "n", "w"), [(1, 32, 4096), (8, 33, 3584), (1, 1280, 4096), (3, 7, 320), (1, 1, 5)])
def test_add_norm(dtype, b, n, w):
    x, update, weight = draw(b, n, w, dtype=dtype), draw(b, n, w, seed=1, dtype=dtype), 1 + draw(w, seed=2, dtype=dtype)
    for added in (update, None):
        total, normed = KERNELS.add_norm(x, added, norm_of(weight))
        expected_total, expected = LayerOps().add_norm(x, added, norm_of(weight))
        assert torch.equal(total, expected_total)
        assert_nearly_the_same_bits(normed, expected, different=0.02)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("b", "n", "f"), [(1, 32, 12_288), (8, 33, 18_944), (2, 700, 12_288), (3, 7, 864), (1, 1, 5)])
def test_gate(dtype, b, n, f):
    gate_up = draw(b, n, 2 * f, dtype=dtype, spread=4.0)
    assert_nearly_the_same_bits(gate(gate_up), plain_gate(gate_up))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("h", "g", "d"), [LLADA, DREAM, (10, 10, 32), (7, 1, 64)])
@pytest.mark.parametrize(("b", "n"), [(1, 1), (8, 33), (2, 500)])
def test_turning_and_storing(dtype, h, g, d, b, n):
    qkv, slots = draw(b, n, (h + 2 * g) * d, dtype=dtype), torch.randperm(b + 2).cuda()[:b]
    keys, values = (draw(b + 2, g, 600, d, seed=seed, dtype=dtype) for seed in (1, 2))
    for positions in (None, some_positions(b, n, 600)):
        found, expected = ([tensor.clone() for tensor in (qkv, keys, values)] for _ in range(2))
        KERNELS.turn_and_store(found[0], table(d, 600), positions, h, g, (*found[1:], slots))
        LayerOps().turn_and_store(expected[0], table(d, 600), positions, h, g, (*expected[1:], slots))
        for one, other in zip(found, expected, strict=True):
            assert_nearly_the_same_bits(one, other)
        assert torch.equal(found[2], expected[2])
        alone = qkv.clone()
        KERNELS.turn_and_store(alone, table(d, 600), positions, h, g, None)
        assert torch.equal(alone, found[0])


def assert_close_products(found, expected):
    """Sums in float32, in another order, decide how a few figures are rounded; of these, differences may be taken."""
    eps = torch.finfo(found.dtype).eps
    scale = expected.float().abs().max().item()
    torch.testing.assert_close(found, expected, rtol=4 * eps, atol=2 * eps * scale)
    assert (found != expected).float().mean() < 0.1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", WIDTHS)
@pytest.mark.parametrize(("b", "q"), [(1, 1), (4, 5), (1, 31), (1, 32), (8, 4)])
def test_products_and_what_follows_them(dtype, sizes, b, q):
    (h, g, d), (w, f) = sizes, WIDTHS[sizes]
    x, heads, slots = draw(b, q, w, dtype=dtype), (h + 2 * g) * d, torch.randperm(b + 2).cuda()[:b]
    weight, bias = draw(heads, w, seed=1, dtype=dtype, spread=w**-0.5), draw(heads, seed=2, dtype=dtype)
    positions, kept = some_positions(b, q, 600), [draw(b + 2, g, 600, d, seed=seed, dtype=dtype) for seed in (3, 4)]
    for added in (bias, None):
        found, expected = ([tensor.clone() for tensor in kept] for _ in range(2))
        attention = attention_of(weight, added, h, g, d)
        queries = JOINT.project(attention, x, table(d, 600), positions, (*found, slots))
        qkv = F.linear(x, weight, added)
        KERNELS.turn_and_store(qkv, table(d, 600), positions, h, g, (*expected, slots))
        assert_close_products(queries[:, :, : h * d], qkv[:, :, : h * d])
        for one, other in zip(found, expected, strict=True):
            assert_close_products(one, other)

    both = draw(2 * f, w, seed=5, dtype=dtype, spread=w**-0.5)
    assert_close_products(JOINT.gated(linear_of(both), x), gate(F.linear(x, both)))

    hidden, back = draw(b, q, f, seed=6, dtype=dtype), draw(w, f, seed=7, dtype=dtype, spread=f**-0.5)
    parts = JOINT.update(linear_of(back), hidden)
    torch.testing.assert_close(parts.double().sum(0), F.linear(hidden.double(), back.double()), rtol=1e-4, atol=3e-4)
    norm = norm_of(1 + draw(w, seed=8, dtype=dtype))
    total, normed = KERNELS.add_norm(x, parts, norm)
    expected_total, expected_normed = KERNELS.add_norm(x, F.linear(hidden, back), norm)
    assert_close_products(total, expected_total)
    assert_close_products(normed, expected_normed)


@pytest.mark.parametrize(("n", "k"), [(4096, 4096), (4096, 12_288), (3584, 18_944)])
def test_a_product_is_added_up_in_the_same_order_whatever_the_rows(n, k):
    x, linear = draw(8, 4, k), linear_of(draw(n, k, seed=1))
    among = JOINT.update(linear, x)
    assert torch.equal(among[:, 2:3], JOINT.update(linear, x[2:3]))
    assert torch.equal(JOINT.gated(linear, x)[2:3], JOINT.gated(linear, x[2:3]))
