"""The transformer's small operations in plain PyTorch, for every device; fused.py has the same for CUDA.

`qkv` holds the heads of the queries, of the keys and of the values side by side.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.cache.kv import Layer
from unmask.models.rotary import rotate


def add_norm(
    x: Float[Tensor, "b n w"], update: Float[Tensor, "b n w"] | None, weight: Float[Tensor, " w"], eps: float
) -> tuple[Float[Tensor, "b n w"], Float[Tensor, "b n w"]]:
    """The sum, and its RMSNorm."""
    x = x if update is None else x + update
    # Normalised in float32 and rounded before the gain is applied, the order in which the checkpoints were trained.
    return x, F.rms_norm(x.float(), weight.shape, eps=eps).to(x.dtype) * weight


def gate(gate_up: Float[Tensor, "b n both"]) -> Float[Tensor, "b n f"]:
    """SiLU of the first half times the second."""
    first, second = gate_up.chunk(2, dim=-1)
    return F.silu(first) * second


def turn_and_store(
    qkv: Float[Tensor, "b n heads"],
    table: Float[Tensor, "2 positions d"],
    positions: Int[Tensor, "b n"] | None,
    n_heads: int,
    n_kv_heads: int,
    store: tuple[*Layer, Int[Tensor, " b"]] | None,
) -> None:
    """Turn queries and keys by their positions, in place; copy keys and values to the rows' places in a cache."""
    length, width = qkv.shape[1], table.shape[-1]
    turn = table[:, None, :length] if positions is None else table[:, positions]
    heads = qkv.unflatten(-1, (n_heads + 2 * n_kv_heads, width))
    rotate(heads[:, :, : n_heads + n_kv_heads], turn.unsqueeze(3))
    if store is None:
        return
    _, fresh_keys, fresh_values = split(qkv, n_heads, n_kv_heads)
    keys, values, places = store
    if positions is None:
        keys[places, :, :length], values[places, :, :length] = fresh_keys, fresh_values
    else:
        rows, heads = places[:, None, None], torch.arange(n_kv_heads, device=qkv.device)[None, :, None]
        at = (rows, heads, positions[:, None])
        keys[at], values[at] = fresh_keys, fresh_values


def split(
    qkv: Float[Tensor, "b n heads"], n_heads: int, n_kv_heads: int
) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b g n d"], Float[Tensor, "b g n d"]]:
    """Queries, keys and values, seen head by head."""
    heads = qkv.unflatten(-1, (n_heads + 2 * n_kv_heads, -1)).transpose(1, 2)
    queries, keys, values = heads.split([n_heads, n_kv_heads, n_kv_heads], dim=1)
    return queries, keys, values


def attend(
    queries: Float[Tensor, "b h q d"],
    keys: Float[Tensor, "b g n d"],
    values: Float[Tensor, "b g n d"],
    seen: Bool[Tensor, "b 1 _q n"] | None,
) -> Float[Tensor, "b q heads"]:
    """What every query gathers from the keys that it sees; the heads side by side."""
    groups = queries.shape[1] // keys.shape[1]
    if groups > 1 and not (seen is None and queries.is_cuda):
        # Only CUDA's flash kernel shares a key head between query heads without falling back to the slow reference.
        keys, values = keys.repeat_interleave(groups, dim=1), values.repeat_interleave(groups, dim=1)
        groups = 1
    mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=seen, enable_gqa=groups > 1)
    return mixed.transpose(1, 2).flatten(2)


def ragged_attention(
    qkv: Float[Tensor, "positions 1 heads"],
    lengths: list[int],
    n_heads: int,
    n_kv_heads: int,
    stored: tuple[*Layer, Int[Tensor, " b"], Bool[Tensor, "b 1 1 n"] | None] | None = None,
) -> Float[Tensor, "positions 1 queries"]:
    """`attend` in each of the rows that lie one behind the other, or to what a cache holds in their places."""
    mixed = []
    for number, row in enumerate(qkv.transpose(0, 1).split(lengths, dim=1)):
        queries, keys, values = split(row, n_heads, n_kv_heads)
        seen = None
        if stored is not None:
            stored_keys, stored_values, places, visible = stored
            keys, values = _row(stored_keys, places, number), _row(stored_values, places, number)
            seen = None if visible is None else visible[number : number + 1]
        mixed.append(attend(queries, keys, values, seen).squeeze(0))
    return torch.cat(mixed).unsqueeze(1)  # contiguous: a product with anything else is slower


def _row(kept: Float[Tensor, "s g n d"], places: Int[Tensor, " b"], number: int) -> Float[Tensor, "1 g n d"]:
    """Of the place of that row; nothing is copied where the host knows the place without waiting."""
    place = places[number : number + 1]
    return kept[place] if place.device.type != "cpu" else kept.narrow(0, int(place), 1)


def attention_map(
    queries: Float[Tensor, "b h q d"], keys: Float[Tensor, "b g n d"], seen: Bool[Tensor, "b 1 _q n"] | None
) -> Float[Tensor, "b q n"]:
    """Softmax of the scaled products, in float32, averaged over heads."""
    grouped = queries.float().unflatten(1, (keys.shape[1], -1))
    scores = grouped @ keys.float()[:, :, None].transpose(-1, -2) * queries.shape[-1] ** -0.5
    if seen is not None:
        scores = scores.masked_fill(~seen[:, None], -torch.inf)
    return scores.softmax(-1).mean((1, 2))


def without_padding(
    attention: Float[Tensor, "b n n"], visible: Bool[Tensor, "b 1 1 n"] | None
) -> Float[Tensor, "b n n"]:
    """Keys behind the end of a row have no weight already; queries there get none either."""
    return attention if visible is None else attention * visible[:, 0, 0, :, None]


def picked(states: Float[Tensor, "b q w"], rows: Int[Tensor, "_b k"] | None) -> Float[Tensor, "b k w"]:
    """Some of the states, by default all."""
    if rows is None:
        return states
    return states.gather(1, rows[:, :, None].expand(states.shape[0], -1, states.shape[2]))
