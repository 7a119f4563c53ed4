"""Attention by kernels, which read from tensors where rows begin and how many keys they see.

`CachedKernel` and `PackedKernel` are patterns as in `models/attention.py`. The functions behind them allocate memory
and launch. They never wait for the device, so a CUDA graph can capture them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.cache.storage import Storage
from unmask.models.attention import Packing, picked
from unmask.models.kernels import triton_layers
from unmask.models.kernels.launch import check_contiguous, launch
from unmask.models.layers import Store, TransformerShape


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionTiles:
    """How attention is cut, in powers of two. The split decides how sums are rounded; all of them decide the speed."""

    split: int | None = 256  # keys that one program sees, a multiple of `keys`; None: all
    keys: int = 64  # that a program reads at a time
    rows: int = 64  # queries of one program, counting every head that shares the keys
    warps: int = 4
    stages: int = 3


@dataclass(frozen=True, slots=True)
class CachedKernel:
    """Rows side by side. All positions of a row see the same keys of its slot in a storage."""

    shape: TransformerShape
    storage: Storage
    slots: Int[Tensor, " b"]
    visible: Int[Tensor, " b"]

    def __call__(self, layer: int, qkv: Float[Tensor, "b q heads"], kept: Tensor | None) -> Tensor:
        keys, values = self.storage.layers[layer]
        heads, longest = self.shape.n_heads, self.storage.length
        return block_attention(qkv, keys, values, self.slots, self.visible, heads, longest)

    def pick(self, values: Tensor, kept: Tensor) -> Tensor:
        return picked(values, kept)


@dataclass(frozen=True, slots=True)
class PackedKernel:
    """Rows one behind the other. A row sees itself or, with `visible`, so many keys of its slot in a storage."""

    shape: TransformerShape
    packing: Packing
    longest: int
    storage: Storage | None
    slots: Int[Tensor, " b"] | None
    visible: Int[Tensor, " b"] | None

    def __call__(self, layer: int, qkv: Float[Tensor, "positions 1 heads"], kept: Tensor | None) -> Tensor:
        stored = None
        if self.storage is not None and self.slots is not None and self.visible is not None:
            stored = (*self.storage.layers[layer], self.slots, self.visible)
        heads, rows = (self.shape.n_heads, self.shape.n_kv_heads), (self.packing.starts, self.packing.sizes)
        found = ragged_attention(qkv, *rows, *heads, self.longest, stored)
        return found if kept is None else self.pick(found, kept)

    def pick(self, values: Tensor, kept: Tensor) -> Tensor:
        return values[kept, 0]


def block_attention(
    qkv: Float[Tensor, "b q heads"],
    keys: Float[Tensor, "s g c d"],
    values: Float[Tensor, "s g c d"],
    slots: Int[Tensor, " b"],
    lengths: Int[Tensor, " b"],
    n_heads: int,
    longest: int,
    *,
    tiles: AttentionTiles | None = None,
) -> Float[Tensor, "b q queries"]:
    """Attention of the turned queries in `qkv` to the first `lengths` keys and values in the rows' slots of a store.

    No length is above `longest`, which changes no bit of the result. A row without keys gets zeros. The number of rows
    decides how sums are cut in half precision, but not in float32.
    """
    check_contiguous(qkv=qkv, keys=keys, values=values)
    b, q, _ = qkv.shape
    _, g, capacity, d = keys.shape
    out = qkv.new_empty(b, q, n_heads * d)
    asking = n_heads // g * q
    tiles = tiles or _tiles(qkv.dtype, b * g, asking)
    split = tiles.split or max(1, longest)
    splits = max(1, -(-longest // split))
    mixtures = figures = out
    if splits > 1:
        mixtures = out.new_empty((splits, b * q * n_heads, d), dtype=torch.float32)
        figures = out.new_empty((splits, b * q * n_heads, 2), dtype=torch.float32)
    launch(
        triton_layers.attend_split,
        (splits * g * -(-asking // tiles.rows), b),
        *(qkv, keys, values, slots, lengths, out, mixtures, figures),
        *(q, capacity, split, math.log2(math.e) / math.sqrt(d)),
        H=n_heads,
        G=g,
        D=d,
        ROWS=tiles.rows,
        KEYS=tiles.keys,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )
    if splits > 1:
        merged = mixtures, figures, lengths, out, q, splits, split
        launch(triton_layers.merge_splits, (b * q * n_heads,), *merged, H=n_heads, D=d, num_warps=1)
    return out


def ragged_attention(
    qkv: Float[Tensor, "positions 1 heads"],
    starts: Int[Tensor, " b"],
    lengths: Int[Tensor, " b"],
    n_heads: int,
    n_kv_heads: int,
    longest: int,
    stored: tuple[*Store, Int[Tensor, " b"]] | None = None,
) -> Float[Tensor, "positions 1 queries"]:
    """Attention of the turned queries in `qkv`, each to the keys of its own row.

    Rows lie one behind the other, `lengths` positions from `starts` on, none longer than `longest`. Positions that
    belong to no row are not filled in. `stored` is a store and the number of keys that each row sees there; without
    it, a row sees the keys in `qkv`.
    """
    keys, values, slots, seen = (qkv, qkv, starts, lengths) if stored is None else stored
    check_contiguous(qkv=qkv, keys=keys, values=values)
    count, _, heads = qkv.shape
    d = heads // (n_heads + 2 * n_kv_heads)
    out = qkv.new_empty(count, 1, n_heads * d)
    rows, at_a_time, stages = (64, 64, 3) if d <= 128 else (64, 32, 2)
    if qkv.dtype == torch.float32:  # operands live in registers
        rows, at_a_time, stages = 16, 32, 2
    launch(
        triton_layers.attend_rows,
        (-(-longest // rows) * n_heads, lengths.shape[0]),
        *(qkv, starts, lengths, keys, values, slots, seen, out),
        *(longest, 0 if stored is None else keys.shape[2], math.log2(math.e) / math.sqrt(d)),
        H=n_heads,
        G=n_kv_heads,
        D=d,
        ROWS=rows,
        KEYS=at_a_time,
        STORED=stored is not None,
        num_warps=4,
        num_stages=stages,
    )
    return out


def _tiles(dtype: torch.dtype, key_heads: int, asking: int) -> AttentionTiles:
    if dtype == torch.float32:  # no tensor cores: operands live in registers
        return AttentionTiles(keys=32, rows=16, stages=2)
    tiles = AttentionTiles()
    # Splits give idle multiprocessors work, and cost a launch.
    programs = key_heads * -(-asking // tiles.rows)
    if programs >= 96:
        return replace(tiles, split=None)
    return replace(tiles, split=512 if programs > 40 else 320)
