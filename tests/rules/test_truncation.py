import inspect
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from unmask.errors import UnmaskError
from unmask.rules import mean_field_commit, pairwise_jsd, pairwise_overlap, truncation_error

INF = math.inf


def merged(logits, vocabulary):
    """Probabilities of the union of every row's best tokens, and of all the others together."""
    p = logits.double().softmax(-1)
    best = p.topk(vocabulary)
    kept = sorted(set(best.indices[best.values > 0].tolist()))
    others = [token for token in range(p.shape[-1]) if token not in kept]
    return torch.cat([p[:, kept], p[:, others].sum(-1, keepdim=True)], dim=-1)


@pytest.mark.parametrize("vocabulary", [1, 3, 10])
def test_tokens_outside_every_rows_best_are_merged_into_one(vocabulary):
    logits = 3 * torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    expected = pairwise_jsd(merged(logits, vocabulary).log())
    torch.testing.assert_close(pairwise_jsd(logits, vocabulary=vocabulary), expected.float())


def test_the_whole_vocabulary_is_no_truncation():
    logits = torch.randn(4, 30, generator=torch.Generator().manual_seed(1))
    assert torch.equal(pairwise_overlap(logits, vocabulary=30), pairwise_overlap(logits))
    assert torch.equal(pairwise_overlap(logits, vocabulary=99), pairwise_overlap(logits))
    assert truncation_error(logits, vocabulary=30).max() < 1e-30


@settings(max_examples=100, deadline=None)
@given(
    arrays(np.float64, (4, 8), elements=st.one_of(st.floats(-20, 20), st.just(-INF))),
    st.integers(1, 8),
)
def test_truncation_errs_upwards_and_within_its_bound(values, vocabulary):
    values[:, 0] = np.where(np.isinf(values[:, 0]), 0.0, values[:, 0])
    values += 1e-5 * np.arange(8)
    finite = [row[np.isfinite(row)] for row in values]
    assume(all(len(set(row)) == len(row) for row in finite))  # which of equally likely tokens are kept is open
    logits = torch.from_numpy(values)
    excess = pairwise_overlap(logits, vocabulary=vocabulary) - pairwise_overlap(logits)
    bound = truncation_error(logits, vocabulary=vocabulary)
    rest = merged(logits, vocabulary)[:, -1]
    assert (excess >= -1e-12).all()
    assert (excess <= bound + 1e-12).all()
    assert (bound <= (rest[:, None] + rest) / 2 + 1e-12).all()
    assert (bound.diagonal() == 0).all()


def test_a_truncated_overlap_depends_on_the_open_rows_only():
    logits = 2 * torch.randn(3, 9, 600, generator=torch.Generator().manual_seed(2))
    masked = torch.rand(3, 9, generator=torch.Generator().manual_seed(3)) < 0.6
    whole = pairwise_overlap(logits, masked=masked, vocabulary=16)
    for row in range(3):
        alone = pairwise_overlap(logits[row, masked[row]], vocabulary=16)
        assert torch.equal(whole[row][masked[row]][:, masked[row]], alone)


def test_the_rule_measures_overlaps_on_the_truncated_vocabulary():
    logits = 4 * torch.randn(2, 6, 50, generator=torch.Generator().manual_seed(4))
    masked = torch.ones(2, 6, dtype=torch.bool)
    overlap = pairwise_overlap(logits, vocabulary=4) * ~torch.eye(6, dtype=torch.bool)
    decided = mean_field_commit(logits, masked, vocabulary=4)
    torch.testing.assert_close(decided.overlap, overlap / overlap.amax((-2, -1), keepdim=True))
    assert not torch.equal(decided.overlap, mean_field_commit(logits, masked).overlap)


@pytest.mark.parametrize("vocabulary", [0, -3, True, "8", 100.5])
def test_a_vocabulary_without_tokens_is_refused(vocabulary):
    for measure in (pairwise_overlap, truncation_error):
        with pytest.raises(UnmaskError, match=r"vocabulary must be a whole number of at least 1, got"):
            inspect.unwrap(measure)(torch.zeros(2, 5), vocabulary=vocabulary)  # without the type checks of tests
