"""The rules: pure functions of logits. They know torch and nothing of the engine, so another engine can use them."""

from unmask.rules.commit import mean_field_commit, mean_field_intensity
from unmask.rules.marginals import (
    best_token,
    entropy,
    log_probabilities,
    probabilities,
    probability_of,
    top2_margin,
    top2_probabilities,
)
from unmask.rules.mean_field import MeanFieldCommit
from unmask.rules.overlap import pairwise_jsd, pairwise_overlap, truncation_error

__all__ = [
    "MeanFieldCommit",
    "best_token",
    "entropy",
    "log_probabilities",
    "mean_field_commit",
    "mean_field_intensity",
    "pairwise_jsd",
    "pairwise_overlap",
    "probabilities",
    "probability_of",
    "top2_margin",
    "top2_probabilities",
    "truncation_error",
]
