"""`rules/kernels/marginals.py` on a CUDA device, at the sizes of real models, against the plain functions."""

import math

import pytest
import torch

from unmask.device import kernels_on
from unmask.rules import best_token, entropy, probability_of, top2_probabilities

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
V = 126_464
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@pytest.fixture(autouse=True)
def kernels():
    pytest.importorskip("triton")


def draw(*shape, seed=0):
    return 3.0 * torch.randn(*shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda")


def all_three(tokens, logits, **options):
    return [
        probability_of(tokens, logits, **options),
        entropy(logits, **options),
        top2_probabilities(logits, **options),
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 32, V), (8, 20, V), (3, 1), (2, 5, 50_257), (1, 7)])
def test_the_figures_of_the_plain_functions(dtype, shape):
    logits = draw(*shape).to(dtype)
    assert kernels_on(logits.device)
    for tokens in (logits.argmax(-1), torch.zeros(shape[:-1], dtype=torch.long, device="cuda")):
        expected = all_three(tokens, logits.double())
        for figure, exact in zip(all_three(tokens, logits, dtype=torch.float32), expected, strict=True):
            torch.testing.assert_close(figure.double(), exact, rtol=1e-6, atol=1e-37)
        for figure, exact in zip(all_three(tokens, logits), expected, strict=True):
            assert figure.dtype == dtype
            torch.testing.assert_close(figure, exact.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_best_token_is_the_first_of_the_largest(dtype):
    logits = draw(8, 32, V).round().to(dtype)
    assert torch.equal(best_token(logits), logits.argmax(-1))
    logits[3, 5, 77_777], logits[4, 6] = math.nan, -math.inf
    assert torch.equal(best_token(logits), logits.argmax(-1))


def test_impossible_tokens_and_rows_without_a_figure():
    logits = draw(6, 20_000)
    logits[0, ::2] = -math.inf
    logits[1] = -math.inf
    logits[1, 15_000] = -3.0
    logits[2] = -math.inf
    logits[3, 12_345] = math.nan
    logits[4, 12_345] = math.inf
    tokens = torch.tensor([2, 15_000, 0, 0, 0, 9], device="cuda")
    for figure, exact in zip(all_three(tokens, logits), all_three(tokens, logits.double()), strict=True):
        torch.testing.assert_close(figure.double(), exact, rtol=1e-6, atol=1e-37, equal_nan=True)
    assert probability_of(tokens, logits)[:2].tolist() == [0.0, 1.0]
    assert entropy(logits)[1] == 0.0


def test_equal_distributions_tie_whatever_the_order_of_their_tokens_and_the_batch():
    logits = draw(1, V)
    orders = [torch.randperm(V, generator=torch.Generator().manual_seed(seed)).cuda() for seed in range(4)]
    rows = torch.cat([logits[:, order] for order in orders])
    for figure, one in zip(all_three(rows.argmax(-1), rows), all_three(logits.argmax(-1), logits), strict=True):
        assert torch.equal(figure, one.expand_as(figure))


def test_a_graph_replays_them_on_other_logits():
    logits, tokens = draw(2, 20, V).bfloat16(), torch.zeros(2, 20, dtype=torch.long, device="cuda")
    all_three(tokens, logits)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = all_three(tokens, logits)
    logits.copy_(draw(2, 20, V, seed=1))
    tokens.copy_(logits.argmax(-1))
    graph.replay()
    assert all(map(torch.equal, captured, all_three(tokens, logits)))


def test_the_functions_are_served_by_the_kernels_unless_these_are_turned_off(monkeypatch):
    from unmask.rules.kernels import marginals

    logits, tokens = draw(2, 20, V), torch.zeros(2, 20, dtype=torch.long, device="cuda")
    by_kernels = [marginals.probability_of(tokens, logits), marginals.entropy(logits)]
    assert all(map(torch.equal, all_three(tokens, logits), by_kernels))
    monkeypatch.setenv("UNMASK_KERNELS", "0")
    plain = all_three(tokens, logits)
    assert not all(map(torch.equal, plain, by_kernels))  # rounded in another way
    for figure, other in zip(plain, by_kernels, strict=False):
        torch.testing.assert_close(figure, other, rtol=3e-6, atol=1e-37)
