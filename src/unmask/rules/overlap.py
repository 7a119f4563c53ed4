"""How much the predictions of every two positions overlap, in memory that grows with m v and never with m m v.

The overlap 1 - JSD / ln 2 is summed as it stands, from terms that are never negative. Of two probabilities p and q of a
token let a be the larger and b the smaller:

    overlap(p, q) = 1 / (2 ln 2) * sum over tokens of  p ln((p + q) / p) + q ln((p + q) / q)
                  = 1 / (2 ln 2) * sum over tokens of  b ln(a / b) - (p + q) log1p(-b / (p + q))

So even an overlap of 1e-9 is right to six digits in float32. It has to be, because the mean-field rule divides by the
largest overlap: one minus a divergence, or a difference of entropies, would have it divide noise by noise.

Every figure depends on its own two rows only, bit for bit: not on the batch, the other positions or the thread count.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import pad

from unmask.options import checked
from unmask.rules.marginals import aligned, probabilities

_LN2 = math.log(2.0)

# Tokens summed at a time: the same for every shape, because it decides how the sum is rounded. From 32,768 numbers on
# torch may share one sum among threads, and the rounding would depend on how many there are.
_TILE = 16_384

# Numbers in one temporary. On a CPU: what stays in the caches, yet is worth waking the threads for, and at most 16 MiB.
# Elsewhere: what makes a launch worth its while.
_SCRATCH_PER_THREAD, _SCRATCH_CPU, _SCRATCH_ACCELERATOR = 2**20, 2**22, 2**24


def pairwise_jsd(logits: Float[Tensor, "*batch m v"], *, vocabulary: int | None = None) -> Float[Tensor, "*batch m m"]:
    """Jensen-Shannon divergence in nats between the predictions of every two positions.

    `vocabulary=K` compares every row's K best tokens and merges the rest; the divergence is then never too large.
    """
    return (1.0 - pairwise_overlap(logits, vocabulary=vocabulary)) * _LN2


def pairwise_overlap(
    logits: Float[Tensor, "*batch m v"],
    *,
    masked: Bool[Tensor, "*batch m"] | None = None,
    vocabulary: int | None = None,
) -> Float[Tensor, "*batch m m"]:
    """1 - JSD / ln 2 for every two positions: 1 where they predict the same, 0 where they share no token.

    Positions that are not `masked` have no influence, whatever they hold, and an overlap of 0, also with themselves.
    `vocabulary=K` compares every row's K best tokens and merges the rest; see `truncation_error`.
    """
    if vocabulary is not None:
        checked("vocabulary", vocabulary, least=1)
    rows, is_open = _flat(logits, masked)
    truncated = vocabulary is not None and vocabulary < rows.shape[-1]
    parts = []
    # Few rows at a time where rows are long, many where the cost of a call would outweigh the work.
    together = max(1, _scratch_size(rows) // max(1, rows[:1].numel()))
    for part, part_open in zip(rows.split(together), is_open.split(together), strict=True):
        p = _wide_probabilities(part)
        parts.append(_overlaps(_merge_rest(p, part_open, vocabulary) if truncated else aligned(p)))
    overlap = torch.cat(parts)
    overlap.diagonal(dim1=-2, dim2=-1).fill_(1.0)
    pairs = is_open.unsqueeze(-1) & is_open.unsqueeze(-2)
    return overlap.where(pairs, 0.0).reshape(*logits.shape[:-1], logits.shape[-2])


def truncation_error(logits: Float[Tensor, "*batch m v"], *, vocabulary: int) -> Float[Tensor, "*batch m m"]:
    """By how much `pairwise_overlap(logits, vocabulary=vocabulary)` can be too large; it is never too small.

    It is what the merged rest contributes, and so at most (e_i + e_j) / 2, e being a row's probability of the rest.
    """
    checked("vocabulary", vocabulary, least=1)
    rows, is_open = _flat(logits, None)
    rest = _merge_rest(_wide_probabilities(rows), is_open, vocabulary)[..., :1]
    return _overlaps(rest).reshape(*logits.shape[:-1], logits.shape[-2])


def _flat(logits: Tensor, masked: Tensor | None) -> tuple[Float[Tensor, "n m v"], Bool[Tensor, "n m"]]:
    *batch, m, v = logits.shape
    rows = logits.detach().reshape(math.prod(batch), m, v)
    return rows, rows.new_ones(rows.shape[:2], dtype=torch.bool) if masked is None else masked.reshape(rows.shape[:2])


def _wide_probabilities(logits: Tensor) -> Tensor:
    return probabilities(logits.to(torch.promote_types(logits.dtype, torch.float32)))


def _merge_rest(p: Float[Tensor, "n m v"], is_open: Bool[Tensor, "n m"], vocabulary: int) -> Float[Tensor, "n m w"]:
    """Columns: the probability of all merged tokens, then that of every token among some open row's best.

    The shape depends on no value: a token that is among the best of several rows leaves zeros where it is repeated.
    """
    n, m, v = p.shape
    never = v  # one more token, of probability 0
    p = aligned(pad(p, (0, 1)))
    probability, best = p.topk(min(vocabulary, v), dim=-1)
    best = best.masked_fill((probability == 0.0) | ~is_open.unsqueeze(-1), never)
    tokens = best.flatten(1).sort(dim=-1).values
    repeated = pad(tokens[:, 1:] == tokens[:, :-1], (1, 0))
    columns = tokens.masked_fill(repeated, never).unsqueeze(1).expand(n, m, tokens.shape[1])
    kept = p.gather(-1, columns)
    rest = p.scatter_(-1, columns, 0.0).sum(-1, keepdim=True)
    # Whole tiles, so that the number of positions does not change how the same tokens are summed.
    return pad(torch.cat([rest, kept], dim=-1), (0, -(1 + tokens.shape[1]) % _TILE))


def _overlaps(p: Float[Tensor, "n m v"]) -> Float[Tensor, "n m m"]:
    """The overlap of every two rows, 0 on the diagonal; `p` is overwritten."""
    n, m, v = p.shape
    # Without zeros no term is 0 / 0, and what the smallest normal number adds is far below rounding.
    p.clamp_(min=torch.finfo(p.dtype).tiny)
    log_p = p.log()
    total = p.new_zeros(n, m, m)
    width = min(_TILE, v)
    pairs = max(1, _scratch_size(p) // max(1, n * width))
    scratch = p.new_empty(3, n * min(pairs, m * m) * width)
    for start in range(0, v, _TILE):
        tile = slice(start, start + _TILE)
        for left, right in _rectangles(m, pairs):
            one, other = (slice(None), left, None, tile), (slice(None), None, right, tile)
            terms = _terms(p[one], p[other], log_p[one], log_p[other], scratch)
            total[:, left, right].add_(terms.sum(-1))
    upper = total.triu_(1)
    return (upper + upper.mT).div_(2.0 * _LN2).clamp_(max=1.0)


def _terms(p: Tensor, q: Tensor, log_p: Tensor, log_q: Tensor, scratch: Tensor) -> Tensor:
    """b ln(a / b) - (p + q) log1p(-b / (p + q)) for every token, in the scratch memory."""
    shape = (p.shape[0], p.shape[1], q.shape[2], p.shape[3])  # torch.broadcast_shapes would import sympy
    smaller, work, terms = scratch[:, : math.prod(shape)].view(3, *shape)
    torch.minimum(p, q, out=smaller)
    torch.sub(-p, q, out=work)
    torch.div(smaller, work, out=terms).log1p_().mul_(work)
    torch.sub(log_p, log_q, out=work).abs_()
    return terms.addcmul_(smaller, work)


def _rectangles(m: int, pairs: int) -> Iterator[tuple[slice, slice]]:
    """Ranges of rows and columns, of at most `pairs` pairs each, that cover the upper triangle."""
    height = max(1, pairs // max(1, m))
    width = max(1, pairs // height)
    for top in range(0, m, height):
        for left in range(top + (height == 1), m, width):
            yield slice(top, min(top + height, m)), slice(left, min(left + width, m))


def _scratch_size(like: Tensor) -> int:
    if like.device.type != "cpu":
        return _SCRATCH_ACCELERATOR
    return min(_SCRATCH_CPU, _SCRATCH_PER_THREAD * torch.get_num_threads())
