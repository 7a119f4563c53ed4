import itertools
import math

import pytest
import torch
from doubles import Scripted, tiny_config

import unmask
from unmask.engine.likelihood import loglikelihood
from unmask.errors import UnmaskError
from unmask.models.random_weights import random_model


def exact(model, prompt, continuation):
    """The estimator's expectation, by enumerating every mask."""
    length, whole = len(continuation), torch.tensor([prompt + continuation])
    total = 0.0
    for count in range(1, length + 1):
        masks = list(itertools.combinations(range(length), count))
        for chosen in masks:
            tokens = whole.clone()
            tokens[0, [len(prompt) + c for c in chosen]] = model.spec.mask_id
            log_p = model.predict(tokens).logits.log_softmax(-1)[0]
            found = sum(float(log_p[len(prompt) + c, continuation[c]]) for c in chosen)
            total += found * length / count / len(masks) / length
    return total


def test_the_estimate_agrees_with_the_expectation_over_all_masks():
    model = random_model(tiny_config("llada"), std=0.3)
    prompt, continuation = [3, 1, 4], [1, 5, 9]
    estimate = loglikelihood(model, prompt, continuation, samples=3000, seed=0, batch_size=500)
    assert estimate == pytest.approx(exact(model, prompt, continuation), abs=0.25)


def test_the_batch_size_does_not_change_the_estimate_and_the_seed_does():
    model = random_model(tiny_config("dream"), std=0.3)
    values = [
        loglikelihood(model, [3], [1, 5, 9, 2], samples=20, seed=seed, batch_size=size)
        for seed, size in ((0, 1), (0, 7), (0, 20), (1, 20))
    ]
    assert values[0] == pytest.approx(values[1], abs=1e-4) == pytest.approx(values[2], abs=1e-4)
    assert abs(values[3] - values[2]) > 1e-4


def test_independent_positions_give_the_sum_of_their_log_probabilities():
    table = torch.tensor([0.1, 0.2, 0.3, 0.4]).log().repeat(4, 1)
    model = Scripted(table)
    value = loglikelihood(model, [0], [1, 2, 3], samples=600, seed=0, batch_size=64)
    assert value == pytest.approx(math.log(0.2 * 0.3 * 0.4), rel=0.03)
    one = loglikelihood(model, [0], [3], samples=5, seed=0, batch_size=2)
    assert one == pytest.approx(math.log(0.4), abs=1e-5)


def test_texts_are_scored_and_bad_counts_refused():
    toy = unmask.load("toy")
    likely = toy.loglikelihood("Hi", "Every masked", samples=32)
    unlikely = toy.loglikelihood("Hi", "qqqqq qqqqqq", samples=32)
    assert likely > unlikely
    assert toy.loglikelihood("Hi", "", samples=4) == 0.0
    with pytest.raises(UnmaskError, match="samples"):
        toy.loglikelihood("Hi", "x", samples=0)
