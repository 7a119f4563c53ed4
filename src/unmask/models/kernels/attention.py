"""The patterns of `models/attention.py` by kernels, which read from tensors where rows begin and what they see."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from unmask.cache.storage import Storage
from unmask.models.attention import picked
from unmask.models.kernels import fused
from unmask.models.layers import TransformerShape
from unmask.models.packing import Packing


class CachedKernel:
    """`Cached`, where all positions of a row see the same keys."""

    def __init__(
        self, shape: TransformerShape, storage: Storage, slots: Int[Tensor, " b"], visible: Int[Tensor, " b"]
    ) -> None:
        self.shape, self.storage, self.slots, self.visible = shape, storage, slots, visible

    def __call__(self, layer: int, qkv: Float[Tensor, "b q heads"], kept: Tensor | None) -> Tensor:
        keys, values = self.storage.layers[layer]
        heads, longest = self.shape.n_heads, self.storage.length
        return fused.block_attention(qkv, keys, values, self.slots, self.visible, heads, longest)

    def pick(self, values: Tensor, kept: Tensor) -> Tensor:
        return picked(values, kept)


class PackedKernel:
    """`Packed`: a row sees itself, or, where `visible` says how many, the first keys of its slot in a storage."""

    def __init__(
        self,
        shape: TransformerShape,
        packing: Packing,
        longest: int,
        storage: Storage | None,
        slots: Int[Tensor, " b"] | None,
        visible: Int[Tensor, " b"] | None,
    ) -> None:
        self.shape, self.packing, self.longest = shape, packing, longest
        self.storage, self.slots, self.visible = storage, slots, visible

    def __call__(self, layer: int, qkv: Float[Tensor, "positions 1 heads"], kept: Tensor | None) -> Tensor:
        stored = None
        if self.storage is not None and self.slots is not None and self.visible is not None:
            stored = (*self.storage.layers[layer], self.slots, self.visible)
        heads, rows = (self.shape.n_heads, self.shape.n_kv_heads), (self.packing.starts, self.packing.sizes)
        found = fused.ragged_attention(qkv, *rows, *heads, self.longest, stored)
        return found if kept is None else self.pick(found, kept)

    def pick(self, values: Tensor, kept: Tensor) -> Tensor:
        return values[kept, 0]
