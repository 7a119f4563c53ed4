"""Attention of rows one behind the other, in Triton's interpreter (see kernel_inputs.py), against plain attention."""

import pytest
import torch

from unmask.models.attention import attend

pytest.importorskip("triton")

from unmask.models.kernels.attention import ragged_attention

LENGTHS = [70, 0, 1, 64, 33]
COUNT = torch.tensor(LENGTHS)
STARTS = COUNT.cumsum(0) - COUNT
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3}


def draw(*shape, seed=0, dtype):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def drawn(h, g, d, dtype):
    """What is packed, with places at the end that belong to no row."""
    qkv = draw(sum(LENGTHS) + 5, 1, (h + 2 * g) * d, dtype=dtype)
    qkv[sum(LENGTHS) :] = torch.nan
    return qkv


def heads_of(qkv, h, g):
    """Queries, keys and values of every row, in float32."""
    heads = qkv[: sum(LENGTHS)].float().transpose(0, 1).unflatten(-1, (h + 2 * g, -1)).transpose(1, 2)
    return [row.split([h, g, g], dim=1) for row in heads.split(LENGTHS, dim=2)]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("h", "g", "d"), [(2, 2, 16), (6, 2, 32), (1, 1, 256)])
def test_to_the_keys_beside_the_queries(interpreted, dtype, h, g, d):
    qkv = drawn(h, g, d, dtype)
    found = interpreted(ragged_attention, qkv, STARTS, COUNT, h, g, 80)[: sum(LENGTHS), 0]
    rows = [attend(queries, keys, values, None)[0] for queries, keys, values in heads_of(qkv, h, g) if queries.numel()]
    torch.testing.assert_close(found.float(), torch.cat(rows), rtol=0.0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize(("h", "g", "d"), [(2, 2, 16), (6, 2, 32), (1, 1, 256)])
def test_to_the_keys_in_a_store(interpreted, dtype, h, g, d):
    qkv, slots, seen = drawn(h, g, d, dtype), torch.tensor([3, 0, 5, 1, 4]), torch.tensor([70, 9, 0, 72, 33])
    keys, values = (draw(6, g, 72, d, seed=seed, dtype=dtype) for seed in (1, 2))
    found = interpreted(ragged_attention, qkv, STARTS, COUNT, h, g, 80, (keys, values, slots, seen))
    rows = []
    for (queries, _, _), slot, count in zip(heads_of(qkv, h, g), slots, seen, strict=True):
        visible = (kept[slot, None, :, :count].float() for kept in (keys, values))
        # The third row has one query, and no keys.
        rows.append(attend(queries, *visible, None)[0] if count else torch.zeros(queries.shape[2], h * d))
    torch.testing.assert_close(found[: sum(LENGTHS), 0].float(), torch.cat(rows), rtol=0.0, atol=TOLERANCE[dtype])
