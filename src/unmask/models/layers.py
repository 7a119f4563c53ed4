"""The layers of a transformer: the weights they hold, and their operations in plain PyTorch, for every device.

RMSNorm, rotary positions, grouped heads, SwiGLU; queries and keys may be normalised head by head. `models/kernels` has
the same operations for CUDA devices.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.cache.storage import Layer

# Where keys and values go: a layer of a storage, and the slots of the rows in it.
Store = tuple[*Layer, Int[Tensor, " b"]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerShape:
    """The sizes of a transformer, and what families do differently."""

    width: int
    hidden: int  # width of the feed-forward layer
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_width: int
    vocab_size: int  # rows of the embedding, which may include padding beyond the tokenizer's vocabulary
    rope_theta: float
    norm_eps: float
    qkv_bias: bool = False
    qk_norm: bool = False  # queries and keys are normalised, head by head, before they are turned
    tied: bool = False  # the head is the embedding


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        # Normalised in float32 and rounded before the gain is applied, the order in which the checkpoints were trained.
        return F.rms_norm(x.float(), self.weight.shape, eps=self.eps).to(x.dtype) * self.weight


def rotary_table(head_width: int, theta: float, length: int, device: torch.device) -> Float[Tensor, "2 n d"]:
    """Cosine, and sine with the sign of each half, of the positions below `length`.

    In float32 whatever the model's dtype, because bfloat16 cannot tell neighbouring positions apart beyond a few
    hundred. No frequency scaling: families that need it are refused when their config is read.
    """
    # The table outlives this call, so it must not be an inference tensor, which gradients cannot pass.
    with torch.inference_mode(False):
        exponents = torch.arange(head_width // 2, dtype=torch.float32, device=device) / (head_width // 2)
        angles = torch.arange(length, dtype=torch.float32, device=device)[:, None] / theta**exponents
        cos, sin = angles.cos(), angles.sin()
        return torch.stack([torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)])


class Attention(nn.Module):
    """Queries, keys and values come from one matrix: a pass over one block is bound by launches and weight reads."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_width = shape.n_heads, shape.n_kv_heads, shape.head_width
        heads = shape.n_heads + 2 * shape.n_kv_heads
        self.qkv = nn.Linear(shape.width, heads * shape.head_width, bias=shape.qkv_bias)
        self.out = nn.Linear(shape.n_heads * shape.head_width, shape.width, bias=False)
        self.query_norm = RMSNorm(shape.head_width, shape.norm_eps) if shape.qk_norm else None
        self.key_norm = RMSNorm(shape.head_width, shape.norm_eps) if shape.qk_norm else None


class Block(nn.Module):
    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(shape.width, shape.norm_eps)
        self.attention = Attention(shape)
        self.mlp_norm = RMSNorm(shape.width, shape.norm_eps)
        self.gate_up = nn.Linear(shape.width, 2 * shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)


class LayerOps:
    """The operations of a layer on its weights."""

    def add_norm(self, x: Tensor, update: Tensor | None, norm: RMSNorm) -> tuple[Tensor, Tensor]:
        """The sum, and its norm."""
        x = x if update is None else x + update
        return x, norm(x)

    def project(
        self,
        attention: Attention,
        normed: Float[Tensor, "b q w"],
        table: Float[Tensor, "2 _ d"],
        positions: Int[Tensor, "b q"] | None,
        store: Store | None,
    ) -> Float[Tensor, "b q heads"]:
        """Queries, keys and values side by side, turned by their positions (None: 0, 1, 2, ...).

        Keys and values are also copied to the store, at their positions in the slots of their rows.
        """
        qkv, n_heads, n_kv_heads = attention.qkv(normed), attention.n_heads, attention.n_kv_heads
        if attention.query_norm is not None and attention.key_norm is not None:
            heads = qkv.unflatten(-1, (-1, attention.head_width))
            queries, keys, _ = heads.split([n_heads, n_kv_heads, n_kv_heads], dim=2)
            queries.copy_(attention.query_norm(queries))
            keys.copy_(attention.key_norm(keys))
        self.turn_and_store(qkv, table, positions, n_heads, n_kv_heads, store)
        return qkv

    @staticmethod
    def turn_and_store(
        qkv: Float[Tensor, "b q heads"],
        table: Float[Tensor, "2 _ d"],
        positions: Int[Tensor, "b q"] | None,
        n_heads: int,
        n_kv_heads: int,
        store: Store | None,
    ) -> None:
        """Turn queries and keys, in place; copy keys and values to the store."""
        length, heads = qkv.shape[1], qkv.unflatten(-1, (-1, table.shape[-1]))
        turning = heads[:, :, : n_heads + n_kv_heads]
        cos, sin = (table[:, None, :length] if positions is None else table[:, positions]).unsqueeze(3)
        partner = turning.roll(table.shape[-1] // 2, dims=-1)  # feature i is paired with feature i + d/2
        if qkv.dtype == table.dtype:
            turning.mul_(cos).addcmul_(partner, sin)
        else:  # float32 throughout, since the table is, and rounded once
            turning.copy_(torch.addcmul(turning * cos, partner, sin))
        if store is not None:
            keys, values, slots = store
            _, fresh_keys, fresh_values = heads.transpose(1, 2).split([n_heads, n_kv_heads, n_kv_heads], dim=1)
            into = (slots, slice(None), slice(length))
            if positions is not None:
                into = (slots[:, None, None], torch.arange(n_kv_heads, device=qkv.device)[:, None], positions[:, None])
            keys[into], values[into] = fresh_keys, fresh_values

    def gated(self, linear: nn.Module, normed: Float[Tensor, "b q w"]) -> Float[Tensor, "b q f"]:
        """SiLU of the first half of the product times the second."""
        first, second = linear(normed).chunk(2, dim=-1)
        return F.silu(first) * second

    def update(self, linear: nn.Module, x: Float[Tensor, "b q k"]) -> Tensor:
        """The product, as `add_norm` takes it."""
        return linear(x)
