"""The operations of a layer by kernels, in Triton's interpreter, against the plain ones; and where each is taken.

Triton decides when it is imported whether it interprets, and a run of tests may have imported it already: so a process
of its own does, which knows nothing of the tests. The interpreter cuts bfloat16 off where devices round, and multiplies
its bits in products, so this dtype is left to the tests on a device; float16 shows what is rounded when.
"""

from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from unmask.models.checkpoint.loading import load_model
from unmask.models.layers import LayerOps, RMSNorm
from unmask.models.rotary import Rotary
from unmask.models.transformer import Transformer

pytest.importorskip("triton")

from unmask.models.kernels import attention, fused, ops, passes
from unmask.models.kernels.attention import AttentionTiles
from unmask.models.kernels.fused import ProductTiles
from unmask.models.kernels.ops import JointOps, KernelOps

DTYPES = (torch.float32, torch.float16)
# So small that a few dozen keys are several splits, and a few queries several tiles.
SMALL = AttentionTiles(split=32, keys=16, rows=16)
EXACT = {"rtol": 2e-6, "atol": 2e-6}


def run(name, *arguments, **options):
    return getattr(fused if hasattr(fused, name) else attention, name)(*arguments, **options)


@pytest.fixture
def kernels(interpreted):
    """`run` in the process that interprets; tensors are in memory that both processes share."""
    return partial(interpreted, run)


def plain_add_norm(x, update, weight, eps):
    norm = RMSNorm(x.shape[-1], eps).requires_grad_(False)
    norm.weight.data = weight
    return LayerOps().add_norm(x, update, norm)


def draw(*shape, seed=0, dtype=torch.float32, spread=1.0):
    return (spread * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def assert_within_an_ulp(found, expected):
    """Equal but for a few figures, which are one rounding apart."""
    torch.testing.assert_close(found, expected, rtol=torch.finfo(found.dtype).eps, atol=0.0)
    assert (found != expected).float().mean() < 0.02


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("w", [7, 64, 384])
@pytest.mark.parametrize("added", [False, True])
def test_add_norm(kernels, dtype, w, added):
    x, update, weight = draw(2, 3, w, dtype=dtype), draw(2, 3, w, seed=1, dtype=dtype), 1 + draw(w, seed=2, dtype=dtype)
    total, normed = kernels("add_norm", x, update if added else None, weight, 1e-5)
    expected_total, expected = plain_add_norm(x, update if added else None, weight, 1e-5)
    assert torch.equal(total, expected_total)
    if dtype == torch.float32:
        torch.testing.assert_close(normed, expected, **EXACT)
    else:
        assert_within_an_ulp(normed, expected)


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_the_sum_of_parts_is_rounded_before_it_is_added(kernels, parts):
    x, update = draw(2, 3, 40, dtype=torch.float16), draw(parts, 2, 3, 40, seed=1)
    total, normed = kernels("add_norm", x, update, torch.ones(40, dtype=torch.float16), 1e-5)
    added = torch.zeros(2, 3, 40)
    for part in update:
        added += part
    assert torch.equal(total, x + added.half())
    assert_within_an_ulp(normed, plain_add_norm(x, added.half(), torch.ones(40, dtype=torch.float16), 1e-5)[1])


def test_the_norm_is_that_of_the_rounded_sum_and_rounded_before_the_gain(kernels):
    x = torch.tensor([[[1.0, 2048.0, 3.0]]], dtype=torch.float16)
    update = torch.tensor([[[0.0001, 1.0, 0.0]]], dtype=torch.float16)  # lost to rounding
    weight = draw(3, dtype=torch.float16)
    total, normed = kernels("add_norm", x, update, weight, 1e-5)
    assert torch.equal(total, x)
    wide = x.double() / (x.double().square().mean() + 1e-5).sqrt()
    assert torch.equal(normed, wide.half() * weight)
    assert not torch.equal(normed, (wide * weight).half())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("f", [5, 96, 1100])
def test_gate(kernels, dtype, f):
    gate_up = draw(2, 2, 2 * f, dtype=dtype, spread=6.0)
    gate, up = gate_up.chunk(2, dim=-1)
    found = kernels("gate", gate_up)
    if dtype == torch.float32:
        torch.testing.assert_close(found, F.silu(gate) * up, **EXACT)
    else:
        assert torch.equal(found, F.silu(gate.double()).to(dtype) * up)


def test_the_gate_of_huge_numbers(kernels):
    gate = torch.tensor([-torch.inf, -1e30, -200.0, -104.5, -88.6, -87.0, 0.0, 88.6, 1e30, torch.inf, torch.nan])
    found = kernels("gate", torch.cat([gate, torch.ones(11)])[None, None])
    torch.testing.assert_close(found[0, 0], F.silu(gate), rtol=1e-6, atol=1e-38, equal_nan=True)


def rotary_table(d, length):
    return Rotary(d, 10_000.0)(length, device=torch.device("cpu"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("h", "g", "d"), [(3, 3, 32), (7, 1, 64), (14, 2, 16), (20, 20, 16)])
@pytest.mark.parametrize("given", [False, True])
def test_turning_and_storing(kernels, dtype, h, g, d, given):
    qkv, table = draw(2, 3, (h + 2 * g) * d, dtype=dtype), rotary_table(d, 40)
    positions = torch.tensor([[36, 0, 5], [7, 8, 9]]) if given else None
    slots = torch.tensor([3, 1])
    keys, values = draw(5, g, 37, d, seed=1, dtype=dtype), draw(5, g, 37, d, seed=2, dtype=dtype)
    found, expected = ([tensor.clone() for tensor in (qkv, keys, values)] for _ in range(2))
    kernels("turn_and_store", found[0], table, positions, h, g, (*found[1:], slots))
    LayerOps().turn_and_store(expected[0], table, positions, h, g, (*expected[1:], slots))
    for one, other in zip(found, expected, strict=True):
        if dtype == torch.float32:
            torch.testing.assert_close(one, other, **EXACT)
        else:
            assert torch.equal(one, other)
    assert torch.equal(found[1] == keys, expected[1] == keys)  # nothing else was written


def test_what_has_no_position_is_not_stored(kernels):
    qkv, positions = draw(3, 1, 4 * 16), torch.tensor([[2], [-1], [0]])
    keys, values = draw(2, 1, 3, 16, seed=1), draw(2, 1, 3, 16, seed=2)
    found = [keys.clone(), values.clone()]
    kernels("turn_and_store", qkv, rotary_table(16, 3), positions, 2, 1, (*found, torch.tensor([1, 1, 0])))
    for before, after in zip((keys, values), found, strict=True):
        assert (before != after).any(-1).nonzero().tolist() == [[0, 0, 0], [1, 0, 2]]


def test_turning_without_a_store(kernels):
    found, table = draw(2, 4, 9 * 32), rotary_table(32, 8)
    expected = found.clone()
    kernels("turn_and_store", found, table, None, 5, 2, None)
    LayerOps().turn_and_store(expected, table, None, 5, 2, None)
    torch.testing.assert_close(found, expected, **EXACT)


def eighths(*shape, seed=0):
    """Numbers whose products have exact sums, whatever their order."""
    return (torch.randint(-16, 17, shape, generator=torch.Generator().manual_seed(seed)) / 8).half()


def product(x, weight, bias=None):
    """Rounded once."""
    return F.linear(x.double(), weight.double(), None if bias is None else bias.double()).half()


# Several tiles of everything even where the sizes are small, and none of them full.
SMALL_PRODUCTS = [ProductTiles(columns=32, inner=16), ProductTiles(columns=64, inner=16)]
# (b, q): 1, 20, 31 and 32 rows.
BATCHES = [(1, 1), (4, 5), (1, 31), (2, 16)]


@pytest.mark.parametrize(("b", "q"), BATCHES)
@pytest.mark.parametrize(("h", "g", "d", "w"), [(3, 3, 16, 48), (7, 1, 32, 21)])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("tiles", SMALL_PRODUCTS)
def test_projecting_turning_and_storing(kernels, b, q, h, g, d, w, biased, tiles):
    normed, weight = eighths(b, q, w), eighths((h + 2 * g) * d, w, seed=1)
    bias = eighths((h + 2 * g) * d, seed=2) if biased else None
    table, slots = rotary_table(d, 64), torch.randperm(b + 2, generator=torch.Generator().manual_seed(q))[:b]
    positions = torch.stack(
        [torch.randperm(37, generator=torch.Generator().manual_seed(row))[:q].sort()[0] for row in range(b)]
    )
    kept = [draw(b + 2, g, 37, d, seed=seed, dtype=torch.float16) for seed in (1, 2)]
    found, expected = ([tensor.clone() for tensor in kept] for _ in range(2))
    arguments = table, positions, h, g
    queries = kernels("project_turn_store", normed, weight, bias, *arguments, (*found, slots), tiles=tiles)
    qkv = product(normed, weight, bias)
    kernels("turn_and_store", qkv, *arguments, (*expected, slots))
    assert queries.shape == qkv.shape
    assert torch.equal(queries[:, :, : h * d], qkv[:, :, : h * d])
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize(("b", "q"), BATCHES)
@pytest.mark.parametrize(("f", "w"), [(48, 32), (37, 21)])
@pytest.mark.parametrize("tiles", SMALL_PRODUCTS)
def test_a_gated_product(kernels, b, q, f, w, tiles):
    normed, weight = eighths(b, q, w), eighths(2 * f, w, seed=1)
    found = kernels("gated", normed, weight, tiles=tiles)
    assert torch.equal(found, kernels("gate", product(normed, weight)))


@pytest.mark.parametrize(("b", "q"), BATCHES)
@pytest.mark.parametrize(("n", "k", "parts"), [(48, 64, 2), (37, 51, 3), (5, 16, 2), (70, 64, 2)])
@pytest.mark.parametrize("columns", [16, 64])
def test_a_product_in_parts(kernels, b, q, n, k, parts, columns):
    x, weight = eighths(b, q, k), eighths(n, k, seed=1)
    found = kernels("partial_product", x, weight, tiles=ProductTiles(columns=columns, inner=16, parts=parts))
    assert found.shape == (parts, b, q, n)
    assert torch.equal(found.sum(0).double(), F.linear(x.double(), weight.double()))
    first = -(-k // 16 // parts) * 16 if k % 16 == 0 else -(-(k // 16 + 1) // parts) * 16
    assert torch.equal(found[0].double(), F.linear(x[:, :, :first].double(), weight[:, :first].double()))


def test_the_tiles_of_products_on_the_device(kernels):
    normed, weight = eighths(1, 20, 200), eighths(2 * 50, 200, seed=1)
    assert torch.equal(kernels("gated", normed, weight), kernels("gate", product(normed, weight)))
    found = kernels("partial_product", normed, weight)
    assert found.shape == (2, 1, 20, 100)
    assert torch.equal(found.sum(0).half(), product(normed, weight))


def test_a_product_is_added_up_in_the_same_order_whatever_the_rows(kernels):
    x, weight = draw(8, 4, 300, dtype=torch.float16), draw(40, 300, seed=1, dtype=torch.float16)
    among, alone = kernels("partial_product", x, weight), kernels("partial_product", x[2:3], weight)
    assert torch.equal(among[:, 2:3], alone)


def test_the_parts_of_large_matrices():
    llada = fused._tiles_of_parts(4096, 4096)
    assert (llada.columns, llada.parts) == (32, 2)
    assert fused._tiles_of_parts(4096, 12_288) == llada
    dream = fused._tiles_of_parts(3584, 18_944)
    assert (dream.columns, dream.parts) == (64, 4)
    assert fused._tiles_of_parts(100_000, 4096).parts == 1


def test_how_many_rows_are_few():
    for dtype in (torch.bfloat16, torch.float16):
        assert [fused.few(positions, dtype) for positions in (0, 1, 32, 33)] == [False, True, True, False]
    assert not fused.few(1, torch.float32)


class Case:
    """Queries, and a store in which nothing beyond the lengths is a number."""

    def __init__(self, q, lengths, *, h=2, g=2, d=32, capacity=None, dtype=torch.float32, seed=0):
        b = len(lengths)
        self.h, self.g, self.d = h, g, d
        self.qkv = draw(b, q, (h + 2 * g) * d, seed=seed, dtype=dtype)
        self.qkv[:, :, h * d :] = torch.nan
        self.slots = torch.randperm(b + 2, generator=torch.Generator().manual_seed(seed))[:b]
        self.lengths = torch.tensor(lengths)
        capacity = max(lengths) if capacity is None else capacity
        self.keys, self.values = (draw(b + 2, g, capacity, d, seed=seed + s, dtype=dtype) for s in (1, 2))
        for slot in range(b + 2):
            length = lengths[self.slots.tolist().index(slot)] if slot in self.slots else 0
            self.keys[slot, :, length:] = self.values[slot, :, length:] = torch.nan

    def arguments(self, longest=None, rows=slice(None)):
        longest = int(self.lengths.max()) if longest is None else longest
        return self.qkv[rows], self.keys, self.values, self.slots[rows], self.lengths[rows], self.h, longest

    def expected(self):
        """One row at a time, in float64."""
        rows = []
        for qkv, slot, length in zip(self.qkv, self.slots, self.lengths, strict=True):
            queries = qkv.unflatten(-1, (-1, self.d))[:, : self.h].transpose(0, 1).double()
            keys, values = (
                kept[slot, :, :length].double().repeat_interleave(self.h // self.g, 0)
                for kept in (self.keys, self.values)
            )
            rows.append(F.scaled_dot_product_attention(queries, keys, values).transpose(0, 1).flatten(1))
        return torch.stack(rows)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("q", "lengths", "sizes"),
    [
        (1, [1], {}),
        (5, [31, 33, 32], {"capacity": 70}),
        (20, [127, 1, 66], {"h": 1, "g": 1, "d": 64}),
        (3, [129, 128], {"h": 7, "g": 1}),
        (33, [40], {"h": 4, "g": 2, "d": 16}),
        (2, [300], {"h": 1, "g": 1, "d": 16}),
        (4, [20, 70], {"h": 2, "g": 1, "d": 128}),
    ],
)
def test_attention_to_a_store(kernels, dtype, q, lengths, sizes):
    case = Case(q, lengths, dtype=dtype, **sizes)
    found = kernels("block_attention", *case.arguments(), tiles=SMALL)
    bound = {torch.float32: 2e-6, torch.float16: 2e-3}[dtype]
    torch.testing.assert_close(found.double(), case.expected(), rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_tiles_of_the_device(kernels, dtype):
    case = Case(20, [257, 30], dtype=dtype)
    bound = 2e-6 if dtype == torch.float32 else 2e-3
    found = kernels("block_attention", *case.arguments())
    torch.testing.assert_close(found.double(), case.expected(), rtol=bound, atol=bound)


def test_large_scores_in_any_split(kernels):
    case = Case(4, [290])  # more splits than are merged at a time
    case.keys[case.slots[0], :, [2, 40, 280]] *= 60.0
    found = kernels("block_attention", *case.arguments(), tiles=SMALL)
    torch.testing.assert_close(found.double(), case.expected(), rtol=1e-4, atol=1e-4)


def test_keys_are_split_only_where_that_occupies_the_device():
    def split(key_heads, asking, dtype=torch.bfloat16):
        return attention._tiles(dtype, key_heads, asking).split

    assert split(32, 32) == 320  # LLaDA, one row
    assert split(16, 224) == split(64, 32) == 512
    assert split(95, 64) == 512
    assert split(96, 64) is split(48, 65) is split(32, 256) is None
    assert split(256, 32, torch.float32) == split(32, 32, torch.float32) == 256


def test_keys_that_are_not_split(kernels):
    case = Case(20, [0, 300, 31], h=4, capacity=310, dtype=torch.float16)
    tiles = replace(SMALL, split=None)
    found = kernels("block_attention", *case.arguments(), tiles=tiles)
    assert not found[0].any()
    torch.testing.assert_close(found[1:].double(), case.expected()[1:], rtol=2e-3, atol=2e-3)
    assert torch.equal(kernels("block_attention", *case.arguments(310), tiles=tiles), found)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_to_the_bit_alone_in_a_batch_and_whatever_the_longest(kernels, dtype):
    case = Case(5, [30, 100, 33], capacity=600, dtype=dtype)
    among = kernels("block_attention", *case.arguments(), tiles=SMALL)
    for longest in (128, 600):
        assert torch.equal(kernels("block_attention", *case.arguments(longest), tiles=SMALL), among)
    for row, length in enumerate(case.lengths.tolist()):
        alone = kernels("block_attention", *case.arguments(length, slice(row, row + 1)), tiles=SMALL)
        assert torch.equal(alone[0], among[row])


@pytest.mark.parametrize("longest", [16, 64])
def test_a_row_without_keys_gets_zeros(kernels, longest):
    case = Case(3, [0, 9], capacity=64)
    found = kernels("block_attention", *case.arguments(longest), tiles=SMALL)
    assert not found[0].any()
    torch.testing.assert_close(found[1].double(), case.expected()[1], **EXACT)


def test_what_is_not_contiguous_is_refused():
    case = Case(2, [4])
    qkv, keys, *rest = case.arguments()
    with pytest.raises(ValueError, match="keys must be contiguous"):
        attention.block_attention(qkv, keys.mT.contiguous().mT, *rest)
    with pytest.raises(ValueError, match="qkv must be contiguous"):
        fused.turn_and_store(qkv.mT.contiguous().mT, rotary_table(32, 8), None, 2, 2, None)


def test_the_kernels_take_some_dtypes():
    x = torch.zeros(1)
    assert fused.takes(x)
    assert fused.takes(x.half())
    assert fused.takes(x.bfloat16())
    assert not fused.takes(x.double())


def model_of(folder, *, dtype="bfloat16", **options):
    return load_model(folder, device="cpu", dtype=dtype, **options).model


def test_a_few_rows_that_see_a_cache_have_joint_operations(make_llada):
    folder = make_llada(d_model=64)
    model = model_of(folder)
    assert type(ops.few_rows_ops(model, 32)) is JointOps
    assert type(ops.few_rows_ops(model, 33)) is KernelOps
    for others in ({"dtype": "float32"}, {"quantize": "int8"}):
        assert type(ops.few_rows_ops(model_of(folder, **others), 32)) is KernelOps
    assert type(ops.layer_ops(model)) is KernelOps


def test_layers_that_somebody_has_replaced_are_called_as_they_are(make_llada):
    class Other(nn.Linear):
        pass

    model = model_of(make_llada(d_model=64))
    model.blocks[1].down = Other(48, 64, bias=False)
    assert type(ops.few_rows_ops(model, 1)) is KernelOps


def test_queries_and_keys_that_are_normalised_are_not_projected_jointly(make_llada):
    model = model_of(make_llada(d_model=64))
    assert type(ops.few_rows_ops(model, 1)) is JointOps
    model.shape = replace(model.shape, qk_norm=True)
    assert type(ops.few_rows_ops(model, 1)) is KernelOps


@pytest.mark.parametrize("width", [8, 24])
def test_heads_whose_width_no_kernel_takes_are_left_to_plain_operations(make_llada, width):
    model = model_of(make_llada(d_model=4 * width))
    assert type(ops.layer_ops(model)) is LayerOps
    assert not passes.runs(model)


@pytest.mark.parametrize(("dtype", "taken"), [("bfloat16", True), ("float32", True), ("float64", False)])
def test_dtypes_that_no_kernel_takes_are_left_to_plain_operations(make_llada, dtype, taken):
    model = model_of(make_llada(d_model=64)).to(getattr(torch, dtype))
    assert (type(ops.layer_ops(model)) is KernelOps) == taken
    assert passes.runs(model) == taken


def test_a_model_with_its_own_predict_has_no_passes_by_kernels(make_llada):
    model = model_of(make_llada(d_model=64))

    class Own(Transformer):
        def predict(self, tokens, **options):
            return super().predict(tokens, **options)

    class Named(Transformer):
        """Changes nothing."""

    assert passes.runs(model)
    assert passes.runs(Named(model.shape, model.spec))
    assert not passes.runs(Own(model.shape, model.spec))
    assert not passes.runs(load_model("toy", device="cpu").model)
