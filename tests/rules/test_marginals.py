import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from unmask.rules import (
    best_token,
    entropy,
    log_probabilities,
    probabilities,
    probability_of,
    top2_margin,
    top2_probabilities,
)

INF = math.inf
ROW = torch.tensor([1.0, 2.0, -INF], dtype=torch.float64)
P = [1 / (1 + math.e), math.e / (1 + math.e), 0.0]


def test_probabilities_of_a_row_done_by_hand():
    assert probabilities(ROW).tolist() == pytest.approx(P)
    assert log_probabilities(ROW).tolist() == pytest.approx([math.log(P[0]), math.log(P[1]), -INF])
    assert top2_probabilities(ROW).tolist() == pytest.approx([P[1], P[0]])
    assert entropy(ROW).item() == pytest.approx(-P[0] * math.log(P[0]) - P[1] * math.log(P[1]))
    assert top2_margin(ROW).item() == pytest.approx(1.0)


def test_a_token_that_cannot_occur_has_probability_zero():
    assert probability_of(torch.tensor([0, 1, 2]), ROW.expand(3, 3)).tolist() == pytest.approx(P)


def test_a_single_possible_token_has_infinite_margin_and_no_entropy():
    for logits in (torch.tensor([[-INF, 3.0, -INF]]), torch.tensor([[3.0]])):
        assert top2_margin(logits).tolist() == [INF]
        assert top2_probabilities(logits).tolist() == [[1.0, 0.0]]
        assert entropy(logits).tolist() == [0.0]


def test_equal_logits_give_no_margin_and_the_largest_entropy():
    logits = torch.full((2, 7), 4.0)
    assert top2_margin(logits).tolist() == [0.0, 0.0]
    torch.testing.assert_close(entropy(logits), torch.full((2,), math.log(7)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_figures_have_the_dtype_of_the_logits_and_leave_them_alone(dtype):
    logits = (4 * torch.randn(3, 50, generator=torch.Generator().manual_seed(0))).to(dtype)
    before = logits.clone()
    tokens = logits.argmax(-1)
    figures = [f(logits) for f in (probabilities, log_probabilities, entropy, top2_probabilities)]
    assert {figure.dtype for figure in [*figures, probability_of(tokens, logits)]} == {dtype}
    assert best_token(logits).tolist() == tokens.tolist()
    assert torch.equal(logits, before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_margin_of_half_precision_is_not_rounded_to_it(dtype):
    logits = torch.tensor([[24.0, 2.0**-9, -30.0]]).to(dtype)
    assert top2_margin(logits).dtype == torch.float32
    assert torch.equal(top2_margin(logits), top2_margin(logits.float()))
    assert torch.equal(top2_margin(logits), logits[:, 0].float() - logits[:, 1].float())
    assert top2_margin(logits).to(dtype).float() != top2_margin(logits)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_rounded_once_at_the_end(dtype):
    logits = (6 * torch.randn(4, 1000, generator=torch.Generator().manual_seed(1))).to(dtype)
    for figure in (probabilities, log_probabilities, entropy, top2_probabilities):
        assert torch.equal(figure(logits), figure(logits.float()).to(dtype))


def test_float32_probabilities_of_a_large_vocabulary_add_up_to_one():
    logits = 2 * torch.randn(4, 126_464, generator=torch.Generator().manual_seed(2))
    assert (probabilities(logits).double().sum(-1) - 1).abs().max() < 1e-6
    exact = logits.double().log_softmax(-1)
    assert (log_probabilities(logits) - exact).abs().max() < 5e-6
    assert (entropy(logits) - -(exact.exp() * exact).sum(-1)).abs().max() < 5e-6


@settings(max_examples=100, deadline=None)
@given(arrays(np.float64, (3, 5), elements=st.one_of(st.floats(-500, 500), st.just(-INF))))
def test_the_figures_agree_with_each_other(values):
    values[:, 2] = np.where(np.isinf(values[:, 2]), 0.0, values[:, 2])
    logits = torch.from_numpy(values)
    p = probabilities(logits)
    torch.testing.assert_close(p.sum(-1), torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(p, logits.softmax(-1))
    torch.testing.assert_close(log_probabilities(logits), logits.log_softmax(-1))
    torch.testing.assert_close(entropy(logits), torch.special.entr(p).sum(-1))
    for token in range(5):
        torch.testing.assert_close(probability_of(torch.full((3,), token), logits), p[:, token])
    best = top2_probabilities(logits)
    torch.testing.assert_close(best, p.topk(2).values)
    likely = best[:, 1] > 1e-300
    torch.testing.assert_close(top2_margin(logits)[likely], (best[:, 0].log() - best[:, 1].log())[likely])
