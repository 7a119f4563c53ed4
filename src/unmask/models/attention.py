"""Who sees whom: how the computed positions of a pass attend, one class for each pattern.

Each is called for every layer with the layer's queries, keys and values side by side, already turned by their
positions, and gives what every query gathered, the heads side by side. `kept`, in the last layer, says whose result is
needed; None: all. A query sees the first so many keys of its row; in a block-causal model, none behind its own
block.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.cache.base import PassPlan
from unmask.cache.storage import KVCache
from unmask.models.layers import TransformerShape

# Which keys (n) each query (q) sees; one row of queries stands for all of them, None for seeing everything.
Mask: TypeAlias = Bool[Tensor, "b 1 _q n"] | None


@runtime_checkable
class Attend(Protocol):
    def __call__(
        self, layer: int, qkv: Float[Tensor, "b q heads"], kept: Int[Tensor, "_b k"] | None
    ) -> Float[Tensor, "_b k queries"]: ...

    def pick(self, values: Float[Tensor, "b q w"], kept: Int[Tensor, "_b k"]) -> Float[Tensor, "_b k w"]:
        """What computed positions have of their own, of those that are kept."""
        ...


class Together:
    """The computed positions see each other, as far as the mask lets them; None: all."""

    def __init__(
        self, shape: TransformerShape, mask: Bool[Tensor, "b 1 _q n"] | None, *, watched: range = range(0)
    ) -> None:
        self.shape, self.mask, self.watched = shape, mask, watched
        self.maps: list[Tensor] = []  # of the watched layers

    def __call__(self, layer: int, qkv: Tensor, kept: Tensor | None) -> Tensor:
        queries, keys, values = split(qkv, self.shape)
        mask = self.mask
        if layer in self.watched:
            self.maps.append(attention_map(queries, keys, mask))
        if kept is not None:
            rows = kept.expand(len(queries), -1)[:, None, :, None]
            queries = queries.gather(2, rows.expand(-1, queries.shape[1], -1, queries.shape[3]))
            if mask is not None and mask.shape[2] > 1:
                mask = mask.gather(2, rows.expand(-1, -1, -1, mask.shape[3]))
        # Watched layers attend in the same way: looking at a model must not change what it says.
        return attend(queries, keys, values, mask)

    def pick(self, values: Tensor, kept: Tensor) -> Tensor:
        return picked(values, kept)


class Cached:
    """The computed positions see what a cache holds of their rows, in which they stand already."""

    def __init__(
        self, shape: TransformerShape, cache: KVCache, mask: Bool[Tensor, "b 1 _q n"] | None, length: int
    ) -> None:
        self.shape, self.cache, self.mask, self.length = shape, cache, mask, length

    def __call__(self, layer: int, qkv: Tensor, kept: Tensor | None) -> Tensor:
        queries, _, _ = split(qkv, self.shape)
        rows = self.cache.rows()
        keys, values = (part[rows, :, : self.length] for part in self.cache.storage.layers[layer])
        mixed = attend(queries, keys, values, self.mask)
        return mixed if kept is None else picked(mixed, kept)

    def pick(self, values: Tensor, kept: Tensor) -> Tensor:
        return picked(values, kept)


class Packed:
    """Rows lie one behind the other, each position a row of its own; a row sees itself, or its slot in a cache."""

    def __init__(
        self, shape: TransformerShape, plan: PassPlan, cache: KVCache | None, *, block_size: int | None
    ) -> None:
        self.shape, self.plan, self.cache = shape, plan, cache
        self.masks = [_row_mask(plan, row, block_size) for row in range(len(plan.rows))]

    def __call__(self, layer: int, qkv: Tensor, kept: Tensor | None) -> Tensor:
        mixed = []
        for number, row in enumerate(qkv.transpose(0, 1).split(self.plan.sizes, dim=1)):
            queries, keys, values = split(row, self.shape)
            if self.cache is not None:
                slot, seen = self.cache.slots[number], self.plan.seen[number]
                keys, values = (part[slot : slot + 1, :, :seen] for part in self.cache.storage.layers[layer])
            mixed.append(attend(queries, keys, values, self.masks[number]).squeeze(0))
        found = torch.cat(mixed).unsqueeze(1)  # contiguous: a product with anything else is slower
        return found if kept is None else self.pick(found, kept)

    def pick(self, values: Tensor, kept: Tensor) -> Tensor:
        return values[kept, 0]


def _row_mask(plan: PassPlan, row: int, block_size: int | None) -> Bool[Tensor, "1 1 q n"] | None:
    if block_size is None:
        return None
    return visible_mask(PassPlan(plan.rows[row : row + 1], plan.device), plan.seen[row], block_size=block_size)


def visible_mask(plan: PassPlan, length: int, *, block_size: int | None) -> Mask:
    """Which of `length` keys the positions of the plan see; None where that is all of them.

    `block_size`: of a block-causal model; a query then sees no key behind its own block.
    """
    keys = torch.arange(length, device=plan.device)
    if block_size is None:
        if all(seen >= length for seen in plan.seen):
            return None
        return (keys < plan.visible[:, None])[:, None, None]
    positions = keys[None] if plan.is_whole else plan.positions
    ends = torch.minimum((positions // block_size + 1) * block_size, plan.visible[:, None])
    return (keys < ends[..., None])[:, None]


def shadow_mask(
    shadow: Int[Tensor, "b s"], visible: Bool[Tensor, "b 1 1 n"] | None, length: int
) -> Bool[Tensor, "b 1 both both"]:
    """Main positions see one another only; a shadow sees the shadows and every main position but its own.

    A position repeated in `shadow` is padding: only its first column is a key.
    """
    rows, shadows = shadow.shape
    repeated = (shadow[:, :, None] == shadow[:, None, :]).tril(-1).any(-1)
    own = shadow[:, :, None] == torch.arange(length, device=shadow.device)
    mains = own.new_ones(rows, 1, length) if visible is None else visible[:, 0]
    seen = own.new_zeros(rows, length + shadows, length + shadows)
    seen[:, :length, :length] = mains
    seen[:, length:, :length] = mains & ~own
    seen[:, length:, length:] = ~repeated[:, None, :]
    return seen[:, None]


def split(
    qkv: Float[Tensor, "b n heads"], shape: TransformerShape
) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b g n d"], Float[Tensor, "b g n d"]]:
    """Queries, keys and values, seen head by head."""
    sizes = [shape.n_heads, shape.n_kv_heads, shape.n_kv_heads]
    queries, keys, values = qkv.unflatten(-1, (sum(sizes), -1)).transpose(1, 2).split(sizes, dim=1)
    return queries, keys, values


def attend(
    queries: Float[Tensor, "b h q d"],
    keys: Float[Tensor, "b g n d"],
    values: Float[Tensor, "b g n d"],
    mask: Mask,
) -> Float[Tensor, "b q heads"]:
    """What every query gathers from the keys that it sees."""
    groups = queries.shape[1] // keys.shape[1]
    if groups > 1 and not (mask is None and queries.is_cuda):
        # Only CUDA's flash kernel shares a key head between query heads without falling back to the slow reference.
        keys, values = keys.repeat_interleave(groups, dim=1), values.repeat_interleave(groups, dim=1)
        groups = 1
    mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, enable_gqa=groups > 1)
    return mixed.transpose(1, 2).flatten(2)


def attention_map(
    queries: Float[Tensor, "b h q d"], keys: Float[Tensor, "b g n d"], mask: Mask
) -> Float[Tensor, "b q n"]:
    """Softmax of the scaled products, in float32, averaged over heads."""
    grouped = queries.float().unflatten(1, (keys.shape[1], -1))
    scores = grouped @ keys.float()[:, :, None].transpose(-1, -2) * queries.shape[-1] ** -0.5
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None], -torch.inf)
    return scores.softmax(-1).mean((1, 2))


def picked(values: Float[Tensor, "b q w"], columns: Int[Tensor, "_b k"] | None) -> Float[Tensor, "b k w"]:
    """Some columns, by default all."""
    if columns is None:
        return values
    return values.gather(1, columns[:, :, None].expand(values.shape[0], -1, values.shape[2]))
