"""Attention by kernels on a CUDA device, at the sizes of real models, against attention in float64."""

import pytest
import torch
from cuda_inputs import DREAM, DTYPES, LLADA, NEEDS_CUDA, draw, heads_of, never_waiting, table

from unmask.models.attention import attend

pytest.importorskip("triton")

from unmask.models.kernels.attention import block_attention, ragged_attention
from unmask.models.kernels.ops import KernelOps

pytestmark = NEEDS_CUDA


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("h", "g", "d"), [LLADA, DREAM, (10, 10, 32), (7, 1, 64)])
def test_attention_within_rows_one_behind_the_other(dtype, h, g, d):
    lengths = [700, 1, 64, 333, 65]
    count = torch.tensor(lengths, device="cuda")
    qkv = draw(sum(lengths) + 101, 1, (h + 2 * g) * d, dtype=dtype)
    qkv[sum(lengths) :] = torch.nan  # belongs to no row
    rows = qkv[: sum(lengths)].double().transpose(0, 1).split(lengths, dim=1)
    expected = torch.cat([attend(*heads_of(row, h, g), None)[0] for row in rows])
    with never_waiting():
        found = ragged_attention(qkv, count.cumsum(0) - count, count, h, g, 768)[: sum(lengths), 0]
    tolerance = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(found.double(), expected, rtol=0.0, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("h", "g", "d"), [LLADA, DREAM, (10, 10, 32), (7, 1, 64)])
def test_attention_of_rows_one_behind_the_other_to_a_store(dtype, h, g, d):
    lengths = [700, 32, 1, 64, 33]
    count, seen = torch.tensor(lengths, device="cuda"), torch.tensor([700, 1280, 5, 300, 1279], device="cuda")
    qkv = draw(sum(lengths) + 66, 1, (h + 2 * g) * d, dtype=dtype)
    qkv[sum(lengths) :] = torch.nan  # belongs to no row
    keys, values = (draw(7, g, 1280, d, seed=seed, dtype=dtype) for seed in (1, 2))
    slots, expected = torch.tensor([6, 0, 3, 2, 5], device="cuda"), []
    packed = qkv[: sum(lengths)].double().transpose(0, 1).split(lengths, dim=1)
    for row, slot, length in zip(packed, slots.tolist(), seen.tolist(), strict=True):
        keys[slot, :, length:] = values[slot, :, length:] = torch.nan  # never read
        visible = (kept[slot, None, :, :length].double() for kept in (keys, values))
        expected.append(attend(heads_of(row, h, g)[0], *visible, None)[0])
    expected = torch.cat(expected)
    with never_waiting():
        starts = count.cumsum(0) - count
        found = ragged_attention(qkv, starts, count, h, g, 768, (keys, values, slots, seen))[: sum(lengths), 0]
    tolerance = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(found.double(), expected, rtol=0.0, atol=tolerance)


class Case:
    """Queries, and a store in which nothing beyond the lengths is a number."""

    def __init__(self, q, lengths, sizes, *, capacity=None, dtype=torch.bfloat16):
        b, (self.h, self.g, self.d) = len(lengths), sizes
        self.qkv = draw(b, q, (self.h + 2 * self.g) * self.d, dtype=dtype)
        self.slots, self.lengths = torch.randperm(b + 2).cuda()[:b], torch.tensor(lengths, device="cuda")
        self.capacity = max(lengths) if capacity is None else capacity
        self.keys, self.values = (draw(b + 2, self.g, self.capacity, self.d, seed=seed, dtype=dtype) for seed in (1, 2))
        for slot, length in zip(self.slots.tolist(), lengths, strict=True):
            self.keys[slot, :, length:] = self.values[slot, :, length:] = torch.nan

    def attend(self, longest=None, rows=slice(None)):
        return block_attention(
            *(self.qkv[rows], self.keys, self.values, self.slots[rows], self.lengths[rows]),
            *(self.h, self.capacity if longest is None else longest),
        )

    def expected(self):
        """One row at a time, in float64."""
        rows = []
        for qkv, slot, length in zip(self.qkv, self.slots.tolist(), self.lengths.tolist(), strict=True):
            queries = heads_of(qkv.double()[None], self.h, self.g)[0]
            keys, values = (kept[slot, None, :, :length].double() for kept in (self.keys, self.values))
            keys, values = (kept.repeat_interleave(self.h // self.g, dim=1) for kept in (keys, values))
            weights = (queries @ keys.mT * self.d**-0.5).softmax(-1)
            rows.append((weights @ values).transpose(1, 2).flatten(2))
        return torch.cat(rows)

    def check(self, found):
        bound = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 5e-6}[found.dtype]
        torch.testing.assert_close(found.double(), self.expected(), rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [LLADA, DREAM, (10, 10, 32), (4, 2, 64), (3, 1, 16)])
@pytest.mark.parametrize(
    ("q", "lengths"), [(1, [1]), (20, [127, 128, 129]), (32, [1280]), (33, [300, 1, 511, 256, 257]), (300, [700, 512])]
)
def test_attention_to_a_store(dtype, sizes, q, lengths):
    case = Case(q, lengths, sizes, dtype=dtype, capacity=max(lengths) + 37)
    case.check(case.attend())


@pytest.mark.parametrize("sizes", [LLADA, DREAM])
def test_a_row_is_the_same_alone_in_a_batch_and_whatever_the_longest(sizes):
    case = Case(32, [200, 1280, 257, 3], sizes, dtype=torch.float32)
    among = case.attend()
    for longest in (1280, 5000):
        assert torch.equal(case.attend(longest), among)
    for row, length in enumerate(case.lengths.tolist()):
        assert torch.equal(case.attend(length, slice(row, row + 1))[0], among[row])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("sizes", [LLADA, DREAM])
@pytest.mark.parametrize("b", [1, 2, 4, 8, 12])
def test_splits_of_every_batch(dtype, sizes, b):
    case = Case(32, [1280, 200, 257, 3, 640, 641, 1, 1279, 256, 512, 513, 1024][:b], sizes, dtype=dtype)
    found = case.attend()
    case.check(found)
    assert torch.equal(case.attend(5000), found)


@pytest.mark.parametrize("longest", [128, 1024])
def test_a_row_without_keys_gets_zeros(longest):
    case = Case(32, [0, 100], LLADA, capacity=1024)
    assert not case.attend(longest)[0].any()


def test_a_store_beyond_31_bits():
    h, g, d = LLADA
    keys, values = (torch.empty(40, g, 16_384, d, dtype=torch.bfloat16, device="cuda") for _ in range(2))
    assert keys.numel() > 2**31
    qkv, positions = (
        draw(2, 300, (h + 2 * g) * d),
        torch.stack([torch.arange(300), torch.arange(16_084, 16_384)]).cuda(),
    )
    slots, lengths = torch.tensor([1, 39], device="cuda"), torch.tensor([300, 16_384], device="cuda")
    keys[39], values[39] = draw(g, 16_384, d, seed=1), draw(g, 16_384, d, seed=2)
    KernelOps.turn_and_store(qkv, table(d, 16_384), positions, h, g, (keys, values, slots))
    _, fresh_keys, fresh_values = heads_of(qkv, h, g)
    for row, slot in enumerate(slots.tolist()):
        assert torch.equal(keys[slot][:, positions[row]], fresh_keys[row])
        assert torch.equal(values[slot][:, positions[row]], fresh_values[row])
    found = block_attention(qkv, keys, values, slots, lengths, h, 16_384)
    queries = heads_of(qkv, h, g)[0]
    for row, (slot, length) in enumerate(zip(slots.tolist(), lengths.tolist(), strict=True)):
        seen = keys[slot, None, :, :length], values[slot, None, :, :length]
        expected = attend(queries[row : row + 1].float(), *(kept.float() for kept in seen), None)
        torch.testing.assert_close(found[row].float(), expected[0], rtol=1e-2, atol=1e-2)
