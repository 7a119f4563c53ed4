"""`rules/kernels/commit.py` on a CUDA device, at the sizes of real models, against the plain rule."""

import math

import pytest
import torch
from cuda_inputs import never_waiting

from unmask import policies
from unmask.device import kernels_on
from unmask.rules import mean_field_commit
from unmask.rules.commit import commit_open
from unmask.rules.mean_field import Parameters
from unmask.types import StepView

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
LLADA, DREAM = 126_464, 152_064
FIELDS = ("commit", "score", "intensity", "margin", "overlap")


@pytest.fixture
def kernels():
    """The rule, by the kernels."""
    pytest.importorskip("triton")

    def decide(logits, masked, *, open_at_most=None, **options):
        assert kernels_on(logits.device)
        return commit_open(logits, masked, Parameters(**options), open_at_most=open_at_most)

    return decide


def draw(b, m, v, *, dtype=torch.bfloat16, seed=0):
    """Positions that are sure, torn between a few tokens, or without a clue; some want the same token."""
    generator = torch.Generator("cuda").manual_seed(seed)
    logits = 2.0 * torch.randn(b, m, v, generator=generator, device="cuda")
    for candidate in range(3):
        token = torch.randint(2 * m, (b, m, 1), generator=generator, device="cuda")
        height = (18.0 - 5.0 * candidate) * torch.rand(b, m, 1, generator=generator, device="cuda")
        logits.scatter_add_(-1, token, height)
    return logits.to(dtype)


def some_open(b, k, *, seed=0):
    masked = torch.rand(b, k, generator=torch.Generator().manual_seed(seed)) < 0.7
    masked[:, 0] = True
    return masked.cuda()


def plain(logits, masked, **options):
    """One row at a time in float64, which no kernel takes."""
    rows = [
        mean_field_commit(row.double()[None], is_open[None], validate=False, **options)
        for row, is_open in zip(logits, masked, strict=True)
    ]
    return {name: torch.cat([getattr(row, name) for row in rows]) for name in FIELDS}


def check(decided, expected):
    torch.testing.assert_close(decided.overlap.double(), expected["overlap"], rtol=0, atol=1e-5)
    torch.testing.assert_close(decided.margin.double(), expected["margin"], rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(decided.score.double(), expected["score"], rtol=1e-6, atol=1e-4)
    torch.testing.assert_close(decided.intensity.double(), expected["intensity"], rtol=0, atol=3e-5)
    assert torch.equal(decided.commit, expected["commit"])


def same(one, other):
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in FIELDS)


@pytest.mark.parametrize("v", [LLADA, DREAM])
@pytest.mark.parametrize("m", [20, 32, 64, 128])
@pytest.mark.parametrize("b", [1, 8])
def test_real_sizes(kernels, b, m, v):
    logits, masked = draw(b, m, v), some_open(b, m) if b > 1 else torch.ones(b, m, dtype=torch.bool, device="cuda")
    logits[~masked] = math.nan
    check(kernels(logits, masked), plain(logits, masked))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize(("b", "k", "v"), [(1, 1, 1), (2, 5, 7), (3, 33, 600), (1, 20, 50_257), (2, 300, 1000)])
def test_every_dtype_and_odd_sizes(kernels, dtype, b, k, v):
    logits = (3.0 * torch.randn(b, k, v, generator=torch.Generator().manual_seed(v))).to("cuda", dtype)
    masked = some_open(b, k)
    for options in ({}, {"normalize": "none", "iterations": 1}, {"threshold": 1.0, "fallback": "confidence"}):
        check(kernels(logits, masked, **options), plain(logits, masked, **options))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_adversarial_logits(kernels, dtype):
    logits = draw(6, 20, 5000, dtype=torch.float32)
    logits[0, :] = logits[0, :1].clone()
    logits[1][torch.rand(20, 5000, generator=torch.Generator().manual_seed(1)).cuda() < 0.7] = -math.inf
    logits[2] = -math.inf
    logits[2, torch.arange(20), 31 * torch.arange(20)] = 0.0
    logits[3] = -22.0 + 0.2 * logits[3]
    logits[3, torch.arange(20), 200 * torch.arange(20)] = torch.linspace(1.0, 3.0, 20, device="cuda")
    logits[4, ::2] += 1e4
    logits[4, 1::2] -= 1e4
    logits[5] = 0.0
    masked = torch.ones(6, 20, dtype=torch.bool, device="cuda")
    check(kernels(logits.to(dtype), masked, threshold=0.95), plain(logits.to(dtype), masked, threshold=0.95))


@pytest.mark.parametrize(("shape", "row", "column"), [((2, 8), 17_000, 1), ((1, 18), 18_000, 1000)])
def test_offsets_beyond_31_bits(kernels, shape, row, column):
    """Of a row of the batch, whose stride is too long for 32 bits; and of a position, whose stride is not."""
    memory = torch.empty(18_000, LLADA, dtype=torch.bfloat16, device="cuda")
    logits = memory.as_strided((*shape, LLADA), (row * LLADA, column * LLADA, 1))
    logits.copy_(draw(*shape, LLADA))
    masked = torch.ones(shape, dtype=torch.bool, device="cuda")
    check(kernels(logits, masked), plain(logits, masked))


def test_identical_positions_tie_to_the_bit(kernels):
    logits = draw(1, 32, LLADA)
    logits[:, [1, 2, 9, 18, 31]] = logits[:, 5:6].clone()
    score = kernels(logits, torch.ones(1, 32, dtype=torch.bool, device="cuda")).score[0]
    assert len(set(score[[1, 2, 5, 9, 18, 31]].tolist())) == 1


def test_a_row_says_the_same_bit_for_bit_alone_in_a_batch_and_between_closed_positions(kernels):
    logits, masked = draw(8, 32, LLADA), some_open(8, 32)
    among = kernels(logits, masked)
    assert same(among, kernels(logits, masked))
    for row in range(8):
        columns = masked[row].nonzero().flatten()
        alone = kernels(logits[row : row + 1, columns], masked[row : row + 1, columns])
        assert torch.equal(alone.overlap[0], among.overlap[row][columns][:, columns])
        assert torch.equal(alone.score[0], among.score[row, columns])
        assert torch.equal(alone.commit[0], among.commit[row, columns])


@pytest.mark.parametrize("open_at_most", [None, 32])
def test_it_never_waits_for_the_device(kernels, open_at_most):
    logits, masked = draw(2, 40, 20_000), some_open(2, 40)
    masked[:, 32:] = False
    first = kernels(logits, masked, open_at_most=open_at_most)
    with never_waiting():
        again = kernels(logits, masked, open_at_most=open_at_most)
    assert same(first, again)
    check(first, plain(logits, masked))


def test_fewer_open_positions_compile_nothing_new(kernels):
    from unmask.rules.kernels.commit import commit_rows
    from unmask.rules.kernels.overlap import pair_overlaps, pair_sums, piece_figures, row_figures

    def compiled():
        launched = (piece_figures, row_figures, pair_sums, pair_overlaps, commit_rows)
        caches = [kernel.device_caches[torch.cuda.current_device()] for kernel in launched]
        return [len(cache[0]) for cache in caches]

    logits, masked = draw(1, 32, 10_000), torch.ones(1, 32, dtype=torch.bool, device="cuda")
    kernels(logits, masked, open_at_most=32)
    before = compiled()
    assert all(before)
    for open_at_most in (31, 16, 5, 1):
        masked[:, open_at_most:] = False
        check(kernels(logits, masked, open_at_most=open_at_most), plain(logits, masked))
    assert compiled() == before


@pytest.mark.parametrize("b", [1, 8])
def test_a_graph_replays_it_on_other_logits_and_masks(kernels, b):
    logits, masked = draw(b, 32, LLADA), some_open(b, 32)
    kernels(logits, masked)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = kernels(logits, masked)
    for seed in (1, 2, 3):
        logits.copy_(draw(b, 32, LLADA, seed=seed))
        masked.copy_(some_open(b, 32, seed=seed) if seed < 3 else torch.zeros_like(masked))
        graph.replay()
        assert same(captured, kernels(logits, masked))
    assert not captured.commit.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_checks_change_nothing_that_the_kernels_decide(dtype):
    logits, masked = draw(2, 9, 1023, dtype=dtype), some_open(2, 9)
    trusted, checked = (mean_field_commit(logits, masked, validate=validate) for validate in (False, True))
    for name in FIELDS:
        assert torch.equal(getattr(trusted, name), getattr(checked, name))
    closed = int((~masked[1]).nonzero()[0])
    logits[1, closed] = math.nan
    assert torch.equal(mean_field_commit(logits, masked).commit, trusted.commit)
    logits[1, 0, 5] = math.nan
    with pytest.raises(ValueError, match="row 1, position 0 are no prediction: the largest is nan"):
        mean_field_commit(logits, masked)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("v", [129, 1023])
@pytest.mark.parametrize("name", ["mean_field", "threshold", "entropy", "margin"])
def test_identical_positions_tie_whatever_the_vocabulary_and_the_dtype(name, v, dtype):
    masked = torch.ones(8, 7, dtype=torch.bool, device="cuda")
    policy = policies.get(name) if name in ("entropy", "margin") else policies.get(name, threshold=0.999)
    for seed in range(20):
        row = torch.randn(8, 1, v, generator=torch.Generator().manual_seed(seed)).to(dtype)
        view = StepView(logits=row.expand(8, 7, v).contiguous().cuda(), masked=masked)
        decided = policies.with_progress(policies.decide(policy, view, None)[0], masked)
        assert decided.sum(-1).tolist() == [1] * 8
        assert decided[:, 0].all()


@pytest.mark.parametrize("options", [{"vocabulary": 40}, {"interaction": "uniform"}])
def test_identical_positions_tie_where_the_plain_rule_decides(options):
    masked = torch.ones(8, 7, dtype=torch.bool, device="cuda")
    for seed in range(20):
        row = torch.randn(8, 1, 1023, generator=torch.Generator().manual_seed(seed))
        decided = mean_field_commit(row.expand(8, 7, 1023).contiguous().cuda(), masked, threshold=0.999, **options)
        assert decided.commit[:, 0].all()


def test_the_rule_is_decided_by_the_kernels_unless_they_are_turned_off(kernels, monkeypatch):
    from unmask.rules.kernels import commit

    logits, masked = draw(2, 9, 5000), some_open(2, 9)
    direct = commit.commit_open(logits, masked, Parameters(), open_at_most=None)
    assert same(kernels(logits, masked), direct)
    monkeypatch.setenv("UNMASK_KERNELS", "0")
    off = mean_field_commit(logits, masked, validate=False)
    assert not torch.equal(off.overlap, direct.overlap)  # another order of the same sums
    check(off, plain(logits, masked))


def test_diagnostics_are_those_of_the_plain_rule(kernels):
    logits, masked = draw(3, 9, 5000), some_open(3, 9)
    found = mean_field_commit(logits, masked, validate=False, diagnostics=True)
    expected = mean_field_commit(logits.double(), masked, validate=False, diagnostics=True)
    assert same(found, kernels(logits, masked))
    torch.testing.assert_close(found.history.double(), expected.history, rtol=0, atol=3e-5)
    torch.testing.assert_close(found.elbo.double(), expected.elbo, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(found.history[-1], found.intensity, rtol=0, atol=1e-6)
