"""One block of eight open positions after a prompt of four, to check by eye, and what every rule commits."""

import pytest
import torch
from policies.rows import committed, peaked

from unmask import policies
from unmask.types import StepView

CONFIDENCES = [0.95] * 4 + [0.97, 0.86, 0.80, 0.78, 0.72, 0.93, 0.55, 0.40]
ALL = [4, 5, 6, 7, 8, 9, 10, 11]

TABLE = [
    ("fixed", {"tokens_per_pass": 1}, [4]),
    ("fixed", {"tokens_per_pass": 2}, [4, 9]),
    ("fixed", {"tokens_per_pass": 3}, [4, 5, 9]),
    ("fixed", {"passes": 3}, [4, 5, 9]),
    ("entropy", {"tokens_per_pass": 3}, [4, 5, 9]),
    ("margin", {"tokens_per_pass": 3}, [4, 5, 9]),
    ("random", {"tokens_per_pass": 2}, [6, 11]),
    ("threshold", {"threshold": 0.9}, [4, 9]),
    ("threshold", {"threshold": 0.75}, [4, 5, 6, 7, 9]),
    ("threshold", {"threshold": 0.99}, [4]),
    ("factor", {"factor": 0.5}, [4, 9]),
    ("factor", {"factor": 0.9}, [4, 5, 9]),
    ("factor", {"factor": 1.5}, [4, 5, 6, 7, 9]),
    ("factor", {"factor": 2.0}, [4, 5, 6, 7, 8, 9]),
    ("local_leap", {"radius": 1}, [4, 5, 9]),
    ("local_leap", {"radius": 2}, [4, 5, 6, 7, 9]),
    ("local_leap", {"radius": 4}, [4, 5, 6, 7, 9]),
    ("eb", {"gamma": 0.1}, [4]),
    ("eb", {"gamma": 0.5}, [4, 9]),
    ("eb", {"gamma": 1.0}, [4, 5, 9]),
    ("eb", {"gamma": 2.0}, [4, 5, 6, 9]),
    ("eb", {"gamma": 2.0, "order": "confidence"}, [4, 5, 6, 9]),
    ("eb", {"gamma": 2.0, "order": "margin"}, [4, 5, 6, 9]),
    ("dawn", {"tau_sink": 0.02}, [4, 5, 7, 8, 9]),
    ("dawn", {"tau_sink": 0.01}, [4, 5, 6, 7, 9]),
    ("mean_field", {"iterations": 0}, ALL),
    ("mean_field", {"interaction": "none"}, ALL),
    ("mean_field", {"iterations": 1}, [4, 5, 9]),
    ("mean_field", {"iterations": 2}, [4, 5, 6, 7, 8, 9]),
    ("mean_field", {"iterations": 3}, [4, 5, 6, 7, 9]),
    ("mean_field", {"threshold": 0.95, "iterations": 1}, [4, 9]),
    ("mean_field", {"threshold": 0.95, "iterations": 2}, [4, 5, 9]),
]


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def view(request) -> StepView:
    logits = peaked(CONFIDENCES).to(request.param)[None]
    attention = torch.full((1, 12, 12), 0.002)
    attention[0, 8, 2], attention[0, 6, 5], attention[0, 7, 4] = 0.12, 0.15, 0.10
    return StepView(
        logits=logits[:, 4:],
        masked=torch.ones(1, 8, dtype=torch.bool),
        start=torch.tensor([4]),
        uniform=torch.tensor([[0.1, 0.2, 0.9, 0.3, 0.4, 0.5, 0.6, 0.8]]),
        sequence_logits=logits,
        attention=attention,
    )


@pytest.mark.parametrize(("name", "params", "expected"), TABLE)
def test_the_worked_example_commits_the_published_set(view, name, params, expected):
    assert committed(policies.get(name, **params), view) == expected


def test_mean_field_hands_its_figures_to_the_trace(view):
    decision, state = policies.MeanField().select(view)
    expected = torch.tensor([[0.9965, 0.9657, 0.9349, 0.9217, 0.8712, 0.9886, 0.6252, 0.3548]])
    torch.testing.assert_close(decision.intensity.float(), expected, atol=1e-4, rtol=0)
    assert decision.overlap.shape == (1, 8, 8)
    assert decision.overlap.max().item() == pytest.approx(1.0)
    assert state is None


def test_scores_are_computed_in_float32_unless_the_view_asks_for_the_logits_own_dtype():
    logits = peaked([0.9, 0.5])[None].bfloat16()
    masked = torch.ones(1, 2, dtype=torch.bool)
    for exact, dtype in ((False, torch.float32), (True, torch.bfloat16)):
        decision, _ = policies.Threshold().select(StepView(logits=logits, masked=masked, exact_dtype=exact))
        assert decision.score.dtype == dtype


def test_a_threshold_is_met_by_equality():
    view = StepView(logits=torch.zeros(1, 1, 2), masked=torch.ones(1, 1, dtype=torch.bool))
    assert policies.Threshold(threshold=0.5).select(view)[0].commit.all()
    assert not policies.Threshold(threshold=0.500001).select(view)[0].commit.any()


def test_confidence_is_that_of_the_proposed_token_and_not_the_largest():
    logits = peaked([0.95, 0.8])[None]
    likeliest = logits.argmax(-1)
    masked = torch.ones(1, 2, dtype=torch.bool)
    drawn = likeliest + torch.tensor([[1, 0]])
    assert committed(policies.Threshold(), StepView(logits=logits, masked=masked)) == [0]
    assert committed(policies.Threshold(), StepView(logits=logits, masked=masked, proposed=drawn)) == [1]
