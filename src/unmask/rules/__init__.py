"""The rules: pure functions of logits. They know torch and nothing of the engine, so another engine can use them."""

from unmask.rules.commit import mean_field_commit as mean_field_commit
from unmask.rules.commit import mean_field_intensity as mean_field_intensity
from unmask.rules.marginals import best_token as best_token
from unmask.rules.marginals import entropy as entropy
from unmask.rules.marginals import log_probabilities as log_probabilities
from unmask.rules.marginals import probabilities as probabilities
from unmask.rules.marginals import probability_of as probability_of
from unmask.rules.marginals import top2_margin as top2_margin
from unmask.rules.marginals import top2_probabilities as top2_probabilities
from unmask.rules.mean_field import MeanFieldCommit as MeanFieldCommit
from unmask.rules.overlap import pairwise_jsd as pairwise_jsd
from unmask.rules.overlap import pairwise_overlap as pairwise_overlap
from unmask.rules.overlap import truncation_error as truncation_error
