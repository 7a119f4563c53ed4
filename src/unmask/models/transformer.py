"""The bidirectional transformer behind every family we run: RMSNorm, rotary positions, grouped heads, SwiGLU.

Knows tensors and positions only; what a checkpoint calls its weights is said in the family's file, and which positions
to compute is decided by the engine. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.cache.kv import KVCache
from unmask.errors import UnmaskError
from unmask.models.base import ModelSpec, Prediction
from unmask.models.rotary import Rotary, rotate
from unmask.models.visibility import padding_mask, shadow_mask


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

    def forward(self, x: Float[Tensor, "b n w"]) -> Float[Tensor, "b n w"]:
        # Normalised in float32 and rounded before the gain is applied, the order in which the checkpoints were trained.
        return F.rms_norm(x.float(), self.weight.shape, eps=self.eps).to(x.dtype) * self.weight


class Attention(nn.Module):
    """Queries, keys and values come from one matrix: a pass over one block is bound by launches and weight reads."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.heads = (shape.n_heads, shape.n_kv_heads, shape.n_kv_heads)
        self.head_width = shape.head_width
        self.qkv = nn.Linear(shape.width, sum(self.heads) * shape.head_width, bias=shape.qkv_bias)
        self.out = nn.Linear(shape.n_heads * shape.head_width, shape.width, bias=False)

    def project(
        self, x: Float[Tensor, "b n w"], turn: Float[Tensor, "2 _ n 1 d"]
    ) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b g n d"], Float[Tensor, "b g n d"]]:
        """Rotated queries, rotated keys, values."""
        n_heads, n_kv_heads, _ = self.heads
        qkv = self.qkv(x).unflatten(-1, (sum(self.heads), self.head_width))
        queries_and_keys = rotate(qkv[:, :, : n_heads + n_kv_heads], turn).transpose(1, 2)
        queries, keys = queries_and_keys.split([n_heads, n_kv_heads], dim=1)
        return queries, keys, qkv[:, :, n_heads + n_kv_heads :].transpose(1, 2)


class Block(nn.Module):
    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(shape.width, shape.norm_eps)
        self.attention = Attention(shape)
        self.mlp_norm = RMSNorm(shape.width, shape.norm_eps)
        self.gate_up = nn.Linear(shape.width, 2 * shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)

    def mlp(self, x: Float[Tensor, "b n w"]) -> Float[Tensor, "b n w"]:
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Transformer(nn.Module):
    """A MaskedLM (see base.py for what `predict` promises)."""

    def __init__(self, shape: TransformerShape, spec: ModelSpec) -> None:
        super().__init__()
        self.shape = shape
        self.spec = spec
        self.embedding = nn.Embedding(shape.vocab_size, shape.width)
        self.rotary = Rotary(shape.head_width, shape.rope_theta)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.n_layers))
        self.norm = RMSNorm(shape.width, shape.norm_eps)
        self.head = None if shape.tied else nn.Linear(shape.width, shape.vocab_size, bias=False)

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype

    def predict(
        self,
        tokens: Int[Tensor, "b n"],
        *,
        lengths: Int[Tensor, " b"] | None = None,
        at: Int[Tensor, "b k"] | None = None,
        cache: KVCache | None = None,
        queries: Int[Tensor, "b q"] | None = None,
        attention_layers: range | None = None,
        shadow: Int[Tensor, "b s"] | None = None,
    ) -> Prediction:
        self._check(cache, queries, attention_layers, shadow)
        length = tokens.shape[1]
        visible = padding_mask(lengths, length, self.device)
        seen = visible
        if queries is not None:
            tokens, positions = tokens.gather(1, queries), queries
        elif shadow is not None:
            seen = shadow_mask(shadow, visible, length)
            own = torch.arange(length, device=self.device).expand(tokens.shape[0], -1)
            positions = torch.cat([own, shadow], dim=1)
            tokens = torch.cat([tokens, torch.full_like(shadow, self.spec.mask_id)], dim=1)
        else:
            positions = None
        turn = self.rotary(length, positions, device=self.device)
        states, attention = self._run(self.embedding(tokens), turn, seen, cache, queries, attention_layers)
        if attention is not None:
            attention = _without_padding(attention[:, :length, :length], visible)
        shadows = 0 if shadow is None else shadow.shape[1]
        mains = self._rows(states[:, : states.shape[1] - shadows], at, queries)
        # One product with the head for both kinds of rows: its weights are by far the largest to read.
        logits = self._head(torch.cat([mains, states[:, -shadows:]], dim=1) if shadows else mains)
        main_logits, shadow_logits = logits.split([logits.shape[1] - shadows, shadows], dim=1)
        return Prediction(logits=main_logits, attention=attention, shadow_logits=shadow_logits if shadows else None)

    def _check(
        self,
        cache: KVCache | None,
        queries: Tensor | None,
        attention_layers: range | None,
        shadow: Tensor | None,
    ) -> None:
        if cache is not None and attention_layers is not None:
            raise UnmaskError("attention maps need the whole canvas: they cannot be had with a cache")
        if cache is not None and shadow is not None:
            raise UnmaskError("shadow predictions need the whole canvas: they cannot be had with a cache")
        if queries is not None and cache is None:
            raise UnmaskError("queries need a cache that a full pass has filled")
        if shadow is not None and self.spec.shifted:
            raise UnmaskError(
                f"{self.spec.family} predicts a position from the one before it, so it has no shadow predictions"
            )

    def _run(
        self,
        x: Float[Tensor, "b q w"],
        turn: Float[Tensor, "2 _ q 1 d"],
        seen: Bool[Tensor, "b 1 _q n"] | None,
        cache: KVCache | None,
        positions: Int[Tensor, "b q"] | None,
        watched: range | None,
    ) -> tuple[Float[Tensor, "b q w"], Float[Tensor, "b q n"] | None]:
        """States after the last norm, and the mean attention of the watched layers."""
        maps = None
        for layer, block in enumerate(self._blocks()):
            queries, keys, values = block.attention.project(block.attention_norm(x), turn)
            if cache is not None and positions is not None:
                keys, values = cache.splice(layer, keys, values, positions)
            elif cache is not None:
                # Copies, because the originals are views that would keep the queries alive as well.
                cache.fill(layer, keys.contiguous(), values.contiguous())
            if watched is not None and layer in watched:
                here = _attention_map(queries, keys, seen) / len(watched)
                maps = here if maps is None else maps + here
            # Watched layers too: looking at a model must not change what it says.
            mixed = _attend(queries, keys, values, seen).transpose(1, 2).flatten(2)
            x = x + block.attention.out(mixed)
            x = x + block.mlp(x)
        return self.norm(x), maps

    def _blocks(self) -> Iterator[Block]:
        yield from self.blocks  # ty: ignore[invalid-yield]

    def _rows(
        self, states: Float[Tensor, "b q w"], at: Int[Tensor, "b k"] | None, queries: Int[Tensor, "b q"] | None
    ) -> Float[Tensor, "b k w"]:
        """The states that predict the positions `at`: the head is only worth its cost on those."""
        if at is None and not self.spec.shifted:
            return states
        if at is None:
            return torch.cat([states[:, :1], states[:, :-1]], dim=1)
        row = at if queries is None else at - queries[:, :1]
        row = (row - 1 if self.spec.shifted else row).clamp(0, states.shape[1] - 1)
        return states.gather(1, row[:, :, None].expand(-1, -1, states.shape[2]))

    def _head(self, states: Float[Tensor, "b k w"]) -> Float[Tensor, "b k v"]:
        return F.linear(states, self.embedding.weight if self.head is None else self.head.weight)


def _attend(
    queries: Float[Tensor, "b h q d"],
    keys: Float[Tensor, "b g n d"],
    values: Float[Tensor, "b g n d"],
    seen: Bool[Tensor, "b 1 _q n"] | None,
) -> Float[Tensor, "b h q d"]:
    groups = queries.shape[1] // keys.shape[1]
    if groups > 1 and not (seen is None and queries.is_cuda):
        # Only CUDA's flash kernel shares a key head between query heads without falling back to the slow reference.
        keys, values = keys.repeat_interleave(groups, dim=1), values.repeat_interleave(groups, dim=1)
        groups = 1
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=seen, enable_gqa=groups > 1)


def _attention_map(
    queries: Float[Tensor, "b h q d"], keys: Float[Tensor, "b g n d"], seen: Bool[Tensor, "b 1 _q n"] | None
) -> Float[Tensor, "b q n"]:
    """Softmax of the scaled products, in float32, averaged over heads."""
    grouped = queries.float().unflatten(1, (keys.shape[1], -1))
    scores = grouped @ keys.float()[:, :, None].transpose(-1, -2) * queries.shape[-1] ** -0.5
    if seen is not None:
        scores = scores.masked_fill(~seen[:, None], -torch.inf)
    return scores.softmax(-1).mean((1, 2))


def _without_padding(
    attention: Float[Tensor, "b n n"], visible: Bool[Tensor, "b 1 1 n"] | None
) -> Float[Tensor, "b n n"]:
    """Keys behind the end of a row have no weight already; queries there get none either."""
    return attention if visible is None else attention * visible[:, 0, 0, :, None]
