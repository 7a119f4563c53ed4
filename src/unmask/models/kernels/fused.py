"""The transformer's small operations on a CUDA device, in one launch each; layers.py has them for every device.

For few rows, products with the weights are here too, fused with the operations that follow them. Knows tensors only.
Shapes depend on the host's numbers, memory comes from torch, and nothing waits for the device, so a CUDA graph can
capture every function. The width of a head is a power of two, at least 16.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.models.kernels import triton_layers, triton_products
from unmask.models.kernels.launch import check_contiguous, launch
from unmask.models.layers import Store
from unmask.rules.kernels.serving import next_power

_HALF = (torch.bfloat16, torch.float16)
# With up to so many rows, a product reads its weights as fast as the vendor's library does.
_FEW_ROWS = 32
# Programs that run at a time on a device with 132 multiprocessors, two on each.
_PROGRAMS = 264
_MOST_PARTS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductTiles:
    """How a product is cut: decides the order in which numbers are added. All but the parts are powers of two."""

    columns: int = 64
    inner: int = 128
    parts: int = 1
    warps: int = 4
    stages: int = 4

    def options(self, rows: int, inner: int) -> dict[str, int | bool]:
        """Options of a launch whose product has so many rows and adds up so many inputs."""
        return {
            "ROWS": max(16, next_power(rows)),
            "COLUMNS": self.columns,
            "INNER": self.inner,
            "EVEN": inner % self.inner == 0,
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


def few(positions: int, dtype: torch.dtype) -> bool:
    """Whether `project_turn_store`, `gated` and `partial_product` are fast for so many rows."""
    return dtype in _HALF and 0 < positions <= _FEW_ROWS


def project_turn_store(
    normed: Float[Tensor, "b q w"],
    weight: Float[Tensor, "heads w"],
    bias: Float[Tensor, " heads"] | None,
    table: Float[Tensor, "2 _ d"],
    positions: Int[Tensor, "b q"],
    n_heads: int,
    n_kv_heads: int,
    store: Store,
    *,
    tiles: ProductTiles | None = None,
) -> Float[Tensor, "b q heads"]:
    """The linear layer, then `turn_and_store` of its result, in which keys and values are not filled in."""
    keys, values, slots = store
    check_contiguous(normed=normed, weight=weight, table=table, keys=keys, values=values)
    b, q, w = normed.shape
    _, turns, d = table.shape
    tiles, heads = tiles or ProductTiles(), {"H": n_heads, "G": n_kv_heads, "D": d}
    out, grid = normed.new_empty(b, q, weight.shape[0]), (-(-weight.shape[0] // tiles.columns),)
    tensors = weight, weight if bias is None else bias, table, positions.contiguous(), keys, values, slots, out
    sizes, options = (b * q, w, q, turns, keys.shape[2]), tiles.options(b * q, w)
    launch(triton_products.project_heads, grid, normed, *tensors, *sizes, **heads, BIASED=bias is not None, **options)
    return out


def gated(
    normed: Float[Tensor, "b q w"], weight: Float[Tensor, "both w"], *, tiles: ProductTiles | None = None
) -> Float[Tensor, "b q f"]:
    """The linear layer without a bias, then `gate` of its result."""
    check_contiguous(normed=normed, weight=weight)
    b, q, w = normed.shape
    tiles = tiles or ProductTiles(stages=3)
    f = weight.shape[0] // 2
    out, grid = normed.new_empty(b, q, f), (-(-2 * f // tiles.columns),)
    launch(triton_products.gate_product, grid, normed, weight, out, b * q, w, f, **tiles.options(b * q, w))
    return out


def partial_product(
    x: Float[Tensor, "b q k"], weight: Float[Tensor, "w k"], *, tiles: ProductTiles | None = None
) -> Float[Tensor, "parts b q w"]:
    """The linear layer without a bias, in float32 and in parts, which `add_norm` adds."""
    check_contiguous(x=x, weight=weight)
    b, q, k = x.shape
    w = weight.shape[0]
    tiles = tiles or _tiles_of_parts(w, k)
    out, grid = x.new_empty(tiles.parts, b, q, w, dtype=torch.float32), (-(-w // tiles.columns), tiles.parts)
    launch(triton_products.part_product, grid, x, weight, out, b * q, k, w, **tiles.options(b * q, k))
    return out


def _tiles_of_parts(n: int, k: int) -> ProductTiles:
    """Tiles that depend on the matrix only, so that other rows never change the order in which a row is added up."""
    columns, stages = (64, 4) if k > 16_384 else (32, 5)
    parts = min(_PROGRAMS // -(-n // columns), -(-k // 128), _MOST_PARTS)
    return ProductTiles(columns=columns, inner=128, parts=max(1, parts), stages=stages)


def add_norm(
    x: Float[Tensor, "b n w"],
    update: Float[Tensor, "b n w"] | Float[Tensor, "parts b n w"] | None,
    weight: Float[Tensor, " w"],
    eps: float,
) -> tuple[Float[Tensor, "b n w"], Float[Tensor, "b n w"]]:
    """`x + update`, or `x` itself without one, and the RMS norm of that with the gain `weight`.

    Parts of an update are added in their order, and the sum is rounded first.
    """
    x, w = x.contiguous(), x.shape[-1]
    total = x if update is None else torch.empty_like(x)
    normed = torch.empty_like(x)
    updates = x if update is None else update.contiguous()
    parts = 0 if update is None or not x.numel() else update.numel() // x.numel()
    width = next_power(w)
    options = {"PARTS": parts, "W": width, "num_warps": min(8, max(1, width // 256))}
    launch(triton_layers.add_norm_rows, (x.numel() // w,), x, updates, weight, total, normed, w, eps, **options)
    return total, normed


def gate(gate_up: Float[Tensor, "b n both"]) -> Float[Tensor, "b n f"]:
    """silu of the first half of the features, times the second half."""
    gate_up, f = gate_up.contiguous(), gate_up.shape[-1] // 2
    out, size = gate_up.new_empty(*gate_up.shape[:2], f), min(1024, next_power(f))
    grid = out.numel() // f, -(-f // size)
    launch(triton_layers.gate_rows, grid, gate_up, out, f, F=size, num_warps=4)
    return out


def turn_and_store(
    qkv: Float[Tensor, "b n heads"],
    table: Float[Tensor, "2 _ d"],
    positions: Int[Tensor, "b n"] | None,
    n_heads: int,
    n_kv_heads: int,
    store: Store | None,
) -> None:
    """Turn queries and keys by their positions, in place; copy keys and values to the rows' slots in a store.

    Positions default to 0, 1, 2, ..., and are below the store's capacity. A position of -1 is not stored. Two rows may
    share a slot only if they are the same.
    """
    check_contiguous(qkv=qkv, table=table)
    b, n, _ = qkv.shape
    _, turns, d = table.shape
    keys, values, slots = (qkv, qkv, qkv) if store is None else store
    if store is not None:
        check_contiguous(keys=keys, values=values)
    heads, at_a_time = n_heads + n_kv_heads * (1 if store is None else 2), 16
    places = qkv if positions is None else positions.contiguous()
    capacity = 0 if store is None else keys.shape[2]
    launch(
        triton_layers.turn_heads,
        (b * n, -(-heads // at_a_time)),
        *(qkv, table, places, keys, values, slots, n, turns, capacity),
        H=n_heads,
        G=n_kv_heads,
        D=d,
        HEADS=at_a_time,
        GIVEN=positions is not None,
        STORE=store is not None,
        num_warps=4,
    )
