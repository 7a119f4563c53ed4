import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from unmask.rules import mean_field_commit

INF = math.inf
FIELDS = ("commit", "score", "intensity", "margin", "overlap", "history")
OPTIONS = [
    {},
    {"iterations": 1, "threshold": 0.95},
    {"vocabulary": 2, "fallback": "confidence"},
    {"interaction": "uniform", "uniform_weight": 0.3},
    {"normalize": "none", "iterations": 3},
]


@st.composite
def blocks(draw):
    """Logits (b, 5, 6) with a possible token at every position, and a mask."""
    b = draw(st.integers(1, 3))
    logits = draw(arrays(np.float32, (b, 5, 6), elements=st.one_of(st.floats(-30, 30, width=32), st.just(-INF))))
    logits[..., 1] = np.where(np.isinf(logits).all(-1), 0.0, logits[..., 1])
    return torch.from_numpy(logits), torch.from_numpy(draw(arrays(np.bool_, (b, 5))))


def assert_same(one, other, rows=slice(None)):
    """Bit for bit, except for the bound, on which no decision rests."""
    for name in FIELDS:
        expected = getattr(other, name)
        assert torch.equal(getattr(one, name), expected[:, rows] if name == "history" else expected[rows]), name
    torch.testing.assert_close(one.elbo, other.elbo[:, rows])


@settings(max_examples=100, deadline=None)
@given(blocks(), st.sampled_from(OPTIONS))
def test_every_open_row_progresses_and_closed_positions_stay_closed(block, options):
    logits, masked = block
    decided = mean_field_commit(logits, masked, **options, diagnostics=True)
    assert not (decided.commit & ~masked).any()
    assert torch.equal(decided.commit.any(-1), masked.any(-1))
    assert torch.equal(decided.score == -INF, ~masked)
    for figure in (decided.intensity, decided.margin, decided.history):
        assert (figure.masked_select(~masked) == 0).all()
    assert torch.equal(decided.overlap, decided.overlap.mT)
    assert (decided.overlap.diagonal(dim1=-2, dim2=-1) == 0).all()
    assert ((decided.overlap >= 0) & (decided.overlap <= 1)).all()
    assert (decided.overlap[~masked] == 0).all()
    assert ((decided.intensity >= 0) & (decided.intensity <= 1)).all()


@settings(max_examples=60, deadline=None)
@given(blocks(), st.sampled_from(OPTIONS), st.sampled_from([math.nan, INF, -INF]))
def test_closed_positions_are_never_read_with_or_without_validation(block, options, garbage):
    logits, masked = block
    clean = mean_field_commit(logits, masked, **options, diagnostics=True)
    dirty = logits.where(masked[..., None], garbage)
    assert_same(mean_field_commit(dirty, masked, **options, diagnostics=True), clean)
    assert_same(mean_field_commit(dirty, masked, **options, diagnostics=True, validate=False), clean)


@settings(max_examples=60, deadline=None)
@given(blocks(), st.sampled_from(OPTIONS))
def test_a_row_is_decided_the_same_alone_and_in_a_batch(block, options):
    logits, masked = block
    whole = mean_field_commit(logits, masked, **options, diagnostics=True)
    for row in range(len(logits)):
        alone = mean_field_commit(logits[row : row + 1], masked[row : row + 1], **options, diagnostics=True)
        assert_same(alone, whole, slice(row, row + 1))


@settings(max_examples=60, deadline=None)
@given(blocks(), st.randoms(use_true_random=False))
def test_permuting_positions_permutes_the_decision(block, random):
    logits, masked = block
    order = list(range(5))
    random.shuffle(order)
    plain = mean_field_commit(logits, masked)
    moved = mean_field_commit(logits[:, order], masked[:, order])
    for name in ("score", "intensity", "margin"):
        assert torch.equal(getattr(moved, name), getattr(plain, name)[:, order]), name
    assert torch.equal(moved.overlap, plain.overlap[:, order][:, :, order])
    # Only a forced commit may move, from one of several equal positions to another.
    certain = (plain.intensity >= 0.85).any(-1)
    assert torch.equal(moved.commit[certain], plain.commit[certain][:, order])


@pytest.mark.parametrize("vocabulary", [None, 8])
@pytest.mark.parametrize("validate", [True, False])
@pytest.mark.parametrize(("k", "v"), [(3, 40), (13, 300), (20, 2000)])
def test_padding_columns_change_nothing(k, v, validate, vocabulary):
    logits = 3 * torch.randn(2, k, v, generator=torch.Generator().manual_seed(k))
    masked = torch.rand(2, k, generator=torch.Generator().manual_seed(v)) < 0.8
    options = {"vocabulary": vocabulary, "validate": validate}
    alone = mean_field_commit(logits, masked, **options)
    for padding in (1, 7, 20):
        wide = torch.cat([logits, torch.full((2, padding, v), math.nan)], dim=1)
        padded = mean_field_commit(wide, torch.nn.functional.pad(masked, (0, padding)), **options)
        for name in ("commit", "score", "intensity", "margin"):
            assert torch.equal(getattr(padded, name)[:, :k], getattr(alone, name)), name
        assert torch.equal(padded.overlap[:, :k, :k], alone.overlap)
