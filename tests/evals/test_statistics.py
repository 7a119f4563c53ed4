import math
import time

import numpy as np
import pytest

from unmask.evals.statistics import aup, aup_intervals, bootstrap, holm, interval_of, mcnemar, resampled_sums, wilson


def test_wilson_solves_its_own_equation():
    for successes, n in ((8, 10), (1, 30), (500, 1319), (163, 164)):
        for end in wilson(successes, n):
            distance = abs(successes / n - end) / math.sqrt(end * (1 - end) / n)
            assert distance == pytest.approx(1.95996398, abs=1e-6)


def test_wilson_at_the_ends_and_without_items():
    assert wilson(0, 5)[0] == 0.0
    assert wilson(5, 5)[1] == 1.0
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(8, 10) == pytest.approx((0.4901625, 0.9433178))


def ratio_interval(numerator, denominator):
    return bootstrap(np.column_stack([numerator, denominator]), lambda sums: sums[:, 0] / sums[:, 1])


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
    ratio = resampled_sums(seconds) / resampled_sums(seconds / 2)
    assert interval_of(ratio[:, 0]) == pytest.approx((2.0, 2.0))
    low, high = mean_interval(seconds[:, 0])
    assert high / low > 1.5


def test_resampling_is_the_same_every_time_and_quick():
    tokens, seconds = np.random.default_rng(1).random((2, 1000))
    first = ratio_interval(tokens, seconds)
    began = time.perf_counter()
    assert all(ratio_interval(tokens, seconds) == first for _ in range(20))
    assert time.perf_counter() - began < 4.0


def test_nothing_is_resampled_from_nothing():
    assert ratio_interval([], []) is None
    assert ratio_interval([1.0, 2.0], [0.0, 0.0]) is None


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
    assert (test.only_first, test.only_second) == (only_first, only_second)
    assert test.p == pytest.approx(p)


def test_mcnemar_of_many_items_agrees_with_the_binomial_sum():
    n, fewer = 5000, 2400
    test = mcnemar([True] * fewer + [False] * (n - fewer), [False] * fewer + [True] * (n - fewer))
    assert test.p == pytest.approx(2 * sum(math.comb(n, k) for k in range(fewer + 1)) / 2**n, rel=1e-12)


def test_aup_of_the_examples_of_the_protocol():
    assert aup([(1, 72.55)], 72.55).value == pytest.approx(72.55)
    assert aup([(1, 74.79), (2.77, 74.68)], 74.98).value == pytest.approx(205.8, abs=0.05)


def test_aup_by_hand():
    def weight(y):
        return min(math.exp(-3 * (1 - y / 90)), 1)

    points = [(4, 84.0), (1, 85.0), (2, 90.0)]  # in any order
    by_hand = 85.0 + 0.5 * (90 * weight(90) + 85 * weight(85)) + 0.5 * 2 * (84 * weight(84) + 90 * weight(90))
    found = aup(points, 90)
    assert found.value == pytest.approx(by_hand)
    assert found.dropped == ()


def test_aup_leaves_out_points_more_than_five_below_the_slowest_and_says_which():
    kept = [(1, 80.0), (4, 75.0)]
    found = aup([(8, 20.0), *kept, (2, 74.99)], 80)
    assert found.dropped == (0, 3)
    assert found.value == pytest.approx(aup(kept, 80).value)
    assert aup([(1, 0.0), (2, 0.0)], 0.0).value == 0.0
    with pytest.raises(ValueError, match="at least one"):
        aup([], 80)


def test_the_interval_of_an_aup_holds_its_value():
    random = np.random.default_rng(2)
    items = 400
    hard = random.random(items)
    passes = np.full(items, 60.0)
    slow = (np.full(items, 60.0), passes, hard < 0.9)
    fast = (np.full(items, 60.0), passes / 4, hard < 0.88)
    other = (np.full(items, 60.0), passes / 2, hard < 0.95)
    (low, high), alone = aup_intervals([[slow, fast], [other]])
    accuracies = [100 * float(point[2].mean()) for point in (slow, fast, other)]
    value = aup([(1.0, accuracies[0]), (4.0, accuracies[1])], max(accuracies)).value
    assert low < value < high
    assert alone == pytest.approx(tuple(200 * end for end in mean_interval(other[2])))
    assert aup_intervals([]) == []
