"""Attention of rows one behind the other, in Triton's interpreter (see test_fused.py), against the plain one."""

import pytest
import torch

from unmask.models import fused, plain

LENGTHS = [70, 0, 1, 64, 33]
COUNT = torch.tensor(LENGTHS)
STARTS = COUNT.cumsum(0) - COUNT
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3}


def attend(*arguments):
    return fused.ragged_attention(*arguments)


def draw(*shape, seed=0, dtype):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def drawn(h, g, d, dtype):
    """What is packed, with places at the end that belong to no row."""
    qkv = draw(sum(LENGTHS) + 5, 1, (h + 2 * g) * d, dtype=dtype)
    qkv[sum(LENGTHS) :] = torch.nan
    return qkv


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("h", "g", "d"), [(2, 2, 16), (6, 2, 32), (1, 1, 256)])
def test_to_the_keys_beside_the_queries(interpreted, dtype, h, g, d):
    qkv = drawn(h, g, d, dtype)
    found = interpreted(attend, qkv, STARTS, COUNT, h, g, 80)[: sum(LENGTHS)]
    expected = plain.ragged_attention(qkv[: sum(LENGTHS)].float(), [length for length in LENGTHS if length], h, g)
    torch.testing.assert_close(found.float(), expected, rtol=0.0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("h", "g", "d"), [(2, 2, 16), (6, 2, 32), (1, 1, 256)])
def test_to_the_keys_in_a_store(interpreted, dtype, h, g, d):
    qkv, places, seen = drawn(h, g, d, dtype), torch.tensor([3, 0, 5, 1, 4]), torch.tensor([70, 9, 0, 72, 33])
    keys, values = (draw(6, g, 72, d, seed=seed, dtype=dtype) for seed in (1, 2))
    found = interpreted(attend, qkv, STARTS, COUNT, h, g, 80, (keys, values, places, seen))[: sum(LENGTHS)]
    visible = (torch.arange(72) < seen[:, None].clamp(min=1))[:, None, None]
    stored = (keys.float(), values.float(), places, visible)
    expected = plain.ragged_attention(qkv[: sum(LENGTHS)].float(), LENGTHS, h, g, stored)
    expected[70] = 0.0  # the third row has one query, and no keys
    torch.testing.assert_close(found.float(), expected, rtol=0.0, atol=TOLERANCE[dtype])
