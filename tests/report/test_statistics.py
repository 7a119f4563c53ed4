import math

import numpy as np
import pytest
from synthetic_runs import aup_of

from unmask.report.measured import Estimate, aup, estimate, holm, mcnemar, sums, wilson


def test_wilson_solves_its_own_equation():
    for successes, n in ((8, 10), (1, 30), (500, 1319), (163, 164)):
        for end in wilson(successes, n):
            distance = abs(successes / n - end) / math.sqrt(end * (1 - end) / n)
            assert distance == pytest.approx(1.95996398, abs=1e-6)


def test_wilson_at_the_ends():
    assert wilson(0, 5)[0] == 0.0
    assert wilson(5, 5)[1] == 1.0
    assert wilson(8, 10) == pytest.approx((0.4901625, 0.9433178))


def ratio_interval(numerator, denominator):
    above, below = sums(np.column_stack([numerator, denominator])).T
    return estimate(above / below).interval


def mean_interval(values):
    return ratio_interval(values, np.ones(len(values)))


def test_the_interval_of_a_mean_agrees_with_the_normal_one():
    values = np.random.default_rng(5).exponential(10.0, 2000)
    half = 1.96 * values.std() / math.sqrt(len(values))
    low, high = mean_interval(values)
    assert low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.1 * half)


def test_a_ratio_of_sums_is_not_a_mean_of_ratios():
    tokens, seconds = np.array([100.0, 1.0] * 50), np.array([10.0, 1.0] * 50)
    low, high = ratio_interval(tokens, seconds)
    assert 5.5 < low < 101 / 11 < high  # the mean of the ratios is 5.5
    constant = ratio_interval(3.0 * np.arange(1, 101), np.arange(1, 101))
    assert constant == pytest.approx((3.0, 3.0))


def test_two_tables_of_the_same_items_are_drawn_alike():
    # Items differ a thousandfold, but the second rule is always twice as fast on each of them.
    seconds = np.random.default_rng(0).lognormal(0, 2, 200)[:, None]
    ratio = estimate((sums(seconds) / sums(seconds / 2))[:, 0])
    assert ratio.value == 2.0
    assert ratio.interval == pytest.approx((2.0, 2.0))
    low, high = mean_interval(seconds[:, 0])
    assert high / low > 1.5


def test_resampling_is_the_same_every_time():
    table = np.random.default_rng(1).random((1000, 2))
    assert np.array_equal(sums(table), sums(table))
    assert sums(table)[0] == pytest.approx(table.sum(0))


def test_a_value_that_is_not_finite_is_no_estimate():
    assert estimate([np.nan, 1.0, 2.0]) is None
    assert estimate([1.0, np.nan, np.inf]) == Estimate(value=1.0)


def test_an_estimate_is_beyond_chance_where_its_interval_leaves_out_zero():
    assert Estimate(value=1.0, interval=(0.5, 2.0)).beyond_chance
    assert Estimate(value=-1.0, interval=(-2.0, -0.5)).beyond_chance
    assert Estimate(value=0.0, interval=(0.0, 0.0)).beyond_chance
    assert not Estimate(value=1.0, interval=(0.0, 2.0)).beyond_chance
    assert not Estimate(value=1.0).beyond_chance


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.09, 0.09, 0.5])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize(
    ("only_first", "only_second", "p"),
    [(0, 0, 1.0), (5, 0, 2 / 32), (0, 6, 2 / 64), (1, 9, 2 * 11 / 1024), (4, 4, 1.0), (3, 3, 1.0)],
)
def test_mcnemar_counts_coins(only_first, only_second, p):
    first = [True] * only_first + [False] * only_second + [True, False]
    second = [False] * only_first + [True] * only_second + [True, False]
    test = mcnemar(first, second)
    assert (test.only_this, test.only_baseline) == (only_first, only_second)
    assert test.p == pytest.approx(p)


def test_mcnemar_of_many_items_agrees_with_the_binomial_sum():
    n, fewer = 5000, 2400
    test = mcnemar([True] * fewer + [False] * (n - fewer), [False] * fewer + [True] * (n - fewer))
    assert test.p == pytest.approx(2 * sum(math.comb(n, k) for k in range(fewer + 1)) / 2**n, rel=1e-12)


def test_aup_of_the_examples_of_the_protocol():
    assert aup_of([(1, 72.55)], 72.55)[0] == pytest.approx(72.55)
    assert aup_of([(1, 74.79), (2.77, 74.68)], 74.98)[0] == pytest.approx(205.8, abs=0.05)


def test_aup_by_hand():
    def weight(y):
        return min(math.exp(-3 * (1 - y / 90)), 1)

    points = [(4, 84.0), (1, 85.0), (2, 90.0)]  # in any order
    by_hand = 85.0 + 0.5 * (90 * weight(90) + 85 * weight(85)) + 0.5 * 2 * (84 * weight(84) + 90 * weight(90))
    assert aup_of(points, 90) == (pytest.approx(by_hand), [])


def test_aup_leaves_out_points_more_than_five_below_the_slowest_and_says_which():
    kept = [(1, 80.0), (4, 75.0)]
    area, dropped = aup_of([(8, 20.0), *kept, (2, 74.99)], 80)
    assert dropped == [0, 3]
    assert area == pytest.approx(aup_of(kept, 80)[0])
    assert aup_of([(1, 0.0), (2, 0.0)], 0.0)[0] == 0.0


def test_the_interval_of_an_aup_holds_its_value():
    items = 400
    hard = np.random.default_rng(2).random(items)
    accuracy = 100 * sums(np.column_stack([hard < 0.9, hard < 0.88, hard < 0.95])) / items
    speed = np.broadcast_to([1.0, 4.0, 2.0], accuracy.shape)
    best = accuracy.max(1)
    found = estimate(aup(speed[:, :2], accuracy[:, :2], best)[0])
    assert found.value == pytest.approx(aup_of([(1.0, accuracy[0, 0]), (4.0, accuracy[0, 1])], accuracy[0].max())[0])
    assert found.interval[0] < found.value < found.interval[1]
    alone = estimate(aup(speed[:, 2:], accuracy[:, 2:], best)[0])
    assert alone.interval == pytest.approx(tuple(200 * end for end in mean_interval(hard < 0.95)))
