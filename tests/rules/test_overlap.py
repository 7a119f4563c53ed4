import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from unmask.rules import pairwise_jsd, pairwise_overlap

INF = math.inf
LN2 = math.log(2.0)
LARGE = 126_464


def printed_jsd(p, q):
    """Both Kullback-Leibler terms, token by token."""
    middle = [(x + y) / 2 for x, y in zip(p, q, strict=True)]
    kl = [sum(x * math.log(x / z) for x, z in zip(row, middle, strict=True) if x > 0) for row in (p, q)]
    return sum(kl) / 2


def softmax(row):
    weights = [math.exp(x - max(row)) for x in row]
    return [weight / sum(weights) for weight in weights]


def rows(seed, *shape, scale=2.0):
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def peaked(seed, m, v):
    """Rows whose best tokens differ, from nearly flat to nearly certain."""
    logits = rows(seed, m, v)
    logits[torch.arange(m), 17 * torch.arange(m)] += torch.linspace(0.0, 40.0, m)
    return logits


tables = st.integers(1, 5).flatmap(
    lambda m: arrays(np.float64, (m, 4), elements=st.one_of(st.floats(-60, 60), st.just(-INF)))
)


def possible(values):
    """The same logits, with a finite one in every row."""
    return np.where(np.isinf(values).all(-1, keepdims=True), 0.0, values)


def test_divergences_of_two_pairs_done_by_hand():
    jsd = pairwise_jsd(torch.tensor([[0.75, 0.25], [0.25, 0.75]], dtype=torch.float64).log())
    expected = LN2 + 0.75 * math.log(0.75) + 0.25 * math.log(0.25)
    assert jsd.flatten().tolist() == pytest.approx([0.0, expected, expected, 0.0])


def test_disjoint_rows_are_ln2_apart_and_overlap_in_nothing():
    logits = torch.tensor([[0.0, 1.0, -INF, -INF], [-INF, -INF, 2.0, 0.0]])
    assert pairwise_jsd(logits)[0, 1].item() == pytest.approx(LN2)
    assert pairwise_overlap(logits)[0, 1] < 1e-30


@pytest.mark.parametrize("v", [5, 1000, LARGE])
def test_identical_rows_overlap_completely(v):
    row = rows(0, 1, v, scale=3.0)
    jsd = pairwise_jsd(torch.cat([row, row + 5.0, row]))
    assert jsd.abs().max() < 1e-6
    assert jsd[0, 2] == jsd[2, 0]


@settings(max_examples=300, deadline=None)
@given(tables)
def test_divergence_is_that_of_the_printed_formula(values):
    values = possible(values)
    jsd = pairwise_jsd(torch.from_numpy(values))
    p = [softmax(row) for row in values.tolist()]
    expected = [[printed_jsd(one, other) for other in p] for one in p]
    np.testing.assert_allclose(jsd.numpy(), expected, atol=1e-12)


@settings(max_examples=200, deadline=None)
@given(tables, st.sampled_from([torch.float16, torch.bfloat16, torch.float32, torch.float64]))
def test_divergence_is_symmetric_bounded_and_zero_on_the_diagonal(values, dtype):
    jsd = pairwise_jsd(torch.from_numpy(possible(values)).to(dtype))
    assert jsd.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.equal(jsd, jsd.mT)
    assert ((jsd >= 0) & (jsd <= LN2)).all()
    assert (jsd.diagonal() == 0).all()


@settings(max_examples=100, deadline=None)
@given(tables, st.randoms(use_true_random=False))
def test_permuting_positions_permutes_the_overlaps_bit_for_bit(values, random):
    logits = torch.from_numpy(possible(values)).float()
    order = list(range(len(values)))
    random.shuffle(order)
    assert torch.equal(pairwise_overlap(logits[order]), pairwise_overlap(logits)[order][:, order])


@pytest.mark.parametrize("v", [20, 333, 16_384, 40_000])
def test_an_overlap_depends_on_its_own_two_rows_only(v):
    logits = rows(1, 3, 7, v)
    whole = pairwise_overlap(logits)
    for batch in range(3):
        assert torch.equal(pairwise_overlap(logits[batch]), whole[batch])
        assert torch.equal(pairwise_overlap(logits[batch, 2:4]), whole[batch, 2:4, 2:4])


def test_an_overlap_does_not_depend_on_the_number_of_threads():
    logits, threads = rows(2, 5, 70_000), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = pairwise_overlap(logits)
        torch.set_num_threads(2)
        assert torch.equal(pairwise_overlap(logits), alone)
        assert torch.equal(pairwise_overlap(logits[:2]), alone[:2, :2])
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("garbage", [math.nan, INF, -INF, 1e4])
@pytest.mark.parametrize("vocabulary", [None, 3])
def test_closed_positions_have_no_influence_whatever_they_hold(garbage, vocabulary):
    logits = rows(3, 2, 6, 30)
    masked = torch.tensor([[True, False, True, True, False, True], [False, False, True, False, True, False]])
    clean = pairwise_overlap(logits, masked=masked, vocabulary=vocabulary)
    dirty = pairwise_overlap(logits.where(masked[..., None], garbage), masked=masked, vocabulary=vocabulary)
    assert torch.equal(clean, dirty)
    assert torch.equal(clean == 0, ~(masked[:, :, None] & masked[:, None]))
    for row in range(2):
        alone = pairwise_overlap(logits[row, masked[row]], vocabulary=vocabulary)
        assert torch.equal(clean[row][masked[row]][:, masked[row]], alone)


@pytest.mark.parametrize("shape", [(0, 5), (1, 5), (2, 0, 5), (0, 3, 5), (2, 3, 4, 5), (3, 1)])
def test_any_leading_shape_and_any_number_of_positions_will_do(shape):
    jsd = pairwise_jsd(rows(4, *shape))
    assert jsd.shape == (*shape[:-1], shape[-2])
    assert jsd.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_compared_in_float32(dtype):
    logits = rows(5, 6, 500).to(dtype)
    assert torch.equal(pairwise_overlap(logits), pairwise_overlap(logits.float()))


def test_float32_is_accurate_on_a_large_vocabulary():
    logits = peaked(6, 8, LARGE)
    p = logits.double().softmax(-1)
    middle = (p[:, None] + p) / 2
    kl = torch.xlogy(p, p / middle).sum(-1)
    expected = 1 - (kl + kl.T) / (2 * LN2)
    assert (pairwise_overlap(logits) - expected).abs().max() < 1e-6


def test_even_the_smallest_overlaps_keep_their_leading_digits_in_float32():
    logits = peaked(7, 8, LARGE)
    exact = pairwise_overlap(logits.double())
    assert exact.min() < 1e-9
    assert ((pairwise_overlap(logits) - exact) / exact).abs().max() < 5e-6


def test_small_overlaps_agree_with_the_first_terms_of_their_series():
    # b ln(a / b) + (p + q) ln((p + q) / a) is b (1 + ln(a / b)) for b far below a.
    tail = 1e-12
    logits = torch.tensor([[1 - tail, tail, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    logits[1, 0], logits[1, 2] = tail, 1 - tail
    overlap = pairwise_overlap(logits.log())[0, 1].item()
    assert overlap == pytest.approx(tail * (1 - math.log(tail)) / (2 * LN2), rel=1e-9)


def test_logits_are_left_alone_even_if_they_carry_gradients():
    logits = rows(8, 4, 50).requires_grad_()
    before = logits.detach().clone()
    assert not pairwise_jsd(logits).requires_grad
    assert torch.equal(logits, before)
