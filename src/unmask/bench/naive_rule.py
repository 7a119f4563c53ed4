"""The mean-field rule evaluated as it is printed: both Kullback-Leibler terms over an m x m x v tensor.

A yardstick for `unmask bench rule` only: it assumes that every position is open and that no probability is 0.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unmask.rules.mean_field import without_diagonal

# Tensors of m x m x v numbers that are alive at once: the mixture, a ratio, and its logarithm.
NAIVE_TEMPORARIES = 3


def naive_commit(
    logits: Float[Tensor, "b m v"], *, threshold: float = 0.85, iterations: int = 2
) -> tuple[Bool[Tensor, "b m"], Float[Tensor, "b m m"]]:
    """The positions to commit, and the overlap before it is normalised (0 on the diagonal)."""
    p = logits.softmax(-1)
    best, second = p.topk(2, dim=-1).values.log().unbind(-1)
    margin = best - second
    overlap = without_diagonal(naive_overlap(p.unsqueeze(2), p.unsqueeze(1)))
    interaction = overlap / overlap.amax((-2, -1), keepdim=True).clamp(min=1e-12)
    field = margin
    for _ in range(iterations):
        field = margin - (interaction @ field.sigmoid().unsqueeze(-1)).squeeze(-1)
    commit = field.sigmoid() >= threshold
    largest = torch.zeros_like(commit).scatter(-1, field.argmax(-1, keepdim=True), True)
    return torch.where(commit.any(-1, keepdim=True), commit, largest), overlap


def exact_overlap(logits: Float[Tensor, "b m v"]) -> Float[Tensor, "b m m"]:
    """The overlap in float64, a position at a time: the truth, with m times less memory."""
    there = logits if logits.is_cuda else logits.cpu()  # MPS has no float64
    rows = (row.double().softmax(-1) for row in there)
    return without_diagonal(torch.stack([torch.stack([naive_overlap(one, p) for one in p]) for p in rows]))


def naive_overlap(p: Float[Tensor, "*p v"], q: Float[Tensor, "*q v"]) -> Float[Tensor, "*pq"]:
    """1 - JSD / ln 2, with JSD = KL(p || (p + q) / 2) / 2 + KL(q || (p + q) / 2) / 2."""
    middle = (p + q) / 2.0
    jsd = (_kl(p, middle) + _kl(q, middle)) / 2.0
    return (1.0 - jsd / math.log(2.0)).clamp(0.0, 1.0)


def _kl(p: Tensor, q: Tensor) -> Tensor:
    return (p * (p / q).log()).sum(-1)
