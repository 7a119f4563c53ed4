import inspect
import math

import pytest
import torch

from unmask.errors import UnmaskError
from unmask.rules import mean_field_commit, mean_field_intensity

INF, NAN = math.inf, math.nan


def decide(rows, **options):
    """The rule on one row of logits, all open."""
    logits = torch.tensor([rows], dtype=options.pop("dtype", torch.float32))
    return mean_field_commit(logits, torch.ones(logits.shape[:2], dtype=torch.bool), **options)


def committed(decided):
    return decided.commit[0].nonzero().flatten().tolist()


def worked_example():
    """Eight positions over 20 tokens: most of the probability on one token of its own, the rest spread evenly."""
    rows = torch.empty(8, 20, dtype=torch.float64)
    for row, (position, p) in enumerate(
        zip(range(4, 12), [0.97, 0.86, 0.80, 0.78, 0.72, 0.93, 0.55, 0.40], strict=True)
    ):
        rows[row] = (1 - p) / 19
        rows[row, (3 * position + 1) % 20] = p
    return rows.log()


FOUR_ROWS = [[4, 0, 0, 0, 0], [4, 1, 0, 0, 0], [0, 5, 0, 0, 0], [0, 0, 1, 0.5, 0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("threshold", "iterations", "positions"),
    [
        (0.85, 0, [4, 5, 6, 7, 8, 9, 10, 11]),
        (0.85, 1, [4, 5, 9]),
        (0.85, 2, [4, 5, 6, 7, 8, 9]),
        (0.85, 3, [4, 5, 6, 7, 9]),
        (0.95, 1, [4, 9]),
        (0.95, 2, [4, 5, 9]),
    ],
)
def test_commits_of_the_worked_example(dtype, threshold, iterations, positions):
    logits = worked_example().to(dtype)[None]
    masked = torch.ones(1, 8, dtype=torch.bool)
    decided = mean_field_commit(logits, masked, threshold=threshold, iterations=iterations)
    assert [4 + index for index in committed(decided)] == positions


def test_figures_of_the_worked_example():
    decided = mean_field_commit(worked_example()[None], torch.ones(1, 8, dtype=torch.bool))
    margin = [6.4205, 4.7597, 4.3307, 4.2101, 3.8889, 5.5311, 3.1451, 2.5390]
    overlap = [0, 0.1454, 0.1724, 0.1804, 0.2028, 0.1049, 0.2564, 0.2964]
    intensity = [0.9965, 0.9657, 0.9349, 0.9217, 0.8712, 0.9886, 0.6252, 0.3548]
    assert decided.margin[0].tolist() == pytest.approx(margin, abs=6e-5)
    assert decided.overlap[0, 0].tolist() == pytest.approx(overlap, abs=6e-5)
    assert decided.intensity[0].tolist() == pytest.approx(intensity, abs=6e-5)
    raw = mean_field_commit(worked_example()[None], torch.ones(1, 8, dtype=torch.bool), normalize="none")
    assert raw.overlap.max().item() == pytest.approx(0.644406, abs=6e-7)


def test_figures_of_four_rows_of_small_logits():
    decided = decide(FOUR_ROWS, dtype=torch.float64, normalize="none")
    raw = [0.995134, 0.120611, 0.465381, 0.191078, 0.494592, 0.381100]
    assert decided.overlap[0][torch.triu_indices(4, 4, 1).unbind()].tolist() == pytest.approx(raw, abs=6e-7)
    decided = decide(FOUR_ROWS, dtype=torch.float64, diagnostics=True)
    assert decided.margin[0].tolist() == [4, 3, 5, 0.5]
    assert decided.history[1, 0].tolist() == pytest.approx([0.933139, 0.820228, 0.988566, 0.307234], abs=6e-7)
    assert decided.history[2, 0].tolist() == pytest.approx([0.948645, 0.848688, 0.990163, 0.326813], abs=6e-7)
    assert committed(decided) == [0, 2]
    assert decide([[6, 0, 0, 0], [0, 2.5, 0, 0]], normalize="none").overlap[0, 0, 1].item() == pytest.approx(
        0.205274, abs=6e-7
    )


def test_two_positions_always_oppose_each_other_fully():
    decided = decide([[6, 0, 0, 0], [0, 2.5, 0, 0]], dtype=torch.float64)
    assert decided.overlap[0].tolist() == [[0, 1], [1, 0]]
    assert decided.intensity[0].tolist() == pytest.approx([0.994415, 0.818498], abs=6e-7)


def test_three_identical_positions_hold_each_other_back():
    decided = decide([[3.0, 0, 0]] * 3, dtype=torch.float64, diagnostics=True)
    assert decided.history[:, 0, 0].tolist() == pytest.approx([0.9526, 0.7493, 0.8178], abs=6e-5)


@pytest.mark.parametrize("copies", [3, 17, 32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_identical_positions_compete_for_one_commit_and_the_first_wins(copies, dtype):
    generator = torch.Generator().manual_seed(copies)
    rows = torch.randn(5, 300, generator=generator).tolist()
    mixed = [rows[0], *[rows[1]] * copies, *rows[2:]]
    for iterations in (1, 2, 3):
        decided = decide(mixed, threshold=1.0, iterations=iterations, dtype=dtype)
        score = decided.score[0, 1 : 1 + copies]
        assert (score == score[0]).all()
    assert committed(decide([rows[1]] * copies, threshold=1.0, dtype=dtype)) == [0]


def test_a_long_run_of_sure_end_of_text_is_committed_at_once():
    assert committed(decide([[10.0, *[0.0] * 50]] * 20)) == list(range(20))
    assert committed(decide([[10.0, *[0.0] * 50]] * 20, iterations=1)) == [0]


def test_one_open_position_is_committed_in_any_case():
    for row in ([5.0, 0.0], [0.0, 0.0]):
        decided = decide([row], threshold=0.99)
        assert committed(decided) == [0]
        assert decided.overlap.tolist() == [[[0.0]]]
        assert decided.intensity.item() == pytest.approx(1 / (1 + math.exp(-row[0])))


@pytest.mark.parametrize("k", [0, 3])
@pytest.mark.parametrize("validate", [True, False])
def test_nothing_is_committed_where_nothing_is_open(k, validate):
    masked = torch.zeros(2, k, dtype=torch.bool)
    decided = mean_field_commit(torch.full((2, k, 5), NAN), masked, validate=validate, diagnostics=True)
    assert decided.commit.shape == (2, k)
    assert not decided.commit.any()
    assert (decided.score == -INF).all()
    assert decided.elbo.tolist() == [[0, 0]] * 3


def test_positions_that_share_no_token_do_not_oppose_each_other():
    decided = decide([[2.0, 0, -INF, -INF, -INF, -INF], [-INF, -INF, 2, 0, -INF, -INF], [-INF] * 4 + [1, 0]])
    assert not decided.overlap.any()
    assert decided.intensity[0].tolist() == pytest.approx([0.8808, 0.8808, 0.7311], abs=6e-5)


def test_a_position_with_one_possible_token_is_certain():
    decided = decide([[0.0, -INF, -INF], [1, 0.9, 0], [-INF, 7, -INF]], threshold=1.0, diagnostics=True)
    assert committed(decided) == [0, 2]
    assert decided.margin[0, 0] == decided.score[0, 0] == INF
    assert decided.intensity[0, 0] == 1
    assert decided.elbo.isfinite().all()


def test_an_infinite_margin_outranks_any_finite_one():
    decided = decide([[90.0, 0.0], [0.0, -INF], [0.0, -INF]])
    assert decided.score[0].argsort(descending=True, stable=True).tolist() == [1, 2, 0]


def test_a_vocabulary_of_one_token_commits_everything():
    assert committed(decide([[0.0], [3.0]])) == [0, 1]


def test_the_threshold_itself_is_enough():
    intensity = decide([[2.0, 0.0], [0.0, 1.0]], iterations=0).intensity[0]
    assert committed(decide([[2.0, 0.0], [0.0, 1.0]], iterations=0, threshold=intensity[0].item())) == [0]


def test_without_a_commit_the_fallback_takes_the_largest_field_or_the_most_confident():
    # The second position has the larger margin, the first the larger probability.
    rows = [[1.0, 0.5, -INF, -INF, -INF, -INF], [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]]
    assert committed(decide(rows, threshold=0.99)) == [1]
    assert committed(decide(rows, threshold=0.99, fallback="confidence")) == [0]
    assert committed(decide([rows[1], *rows], threshold=0.99, fallback="confidence")) == [1]
    assert committed(decide([rows[1]] * 3, threshold=0.99, fallback="confidence")) == [0]


def test_without_interaction_a_commit_needs_its_own_margin_only():
    decided = decide(FOUR_ROWS, interaction="none", iterations=5)
    assert torch.equal(decided.intensity, decide(FOUR_ROWS, iterations=0).intensity)
    assert not decided.overlap.any()
    assert committed(decided) == [0, 1, 2]


def test_uniform_interaction_opposes_every_two_positions_by_its_weight():
    decided = decide(FOUR_ROWS, interaction="uniform", uniform_weight=0.3, iterations=1)
    assert torch.equal(decided.overlap[0], 0.3 * (1 - torch.eye(4)))
    q = torch.tensor(decided.margin[0].tolist()).sigmoid()
    torch.testing.assert_close(decided.score[0], decided.margin[0] - 0.3 * (q.sum() - q))


def test_intensity_is_that_of_the_whole_rule():
    decided = decide(FOUR_ROWS, iterations=3)
    assert torch.equal(mean_field_intensity(decided.margin, decided.overlap, 3), decided.intensity)
    assert torch.equal(
        mean_field_intensity(decided.margin, decided.overlap, 0),
        mean_field_intensity(decided.margin, torch.zeros_like(decided.overlap)),
    )


def test_diagnostics_hold_the_bound_that_is_maximised():
    decided = decide(FOUR_ROWS, dtype=torch.float64, iterations=2, diagnostics=True)
    assert decided.history.shape == (3, 1, 4)
    assert torch.equal(decided.history[-1], decided.intensity)
    for q, bound in zip(decided.history[:, 0].tolist(), decided.elbo[:, 0].tolist(), strict=True):
        expected = sum(c * x for c, x in zip(decided.margin[0].tolist(), q, strict=True))
        expected -= sum(x * math.log(x) + (1 - x) * math.log(1 - x) for x in q)
        expected -= sum(decided.overlap[0, i, j].item() * q[i] * q[j] for i in range(4) for j in range(i))
        assert bound == pytest.approx(expected)
    plain = decide(FOUR_ROWS)
    assert plain.history is None
    assert plain.elbo is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_judged_in_float32(dtype):
    logits = (5 * torch.randn(3, 6, 80, generator=torch.Generator().manual_seed(0))).to(dtype)
    masked = torch.ones(3, 6, dtype=torch.bool)
    half, full = mean_field_commit(logits, masked), mean_field_commit(logits.float(), masked)
    for name in ("commit", "score", "intensity", "margin", "overlap"):
        assert torch.equal(getattr(half, name), getattr(full, name))


def test_the_logits_and_the_mask_are_left_alone():
    logits = torch.randn(2, 5, 9, generator=torch.Generator().manual_seed(1)).requires_grad_()
    masked = torch.tensor([[True, False, True, True, False]] * 2)
    before = logits.detach().clone(), masked.clone()
    decided = mean_field_commit(logits, masked, fallback="confidence", diagnostics=True)
    assert torch.equal(logits, before[0])
    assert torch.equal(masked, before[1])
    assert not decided.score.requires_grad


@pytest.mark.parametrize(("row", "largest"), [([0.0, NAN], "nan"), ([-INF, -INF], "-inf"), ([0.0, INF], "inf")])
def test_an_open_row_that_is_no_prediction_is_refused_by_name(row, largest):
    logits = torch.zeros(2, 4, 2)
    logits[1, 3] = torch.tensor(row)
    logits[0, 1] = NAN
    masked = torch.tensor([[True, False, True, True], [False, False, True, True]])
    with pytest.raises(UnmaskError, match=f"row 1, position 3 are no prediction: the largest is {largest}$"):
        mean_field_commit(logits, masked)
    masked[1, 3] = False
    assert mean_field_commit(logits, masked).commit.any(-1).all()


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"threshold": 0.0}, r"threshold must be a number in \(0, 1\], got 0.0"),
        ({"threshold": 1.01}, r"threshold must be a number in \(0, 1\], got 1.01"),
        ({"threshold": NAN}, "threshold must be a number in"),
        ({"iterations": -1}, "iterations must be a whole number of at least 0, got -1"),
        ({"iterations": True}, "iterations must be a whole number"),
        ({"uniform_weight": -0.1}, "uniform_weight must be a number of at least 0, got -0.1"),
        ({"uniform_weight": INF}, "uniform_weight must be a number of at least 0, got inf"),
        ({"vocabulary": 0}, "vocabulary must be a whole number of at least 1"),
        ({"interaction": "jds"}, "unknown interaction 'jds'; did you mean 'jsd'"),
        ({"normalize": "mx"}, "unknown normalize 'mx'; did you mean 'max'"),
        ({"fallback": "fields"}, "unknown fallback 'fields'; did you mean 'field'"),
    ],
)
def test_a_parameter_out_of_range_is_refused_in_one_line(options, complaint):
    with pytest.raises(UnmaskError, match=complaint) as error:
        decide(FOUR_ROWS, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("logits", "masked", "complaint"),
    [
        (torch.zeros(3, 4), torch.ones(3, 4, dtype=torch.bool), "logits must be floating point of shape"),
        (torch.zeros(1, 3, 4).long(), torch.ones(1, 3, dtype=torch.bool), r"got torch.int64 \(1, 3, 4\)"),
        (torch.zeros(1, 3, 4), torch.ones(1, 4, dtype=torch.bool), r"masked must be bool of shape \(1, 3\)"),
        (torch.zeros(1, 3, 4), torch.ones(1, 3), r"got torch.float32 \(1, 3\)"),
    ],
)
def test_tensors_of_the_wrong_kind_are_refused_in_one_line(logits, masked, complaint):
    unchecked = inspect.unwrap(mean_field_commit)  # without the shape checks that only tests have
    with pytest.raises(UnmaskError, match=complaint):
        unchecked(logits, masked)


def test_knowing_how_many_are_open_changes_nothing_but_the_cost():
    logits = torch.randn(3, 9, 50, generator=torch.Generator().manual_seed(1)) * 3
    masked = torch.tensor([[1, 0, 1, 1, 0, 0, 0, 0, 1], [0] * 9, [0, 1, 0, 0, 0, 0, 0, 0, 0]], dtype=torch.bool)
    plain = mean_field_commit(logits, masked, validate=False)
    for at_most in (4, 6, 9, 20):
        packed = mean_field_commit(logits, masked, validate=False, open_at_most=at_most)
        for name in ("commit", "score", "intensity", "margin", "overlap"):
            assert torch.equal(getattr(packed, name), getattr(plain, name)), name


def test_fewer_open_positions_than_there_are_is_refused():
    masked = torch.tensor([[True, True, False], [True, True, True]])
    with pytest.raises(UnmaskError, match="open_at_most is 2, but a row has 3 open positions"):
        mean_field_commit(torch.randn(2, 3, 7), masked, open_at_most=2)
    assert mean_field_commit(torch.randn(2, 3, 7), masked, open_at_most=3).commit.shape == (2, 3)
