"""`rules/kernels/commit.py` in Triton's interpreter, against the plain rule in float64."""

import math
import os
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch

from unmask.rules import mean_field_commit
from unmask.rules.commit import commit_open as plain_commit_open
from unmask.rules.mean_field import Parameters

pytest.importorskip("triton")

from unmask.rules.kernels.commit import commit_open, padded_size

INF, NAN = math.inf, math.nan
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# So small that a few hundred tokens are several pieces, chunks and steps.
SMALL = {"piece": 128, "steps": 2, "last": 64}


@pytest.fixture
def kernels(interpreted):
    """`commit_open` by kernels, in the process that interprets."""

    def decide(logits, masked, *, open_at_most=None, **options):
        sizes = {name: options.pop(name) for name in SMALL if name in options}
        return interpreted(commit_open, logits, masked, Parameters(**options), open_at_most=open_at_most, **sizes)

    return decide


def draw(*shape, seed=0, spread=3.0):
    return spread * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def all_open(logits):
    return torch.ones(logits.shape[:2], dtype=torch.bool)


def check(kernels, logits, masked=None, *, sizes=SMALL, **options):
    """Decide with both, compare all that they say, and return what the kernels said."""
    masked = all_open(logits) if masked is None else masked
    decided = kernels(logits, masked, **sizes, **options)
    options.pop("open_at_most", None)
    expected = mean_field_commit(logits.double(), masked, **options)
    torch.testing.assert_close(decided.overlap.double(), expected.overlap, rtol=0, atol=1e-5)
    torch.testing.assert_close(decided.margin.double(), expected.margin, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(decided.score.double(), expected.score, rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(decided.intensity.double(), expected.intensity, rtol=0, atol=1e-5)
    assert decided.commit.tolist() == expected.commit.tolist()
    return decided


SHAPES = [(1, 1, 1), (1, 2, 2), (1, 5, 7), (2, 8, 64), (1, 10, 300)]


@pytest.mark.parametrize(
    ("b", "k", "v", "dtype"),
    [(*shape, torch.float32) for shape in SHAPES] + [(2, 5, 70, dtype) for dtype in DTYPES[1:]],
)
def test_random_logits_of_every_shape(kernels, b, k, v, dtype):
    logits = draw(b, k, v, seed=k + v).to(dtype)
    masked = torch.rand(b, k, generator=torch.Generator().manual_seed(v)) < 0.8
    check(kernels, logits, masked)


def test_more_positions_than_a_tile_holds(kernels):
    check(kernels, draw(1, 33, 70))


def test_the_tiles_of_the_device(kernels):
    check(kernels, draw(1, 4, 600).bfloat16(), sizes={})


@pytest.mark.parametrize(("threshold", "fallback"), [(0.6, "field"), (1.0, "field"), (1.0, "confidence")])
@pytest.mark.parametrize(("iterations", "normalize"), [(0, "max"), (1, "none"), (2, "none"), (5, "max")])
def test_every_setting(kernels, threshold, fallback, iterations, normalize):
    """At 1.0 every row needs the fallback."""
    logits = torch.cat([draw(1, 4, 20, seed=iterations, spread=spread) for spread in (0.3, 3.0)])
    check(kernels, logits, threshold=threshold, fallback=fallback, iterations=iterations, normalize=normalize)


def rounded():
    return draw(1, 9, 40, spread=2.0).round()


def identical():
    return draw(1, 1, 100).expand(1, 9, 100).contiguous()


def twins_far_apart():
    logits = draw(1, 10, 100)
    logits[:, 9] = logits[:, 1]
    logits[:, 5] = logits[:, 1]
    return logits


def impossible_tokens():
    logits = draw(1, 8, 200)
    logits[torch.rand(1, 8, 200, generator=torch.Generator().manual_seed(5)) < 0.7] = -INF
    return logits


def one_possible_token_each():
    logits = torch.full((1, 6, 200), -INF)
    logits[0, torch.arange(6), 31 * torch.arange(6)] = 0.0
    logits[0, 4, 0] = 2.0
    return logits


def nearly_disjoint():
    logits = torch.full((1, 6, 240), -22.0) + draw(1, 6, 240, spread=0.5)
    logits[0, torch.arange(6), 40 * torch.arange(6)] = torch.linspace(1.0, 3.0, 6)
    return logits


def strangers():
    logits = torch.full((1, 5, 100), -60.0)
    logits[0, torch.arange(5), 20 * torch.arange(5)] = 0.0
    return logits


def huge():
    logits = draw(1, 7, 130)
    logits[0, ::2] += 1e4
    logits[0, 1::2] -= 1e4
    logits[0, :, 0] = -1e4
    return logits


def tied_far_apart():
    logits = draw(1, 5, 300)
    logits[0, :, [7, 280]] = 12.0
    logits[0, 3, 280] = 11.0
    return logits


def flat():
    return torch.zeros(1, 7, 130)


ADVERSARIAL = [
    rounded,
    identical,
    twins_far_apart,
    impossible_tokens,
    one_possible_token_each,
    nearly_disjoint,
    strangers,
    huge,
    tied_far_apart,
    flat,
]


@pytest.mark.parametrize("make", ADVERSARIAL, ids=lambda make: make.__name__)
def test_adversarial_logits(kernels, make):
    check(kernels, make(), threshold=0.95)


@pytest.mark.parametrize("make", [impossible_tokens, nearly_disjoint, huge], ids=lambda make: make.__name__)
def test_adversarial_logits_in_half_precision(kernels, make):
    check(kernels, make().bfloat16(), threshold=0.95)


def test_the_smallest_overlaps_are_right_to_five_digits(kernels):
    logits = nearly_disjoint()
    decided = kernels(logits, all_open(logits), **SMALL, normalize="none").overlap.double()
    expected = mean_field_commit(logits.double(), all_open(logits), normalize="none").overlap
    assert 0.0 < expected.max() < 1e-6
    torch.testing.assert_close(decided, expected, rtol=1e-5, atol=0)


def test_identical_positions_tie_to_the_bit_wherever_they_stand(kernels):
    logits, twins = draw(2, 13, 50, spread=1.0), [0, 2, 5, 6, 12]
    logits[:, twins] = logits[:, :1].clone()
    score = kernels(logits, all_open(logits), **SMALL).score[:, twins]
    assert torch.equal(score, score[:, :1].expand_as(score))


def test_closed_positions_are_not_read(kernels):
    logits = draw(3, 11, 90)
    masked = torch.zeros(3, 11, dtype=torch.bool)
    masked[0, [1, 4, 5, 10]] = True
    masked[1, 7] = True
    logits[~masked] = NAN
    decided = kernels(logits, masked, **SMALL)
    expected = mean_field_commit(logits.double(), masked)
    assert decided.commit.tolist() == expected.commit.tolist()
    assert decided.commit.sum(-1).tolist()[1:] == [1, 0]
    assert (decided.score[~masked] == -INF).all()
    assert not decided.overlap[~(masked[:, :, None] & masked[:, None, :])].any()
    torch.testing.assert_close(decided.overlap.double(), expected.overlap, rtol=0, atol=1e-5)


def test_a_row_says_the_same_bit_for_bit_alone_in_a_batch_and_between_closed_positions(kernels):
    alone = draw(1, 6, 200)
    logits, masked = draw(2, 14, 200, seed=1), torch.rand(2, 14, generator=torch.Generator().manual_seed(2)) < 0.6
    columns = torch.tensor([0, 3, 4, 8, 11, 13])
    logits[1, columns], masked[1] = alone[0], torch.zeros(14, dtype=torch.bool).index_fill(0, columns, True)
    one = kernels(alone, all_open(alone), **SMALL)
    among = kernels(logits, masked, **SMALL)
    for name in ("commit", "score", "intensity", "margin"):
        assert torch.equal(getattr(one, name)[0], getattr(among, name)[1, columns])
    assert torch.equal(one.overlap[0], among.overlap[1][columns][:, columns])


def test_the_same_twice(kernels):
    logits = draw(1, 9, 70).bfloat16()
    one, other = (kernels(logits, all_open(logits), **SMALL) for _ in range(2))
    assert all(torch.equal(getattr(one, name), getattr(other, name)) for name in ("commit", "score", "overlap"))


@pytest.mark.parametrize("open_at_most", [0, 3, 5, 11, 20])
def test_the_most_that_can_be_open_changes_nothing(kernels, open_at_most):
    logits, masked = draw(2, 11, 90), torch.zeros(2, 11, dtype=torch.bool)
    if open_at_most:
        masked[0, [2, 6, 9]] = True
        masked[1, 8] = True
    check(kernels, logits, masked, open_at_most=open_at_most)


def test_few_open_positions_among_many(kernels):
    logits, masked = draw(1, 70, 20), torch.zeros(1, 70, dtype=torch.bool)
    masked[0, [3, 40, 64, 69]] = True
    check(kernels, logits, masked, open_at_most=5)


@pytest.mark.parametrize(("k", "sizes"), [(1, [1]), (20, [32]), (64, [64]), (128, [32, 128]), (300, [32, 128, 512])])
def test_fewer_open_positions_hardly_ever_need_another_kernel(k, sizes):
    found = {m: padded_size(m, k) for m in range(1, k + 1)}
    assert sorted(set(found.values())) == sizes
    assert all(m <= size for m, size in found.items())


def test_positions_beyond_the_most_that_can_be_open_count_as_closed(kernels):
    logits, masked = draw(1, 9, 40), torch.arange(9)[None] > 2
    first = masked & (torch.arange(9) < 7)
    some, fewer = (kernels(logits, these, **SMALL, open_at_most=4) for these in (masked, first))
    assert all(torch.equal(getattr(some, name), getattr(fewer, name)) for name in ("commit", "score", "overlap"))


def test_any_strides_and_nothing_is_written_to(kernels):
    whole = draw(5, 90, 14)
    logits = whole.mT[::2, 3:12]
    masked = (torch.arange(27).reshape(9, 3) % 4 != 0).mT
    before = whole.clone(), masked.clone()
    check(kernels, logits, masked)
    check(kernels, draw(3, 12, 90)[:, 3:, :77], masked)
    assert torch.equal(whole, before[0])
    assert torch.equal(masked, before[1])


@pytest.mark.usefixtures("needs_triton")
@pytest.mark.slow
def test_they_compile_for_a_device_that_is_not_there(tmp_path):
    script = Path(__file__).parents[1] / "compile_kernels.py"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRITON_")}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 56


@pytest.mark.parametrize(
    ("logits", "changed"),
    [
        (draw(1, 4, 8), {"interaction": "uniform"}),
        (draw(1, 4, 8), {"interaction": "none"}),
        (draw(1, 4, 8), {"vocabulary": 4}),
        (draw(1, 4, 8).double(), {}),
        (torch.empty(0, 4, 8), {}),
        (torch.empty(1, 0, 8), {}),
        (torch.zeros(1, 5000, 1), {}),
        (torch.zeros(1, 1, 1).expand(70_000, 1, 1), {}),
    ],
)
def test_the_kernels_leave_to_the_plain_rule_what_they_cannot_decide(logits, changed):
    masked, rule = all_open(logits), Parameters(**changed)
    assert commit_open(logits, masked, rule, open_at_most=None) is NotImplemented
    if logits.shape[1] < 5000:  # the plain rule needs memory for every two positions
        assert plain_commit_open(logits, masked, rule, open_at_most=None).commit.shape == masked.shape


def test_the_kernels_answer_as_the_plain_rule_does(kernels):
    logits = draw(1, 4, 8)
    found = kernels(logits, all_open(logits), open_at_most=3)
    expected = plain_commit_open(logits, all_open(logits), Parameters(), open_at_most=3)
    for field in fields(expected):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        assert (one is None) == (other is None), field.name
        assert one is None or (one.shape, one.dtype) == (other.shape, other.dtype), field.name
