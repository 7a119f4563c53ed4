import torch

from unmask.engine.observe import narrow, propose
from unmask.settings import Settings


def generators(*seeds):
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def test_temperature_zero_takes_the_likeliest_token_and_the_lowest_of_equals():
    logits = torch.tensor([[[0.0, 2.0, 2.0], [1.0, 1.0, 1.0]]])
    proposed, seen = propose(logits, Settings(), [2], generators(0))
    assert proposed.tolist() == [[1, 0]]
    assert seen is logits


def test_top_p_keeps_the_token_that_crosses_the_line():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    kept = narrow(logits, Settings(temperature=1.0, top_p=0.6)).isfinite()
    assert kept.tolist() == [True, True, False, False]
    kept = narrow(logits, Settings(temperature=1.0, top_p=0.4)).isfinite()
    assert kept.tolist() == [True, False, False, False]


def test_top_p_is_applied_after_temperature_and_before_top_k():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    sharp = narrow(logits, Settings(temperature=0.25, top_p=0.85)).isfinite()
    assert sharp.tolist() == [True, False, False, False]
    assert narrow(logits, Settings(temperature=1.0, top_p=0.99, top_k=2)).isfinite().sum() == 2


def test_top_k_breaks_ties_by_the_lowest_id():
    kept = narrow(torch.zeros(5), Settings(temperature=1.0, top_k=2)).isfinite()
    assert kept.tolist() == [True, True, False, False, False]


def test_draws_follow_the_distribution():
    probabilities = torch.tensor([0.6, 0.3, 0.1])
    logits = (probabilities.log() * 2).expand(1, 20_000, 3)
    proposed, seen = propose(logits, Settings(temperature=2.0), [20_000], generators(7))
    shares = proposed[0].bincount(minlength=3) / 20_000
    assert torch.allclose(shares, probabilities, atol=0.015)
    assert torch.allclose(seen[0, 0].softmax(-1), probabilities, atol=1e-6)


def test_noise_of_a_row_does_not_depend_on_its_neighbours_or_on_padding():
    logits = torch.randn(2, 5, 11)
    settings = Settings(temperature=0.8)
    together, _ = propose(logits, settings, [5, 3], generators(3, 4))
    alone, _ = propose(logits[1:, :3], settings, [3], generators(4))
    assert torch.equal(together[1, :3], alone[0])


def test_a_token_that_cannot_occur_is_never_drawn():
    logits = torch.full((1, 500, 4), -torch.inf)
    logits[..., 2] = 0.0
    proposed, _ = propose(logits, Settings(temperature=5.0), [500], generators(0))
    assert (proposed == 2).all()
