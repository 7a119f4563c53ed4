"""Random models of a checkpoint's shape."""

from __future__ import annotations

import pytest
import torch

from unmask.errors import CheckpointError
from unmask.models.random_weights import random_model

CONFIG = {
    "model_type": "llada",
    "d_model": 32,
    "n_heads": 4,
    "n_layers": 2,
    "mlp_hidden_size": 48,
    "vocab_size": 64,
    "max_sequence_length": 128,
    "mask_token_id": 63,
    "eos_token_id": 62,
}


def test_a_seed_gives_the_same_model_again() -> None:
    tokens = torch.arange(7)[None]
    first, again, other = (random_model(CONFIG, seed=seed).predict(tokens).logits for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.isfinite().all()


def test_shape_and_dtype_are_those_asked_for() -> None:
    model = random_model(CONFIG, dtype=torch.bfloat16)
    assert model.dtype == torch.bfloat16
    assert (model.spec.n_layers, model.spec.mask_id) == (2, 63)
    assert model.predict(torch.arange(3)[None]).logits.shape == (1, 3, 64)


def test_a_config_is_checked_like_that_of_a_checkpoint() -> None:
    with pytest.raises(CheckpointError, match=r"^config: alibi is true, but only false is supported$"):
        random_model(CONFIG | {"alibi": True})
