"""`rules/kernels/marginals.py` in Triton's interpreter, against the plain functions of `rules/marginals.py`."""

import math
from functools import partial

import pytest
import torch

from unmask.rules import entropy, probability_of, top2_probabilities

pytest.importorskip("triton")

from unmask.rules.kernels import marginals as kernels

INF, NAN = math.inf, math.nan
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
PIECE = 64  # so small that a few hundred tokens are several


def draw(*shape, seed=0, spread=3.0):
    return spread * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def figures(interpreted):
    """All figures by the kernels in float32, in the process that interprets."""
    options = {"dtype": torch.float32, "piece": PIECE}
    return lambda tokens, logits: [
        interpreted(kernels.probability_of, tokens, logits, **options),
        interpreted(kernels.entropy, logits, **options),
        interpreted(kernels.top2_probabilities, logits, **options),
    ]


@pytest.fixture
def best_token(interpreted):
    """The best token by the kernels, in the process that interprets."""
    return partial(interpreted, kernels.best_token, piece=PIECE)


SHAPES = [(1,), (2, 7), (3, 2, 64), (1, 300), (2, 1, 129)]
KINDS = [*((shape, torch.float32) for shape in SHAPES), *(((2, 1, 129), dtype) for dtype in DTYPES[1:])]


@pytest.mark.parametrize(("shape", "dtype"), KINDS)
def test_the_best_token_is_the_first_of_the_largest(best_token, shape, dtype):
    logits = draw(*shape).round().to(dtype)  # many are equal
    assert torch.equal(best_token(logits), logits.argmax(-1))


def test_the_best_token_among_what_is_no_number_or_cannot_occur(best_token):
    logits = draw(4, 200)
    logits[0] = -INF
    logits[1, :150] = -INF
    logits[2, 77] = NAN
    logits[3, 130] = INF
    assert best_token(logits).tolist() == logits.argmax(-1).tolist()
    assert best_token(logits[:, ::2]).tolist() == logits[:, ::2].argmax(-1).tolist()


def plain(tokens, logits):
    return [probability_of(tokens, logits), entropy(logits), top2_probabilities(logits)]


def check(figures, logits, tokens=None):
    tokens = logits.float().nan_to_num(nan=0.0).argmax(-1) if tokens is None else tokens
    found = figures(tokens, logits)
    for figure, expected in zip(found, plain(tokens, logits.double()), strict=True):
        assert figure.dtype == torch.float32
        torch.testing.assert_close(figure.double(), expected, rtol=1e-6, atol=1e-37, equal_nan=True)
    return found


@pytest.mark.parametrize(("shape", "dtype"), KINDS)
def test_logits_of_every_shape(figures, shape, dtype):
    logits = draw(*shape, seed=shape[-1]).to(dtype)
    check(figures, logits)
    check(figures, logits, torch.randint(shape[-1], shape[:-1], generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("shift", [7e3, -7e3, 1e4, -1e4, 1e6])
def test_huge_logits(figures, shift):
    check(figures, (draw(2, 200) + shift) if abs(shift) < 1e6 else draw(2, 200) * shift)


def test_only_possible_tokens_count(figures):
    logits = draw(3, 200)
    logits[0, ::2] = -INF
    logits[1] = -INF
    logits[1, 150] = -3.0
    probability, spread, best = check(figures, logits, torch.tensor([100, 150, 7]))
    assert probability[:2].tolist() == [0.0, 1.0]
    assert spread[1] == 0.0
    assert best[1].tolist() == [1.0, 0.0]


def test_a_row_without_a_finite_logit_or_with_worse_gives_nan_and_only_that_row(figures):
    logits = draw(5, 200)
    logits[0] = -INF
    logits[1, 180] = NAN
    logits[2, 5] = INF
    logits[3, [5, 180]] = torch.tensor([INF, NAN])
    for figure in check(figures, logits, torch.full((5,), 9)):
        assert figure.reshape(5, -1)[:, 0].isnan().tolist() == [True, True, True, True, False]


def test_far_below_the_best_is_still_exact(figures):
    logits = torch.full((1, 300), -60.0)
    logits[0, 3] = 0.0
    check(figures, logits, torch.tensor([299]))
    logits[0, 200:] = -85.0
    check(figures, logits, torch.tensor([299]))


def test_equal_distributions_tie_whatever_the_order_of_their_tokens(figures):
    logits = draw(1, 300)
    rows = torch.cat(
        [logits[:, torch.randperm(300, generator=torch.Generator().manual_seed(seed))] for seed in range(5)]
    )
    for figure in figures(rows.argmax(-1), rows):
        assert torch.equal(figure, figure[:1].expand_as(figure))


def test_a_row_says_the_same_alone_and_strides_do_not_matter(figures):
    whole = draw(3, 150, 2)
    rows = whole.mT
    tokens = rows.argmax(-1)
    alone = figures(tokens[2, 1], rows[2, 1])
    for figure, one in zip(figures(tokens, rows), alone, strict=True):
        assert torch.equal(figure[2, 1], one)
    check(figures, draw(2, 400)[:, 5:200])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernels_give_the_dtype_of_the_logits_unless_another_is_asked_for(interpreted, figures, dtype):
    logits, tokens = draw(2, 50).to(dtype), torch.tensor([3, 4])
    found = [
        interpreted(kernels.probability_of, tokens, logits),
        interpreted(kernels.entropy, logits),
        interpreted(kernels.top2_probabilities, logits),
    ]
    for figure, wide in zip(found, figures(tokens, logits), strict=True):
        assert figure.dtype == dtype
        torch.testing.assert_close(figure, wide.to(dtype))


@pytest.mark.parametrize("logits", [draw(2, 5).double(), torch.empty(0, 5), torch.empty(2, 0, 5)])
def test_the_kernels_leave_double_precision_and_empty_tensors_to_the_plain_functions(logits):
    tokens = torch.zeros(logits.shape[:-1], dtype=torch.long)
    for found in (
        kernels.probability_of(tokens, logits),
        kernels.entropy(logits),
        kernels.top2_probabilities(logits),
        kernels.best_token(logits),
    ):
        assert found is NotImplemented


def test_the_plain_functions_give_the_dtype_that_is_asked_for():
    logits, tokens = draw(2, 50).bfloat16(), torch.tensor([3, 4])
    for figure, wide in (
        (probability_of(tokens, logits, dtype=torch.float32), probability_of(tokens, logits.float())),
        (entropy(logits, dtype=torch.float32), entropy(logits.float())),
        (top2_probabilities(logits, dtype=torch.float32), top2_probabilities(logits.float())),
    ):
        assert torch.equal(figure, wide)
