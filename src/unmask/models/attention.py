"""How the computed positions of a pass attend: rows side by side, or one behind the other.

A query sees the first keys of its row; in a block-causal model it sees no key behind its own block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.cache.base import PassPlan, Span
from unmask.cache.storage import KVCache, Storage
from unmask.device import on_device
from unmask.models.layers import TransformerShape

# Called for every layer, by its number, with queries, keys and values side by side, already turned by their positions.
# Gives what every query gathered, the heads side by side.
Attend: TypeAlias = Callable[[int, Float[Tensor, "b q heads"]], Float[Tensor, "b q queries"]]
# Which keys (n) each query (q) sees. One row of queries may stand for all of them; None: every query sees every key.
Mask: TypeAlias = Bool[Tensor, "b 1 _q n"] | None


@dataclass(frozen=True, slots=True)
class Padded:
    """Rows side by side. A position sees what the pass computes of its row, or what is `stored` of it."""

    shape: TransformerShape
    mask: Mask
    stored: tuple[Storage, slice | Int[Tensor, " b"]] | None = None  # a storage, and the rows' slots in it
    length: int = 0  # keys that are read there
    watched: range = range(0)  # layers whose attention is noted
    maps: list[Float[Tensor, "b q n"]] = field(default_factory=list)

    def __call__(self, layer: int, qkv: Tensor) -> Tensor:
        sizes = [self.shape.n_heads, self.shape.n_kv_heads, self.shape.n_kv_heads]
        queries, keys, values = qkv.unflatten(-1, (sum(sizes), -1)).transpose(1, 2).split(sizes, dim=1)
        if self.stored is not None:
            storage, slots = self.stored
            keys, values = (part[slots, :, : self.length] for part in storage.layers[layer])
        if layer in self.watched:
            self.maps.append(attention_map(queries, keys, self.mask))
        # Watched layers attend in the same way: observing a model must not change its predictions.
        return attend(queries, keys, values, self.mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Rows laid one behind the other, so that a pass over rows of different sizes computes no padding.

    Says to which row and position each packed place belongs, and where the positions of each row are packed. Packed
    tensors are (positions, 1, ...), with the first row of the batch first. Behind the last row there may be positions
    that belong to no row: they round the number of positions up, because a shape that returns can be replayed.
    """

    row: Int[Tensor, " positions"]
    position: Int[Tensor, " positions"]  # in its row; -1: the place belongs to no row
    rows: Int[Tensor, "3 b"]  # of each row: its first position, its number of positions, where the first is packed

    @classmethod
    def of(cls, spans: list[Span], count: int, device: torch.device) -> Packing:
        """The spans, packed into `count` places; there are at least as many places as positions."""
        # Made on the host and copied once: the device has nothing to do until this arrives. Made with numpy, because
        # torch would wake its threads, which can take milliseconds.
        first, sizes = [first for first, _ in spans], [end - first for first, end in spans]
        *starts, used = accumulate(sizes, initial=0)
        table = np.empty(2 * count + 3 * len(spans), dtype=np.int64)
        row, position, rows = np.split(table, [count, 2 * count])
        row[:used], row[used:] = np.repeat(np.arange(len(spans)), sizes), len(spans) - 1
        position[:used], position[used:] = np.arange(used) + np.repeat(np.subtract(first, starts), sizes), -1
        rows[:] = [*first, *sizes, *starts]
        parts = on_device(torch.from_numpy(table), device).split([count, count, len(rows)])
        return cls(row=parts[0], position=parts[1], rows=parts[2].view(3, -1))

    def packed(self, values: Int[Tensor, "b n"]) -> Int[Tensor, "positions 1"]:
        return values[self.row, self.position][:, None]

    def places(self, at: Int[Tensor, "_b k"]) -> Int[Tensor, "b k"]:
        """Where some positions of each row are packed. One outside the row's span counts as its first or last one."""
        first, sizes, starts = self.rows.unsqueeze(-1)
        column = torch.minimum((at - first).clamp(min=0), (sizes - 1).clamp(min=0))
        # A row without positions gets a place of another row.
        return (starts + column).clamp(max=self.row.shape[0] - 1)


class Packed:
    """Rows one behind the other, as `Packing` lays them. A row sees itself or, with a cache, its slot there."""

    def __init__(
        self, shape: TransformerShape, plan: PassPlan, cache: KVCache | None, *, block_size: int | None
    ) -> None:
        self.sizes, self.rows = plan.sizes, []
        for number, row in enumerate(plan.rows):
            mask = visible_mask(PassPlan((row,), plan.device), row.visible, block_size=block_size)
            stored = None if cache is None else (cache.storage, slice(cache.slots[number], cache.slots[number] + 1))
            self.rows.append(Padded(shape, mask, stored, row.visible))

    def __call__(self, layer: int, qkv: Tensor) -> Tensor:
        parts = qkv.transpose(0, 1).split(self.sizes, dim=1)
        found = [row(layer, part) for row, part in zip(self.rows, parts, strict=True)]
        # Not transposed: even where a side is 1 its stride would count, and a product would go row by row.
        return torch.cat(found, dim=1)[0].unsqueeze(1)


def visible_mask(plan: PassPlan, length: int, *, block_size: int | None) -> Mask:
    """Which of `length` keys the positions of the plan see; None: all of them.

    With the `block_size` of a block-causal model, a query sees no key behind its own block.
    """
    if block_size is None:
        return None if min(plan.seen) >= length else first_keys(plan.visible, length)
    keys = torch.arange(length, device=plan.device)
    positions = keys[None] if plan.self_contained else plan.positions
    ends = torch.minimum((positions // block_size + 1) * block_size, plan.visible[:, None])
    return (keys < ends[..., None])[:, None]


def first_keys(visible: Int[Tensor, " b"], length: int) -> Bool[Tensor, "b 1 1 n"]:
    """The mask of rows whose queries all see the first `visible` of `length` keys."""
    return (torch.arange(length, device=visible.device) < visible[:, None])[:, None, None]


def shadow_mask(shadow: Int[Tensor, "b s"], visible: Mask, length: int) -> Bool[Tensor, "b 1 both both"]:
    """Main positions see one another only. A shadow sees the shadows, and the main positions but its own.

    In a block-causal model both see no further than their blocks. A position repeated in `shadow` is padding: only its
    first column is a key.
    """
    rows, shadows = shadow.shape
    repeated = (shadow[:, :, None] == shadow[:, None, :]).tril(-1).any(-1)
    own = shadow[:, :, None] == torch.arange(length, device=shadow.device)
    mains = own.new_ones(rows, length, length) if visible is None else visible[:, 0].expand(rows, length, length)
    of_shadows = mains.gather(1, shadow[:, :, None].expand(-1, -1, length))
    seen = own.new_zeros(rows, length + shadows, length + shadows)
    seen[:, :length, :length] = mains
    seen[:, length:, :length] = of_shadows & ~own
    seen[:, length:, length:] = of_shadows.gather(2, shadow[:, None, :].expand(-1, shadows, -1)) & ~repeated[:, None, :]
    return seen[:, None]


def attend(
    queries: Float[Tensor, "b h q d"], keys: Float[Tensor, "b g n d"], values: Float[Tensor, "b g n d"], mask: Mask
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


def picked(values: Float[Tensor, "b q w"], places: Int[Tensor, "_b k"] | None) -> Float[Tensor, "_b k w"]:
    """The values of some of the computed positions, which are counted row after row (None: all as they are)."""
    return values if places is None else values.flatten(0, 1)[places]
