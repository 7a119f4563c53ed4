"""Test equipment: models whose every answer is written down, and one that watches how it is called."""

from __future__ import annotations

from dataclasses import replace

import torch

from unmask.bench.roofline import Call
from unmask.models.base import MaskedLM, ModelSpec, Prediction

SPEC = ModelSpec(
    name="scripted",
    family="scripted",
    convention="llada",
    vocab_size=8,
    n_layers=1,
    max_length=64,
    mask_id=7,
    eos_id=6,
    end_ids=frozenset({5, 6}),
)


class Scripted:
    """Logits by position from a table (n, v), whatever the tokens."""

    device = torch.device("cpu")
    dtype = torch.float32

    def __init__(self, table: torch.Tensor, **changes) -> None:
        self.table = table
        self.spec = replace(SPEC, vocab_size=table.shape[1], **changes)

    def predict(self, tokens, *, lengths=None, at=None, cache=None, queries=None, attention_layers=None, shadow=None):
        del lengths, cache, queries, attention_layers
        whole = self.table[: tokens.shape[1]].repeat(len(tokens), 1, 1)
        pick = lambda rows: whole.gather(1, rows[..., None].expand(-1, -1, whole.shape[-1]))  # noqa: E731
        return Prediction(
            logits=whole if at is None else pick(at),
            attention=torch.eye(tokens.shape[1]).repeat(len(tokens), 1, 1),
            shadow_logits=None if shadow is None else pick(shadow),
        )


def call_of(*, rows: int, positions: int, keys: int, predicted: int) -> Call:
    """A call of the model with rows that are all the same."""
    return Call(positions=(positions,) * rows, keys=(keys,) * rows, predicted=predicted)


class Watched:
    """A model that notes the number of positions computed in every call."""

    def __init__(self, model: MaskedLM) -> None:
        self.model, self.spec = model, model.spec
        self.device, self.dtype = model.device, model.dtype
        self.computed: list[tuple[int, int]] = []  # rows, positions

    def predict(self, tokens, **options):
        queries = options.get("queries")
        self.computed.append((len(tokens), tokens.shape[1] if queries is None else queries.shape[1]))
        return self.model.predict(tokens, **options)

    def prepare(self, tokens, **options):
        return lambda: self.predict(tokens, **options)


class WatchedPacking(Watched):
    """One that is told on the host how long rows are, and how much of them to compute."""

    packs = True

    def predict(self, tokens, **options):
        return super().predict(tokens, **options)


def tiny_config(family: str, **changes) -> dict:
    """A config in the public format of the family, small enough to run in milliseconds."""
    if family == "llada":
        config = {
            "model_type": "llada",
            "d_model": 32,
            "n_heads": 4,
            "n_kv_heads": 4,
            "n_layers": 3,
            "mlp_hidden_size": 48,
            "vocab_size": 61,
            "embedding_size": 64,
            "max_sequence_length": 256,
            "rope_theta": 10000.0,
            "rms_norm_eps": 1e-5,
            "weight_tying": False,
            "include_bias": False,
            "mask_token_id": 60,
            "eos_token_id": 59,
        }
    else:
        config = {
            "model_type": "Dream",
            "hidden_size": 32,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_hidden_layers": 3,
            "intermediate_size": 48,
            "vocab_size": 64,
            "max_position_embeddings": 256,
            "rope_theta": 10000.0,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
            "mask_token_id": 60,
            "pad_token_id": 59,
            "eos_token_id": 59,
        }
    return config | changes
