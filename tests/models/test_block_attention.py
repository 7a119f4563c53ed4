"""Attention to the keys in a store, in Triton's interpreter, against plain attention."""

import pytest
import torch
import torch.nn.functional as F
from kernel_inputs import DTYPES, EXACT, draw

pytest.importorskip("triton")

from unmask.models.kernels.attention import block_attention, keys_of_a_split

# So small that a few dozen keys are several splits, and a few queries several tiles.
TILES = {"ROWS": 16, "KEYS": 16, "num_warps": 4, "num_stages": 3}
SMALL = {"split": 32, "tiles": TILES}


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
        (33, [40], {"h": 2, "g": 1, "d": 16}),
        (2, [300], {"h": 1, "g": 1, "d": 16}),
        (4, [20, 70], {"h": 2, "g": 1, "d": 128}),
    ],
)
def test_attention_to_a_store(interpreted, dtype, q, lengths, sizes):
    case = Case(q, lengths, dtype=dtype, **sizes)
    found = interpreted(block_attention, *case.arguments(), **SMALL)
    bound = {torch.float32: 2e-6, torch.float16: 2e-3}[dtype]
    torch.testing.assert_close(found.double(), case.expected(), rtol=bound, atol=bound)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_tiles_of_the_device(interpreted, dtype):
    case = Case(20, [257, 30], dtype=dtype)
    bound = 2e-6 if dtype == torch.float32 else 2e-3
    found = interpreted(block_attention, *case.arguments())
    torch.testing.assert_close(found.double(), case.expected(), rtol=bound, atol=bound)


def test_large_scores_in_any_split(interpreted):
    case = Case(4, [290])  # more splits than are merged at a time
    case.keys[case.slots[0], :, [2, 40, 280]] *= 60.0
    found = interpreted(block_attention, *case.arguments(), **SMALL)
    torch.testing.assert_close(found.double(), case.expected(), rtol=1e-4, atol=1e-4)


def test_keys_are_split_only_where_that_occupies_the_device():
    assert keys_of_a_split(torch.bfloat16, 32) == 320  # LLaDA, one row
    assert keys_of_a_split(torch.bfloat16, 64) == keys_of_a_split(torch.bfloat16, 95) == 512
    assert keys_of_a_split(torch.bfloat16, 96) is None
    assert keys_of_a_split(torch.float32, 32) == keys_of_a_split(torch.float32, 256) == 256


def test_keys_that_are_not_split(interpreted):
    case = Case(20, [0, 100, 31], h=4, capacity=110, dtype=torch.float16)
    found = interpreted(block_attention, *case.arguments(), split=128, tiles=TILES)
    assert not found[0].any()
    torch.testing.assert_close(found[1:].double(), case.expected()[1:], rtol=2e-3, atol=2e-3)
    assert torch.equal(interpreted(block_attention, *case.arguments(110), split=128, tiles=TILES), found)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_to_the_bit_alone_in_a_batch_and_whatever_the_longest(interpreted, dtype):
    case = Case(5, [30, 70, 33], h=1, g=1, capacity=200, dtype=dtype)
    among = interpreted(block_attention, *case.arguments(), **SMALL)
    for longest in (128, 200):
        assert torch.equal(interpreted(block_attention, *case.arguments(longest), **SMALL), among)
    for row, length in enumerate(case.lengths.tolist()):
        alone = interpreted(block_attention, *case.arguments(length, slice(row, row + 1)), **SMALL)
        assert torch.equal(alone[0], among[row])


@pytest.mark.parametrize("longest", [16, 64])
def test_a_row_without_keys_gets_zeros(interpreted, longest):
    case = Case(3, [0, 9], capacity=64)
    found = interpreted(block_attention, *case.arguments(longest), **SMALL)
    assert not found[0].any()
    torch.testing.assert_close(found[1].double(), case.expected()[1], **EXACT)


def test_what_is_not_contiguous_is_refused():
    qkv, keys, *rest = Case(2, [4]).arguments()
    with pytest.raises(AssertionError, match="is not contiguous"):
        block_attention(qkv, keys.mT.contiguous().mT, *rest)
