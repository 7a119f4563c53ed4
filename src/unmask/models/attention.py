"""How the computed positions of a pass attend: one class for rows side by side, one for rows one behind the other.

An object is called for every layer. It gets the layer's queries, keys and values side by side, already turned by their
positions. It gives what every query gathered, the heads side by side. In the last layer `kept` names the positions
whose result is needed (None: all). A query sees the first keys of its row; in a block-causal model it sees no key
behind its own block.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.cache.base import PassPlan, Span
from unmask.cache.storage import KVCache
from unmask.device import on_device
from unmask.models.layers import TransformerShape

# Which keys (n) each query (q) sees. One row of queries may stand for all of them; None: every query sees every key.
Mask: TypeAlias = Bool[Tensor, "b 1 _q n"] | None


@runtime_checkable
class Attend(Protocol):
    def __call__(
        self, layer: int, qkv: Float[Tensor, "b q heads"], kept: Int[Tensor, "_b k"] | None
    ) -> Float[Tensor, "_b k queries"]: ...

    def pick(self, values: Float[Tensor, "b q w"], kept: Int[Tensor, "_b k"]) -> Float[Tensor, "_b k w"]:
        """The values of the positions that are kept."""
        ...


class Padded:
    """Rows side by side. A position sees what the pass computes of its row or, with a cache, what the cache holds."""

    def __init__(
        self,
        shape: TransformerShape,
        mask: Mask,
        *,
        cache: KVCache | None = None,
        length: int = 0,
        watched: range = range(0),
    ) -> None:
        self.shape, self.mask, self.watched = shape, mask, watched
        self.cache, self.length = cache, length  # the first `length` keys of the cache are read
        self.maps: list[Tensor] = []  # attention of the watched layers

    def __call__(self, layer: int, qkv: Tensor, kept: Tensor | None) -> Tensor:
        queries, keys, values = split(qkv, self.shape)
        mask = self.mask
        if self.cache is not None:
            slots = self.cache.rows()
            keys, values = (part[slots, :, : self.length] for part in self.cache.storage.layers[layer])
        if layer in self.watched:
            self.maps.append(attention_map(queries, keys, mask))
        if kept is not None and self.cache is None:
            # Over a whole canvas most queries are left out. With a cache few are computed: they are picked afterwards.
            rows, kept = kept.expand(len(queries), -1)[:, None, :, None], None
            queries = queries.gather(2, rows.expand(-1, queries.shape[1], -1, queries.shape[3]))
            if mask is not None and mask.shape[2] > 1:
                mask = mask.gather(2, rows.expand(-1, -1, -1, mask.shape[3]))
        # Watched layers attend in the same way: observing a model must not change its predictions.
        return picked(attend(queries, keys, values, mask), kept)

    def pick(self, values: Tensor, kept: Tensor) -> Tensor:
        return picked(values, kept)


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

    @property
    def sizes(self) -> Int[Tensor, " b"]:
        return self.rows[1]

    @property
    def starts(self) -> Int[Tensor, " b"]:
        return self.rows[2]

    def packed(self, values: Int[Tensor, "b n"]) -> Int[Tensor, "positions 1"]:
        return values[self.row, self.position][:, None]

    def unpacked(self, values: Float[Tensor, "positions 1 w"], width: int) -> Float[Tensor, "b q w"]:
        """Side by side, each row from its first computed position on, the padding filled with zeros."""
        out = values.new_zeros(self.sizes.shape[0], width + 1, values.shape[2])
        # Positions of no row go into the column that is not returned.
        column = torch.where(self.position < 0, -1, self.position - self.rows[0, self.row])
        out[self.row, column] = values[:, 0]
        return out[:, :width]

    def places(self, at: Int[Tensor, "_b k"]) -> Int[Tensor, "b k"]:
        """Where some positions of each row are packed. One outside the row's span counts as its first or last one."""
        column = torch.minimum((at - self.rows[0, :, None]).clamp(min=0), (self.sizes[:, None] - 1).clamp(min=0))
        # A row without positions gets a place of another row.
        return (self.starts[:, None] + column).clamp(max=self.row.shape[0] - 1)


class Packed:
    """Rows one behind the other, as `Packing` lays them. A row sees itself or, with a cache, its slot there."""

    def __init__(
        self, shape: TransformerShape, plan: PassPlan, cache: KVCache | None, *, block_size: int | None
    ) -> None:
        self.shape, self.plan, self.cache = shape, plan, cache
        self.masks: list[Mask] = [None] * len(plan.rows)
        if block_size is not None:
            rows = [PassPlan((row,), plan.device) for row in plan.rows]
            self.masks = [visible_mask(row, row.seen[0], block_size=block_size) for row in rows]

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


def split(
    qkv: Float[Tensor, "b n heads"], shape: TransformerShape
) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b g n d"], Float[Tensor, "b g n d"]]:
    """Queries, keys and values, head by head."""
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
    """Some columns of every row (None: all)."""
    if columns is None:
        return values
    return values.gather(1, columns[:, :, None].expand(values.shape[0], -1, values.shape[2]))
