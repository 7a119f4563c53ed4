"""The sizes of a transformer, and its layers as they hold weights; transformer.py computes with them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerShape:
    """The sizes of a transformer, and the two things in which families differ."""

    width: int
    hidden: int  # width of the feed-forward layer
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_width: int
    vocab_size: int  # rows of the embedding, which may include padding beyond the tokenizer's vocabulary
    rope_theta: float
    norm_eps: float
    qkv_bias: bool
    tied: bool  # the head is the embedding


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps


class Attention(nn.Module):
    """Queries, keys and values come from one matrix: a pass over one block is bound by launches and weight reads."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        heads = shape.n_heads + 2 * shape.n_kv_heads
        self.qkv = nn.Linear(shape.width, heads * shape.head_width, bias=shape.qkv_bias)
        self.out = nn.Linear(shape.n_heads * shape.head_width, shape.width, bias=False)


class Block(nn.Module):
    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(shape.width, shape.norm_eps)
        self.attention = Attention(shape)
        self.mlp_norm = RMSNorm(shape.width, shape.norm_eps)
        self.gate_up = nn.Linear(shape.width, 2 * shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)
