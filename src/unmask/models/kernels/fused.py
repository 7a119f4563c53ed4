"""The transformer's small operations on a CUDA device, in one launch each; layers.py has them for every device.

For few rows, products with the weights are here too, fused with the operations that follow them. Knows tensors only.
Shapes depend on the host's numbers, memory comes from torch, and nothing waits for the device, so a CUDA graph can
capture every function. The width of a head is a power of two, at least 16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.models.kernels import triton_layers, triton_products
from unmask.models.layers import Store
from unmask.rules.kernels.serving import next_power

_KERNELS: Any = triton_layers  # a type checker does not understand launches
_PRODUCTS: Any = triton_products

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


def takes(x: Tensor) -> bool:
    """Whether the functions below take tensors like this one."""
    return x.dtype == torch.float32 or x.dtype in _HALF


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
    tiles = tiles or ProductTiles()
    out = normed.new_empty(b, q, weight.shape[0])
    with torch.cuda.device_of(normed):
        _PRODUCTS.project_heads[(-(-weight.shape[0] // tiles.columns),)](
            *(normed, weight, weight if bias is None else bias, table, positions.contiguous(), keys, values, slots),
            *(out, b * q, w, q, turns, keys.shape[2]),
            H=n_heads,
            G=n_kv_heads,
            D=d,
            BIASED=bias is not None,
            **_cut(tiles, b * q, w),
        )
    return out


def gated(
    normed: Float[Tensor, "b q w"], weight: Float[Tensor, "both w"], *, tiles: ProductTiles | None = None
) -> Float[Tensor, "b q f"]:
    """The linear layer without a bias, then `gate` of its result."""
    check_contiguous(normed=normed, weight=weight)
    b, q, w = normed.shape
    tiles = tiles or ProductTiles(stages=3)
    f = weight.shape[0] // 2
    out = normed.new_empty(b, q, f)
    with torch.cuda.device_of(normed):
        _PRODUCTS.gate_product[(-(-2 * f // tiles.columns),)](
            *(normed, weight, out, b * q, w, f), **_cut(tiles, b * q, w)
        )
    return out


def partial_product(
    x: Float[Tensor, "b q k"], weight: Float[Tensor, "w k"], *, tiles: ProductTiles | None = None
) -> Float[Tensor, "parts b q w"]:
    """The linear layer without a bias, in float32 and in parts, which `add_norm` adds."""
    check_contiguous(x=x, weight=weight)
    b, q, k = x.shape
    w = weight.shape[0]
    tiles = tiles or _tiles_of_parts(w, k)
    out = x.new_empty(tiles.parts, b, q, w, dtype=torch.float32)
    with torch.cuda.device_of(x):
        _PRODUCTS.part_product[(-(-w // tiles.columns), tiles.parts)](
            *(x, weight, out, b * q, k, w), **_cut(tiles, b * q, k)
        )
    return out


def _tiles_of_parts(n: int, k: int) -> ProductTiles:
    """Depends on the matrix only, so that the other rows never change the order in which a row is added up."""
    columns, stages = (64, 4) if k > 16_384 else (32, 5)
    parts = min(_PROGRAMS // -(-n // columns), -(-k // 128), _MOST_PARTS)
    return ProductTiles(columns=columns, inner=128, parts=max(1, parts), stages=stages)


def _cut(tiles: ProductTiles, rows: int, inner: int) -> dict[str, int | bool]:
    return {
        "ROWS": max(16, next_power(rows)),
        "COLUMNS": tiles.columns,
        "INNER": tiles.inner,
        "EVEN": inner % tiles.inner == 0,
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
    }


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
    if x.numel():
        with torch.cuda.device_of(x):
            _KERNELS.add_norm_rows[(x.numel() // w,)](
                *(x, x if update is None else update.contiguous(), weight, total, normed, w, eps),
                PARTS=0 if update is None else update.numel() // x.numel(),
                W=next_power(w),
                num_warps=min(8, max(1, next_power(w) // 256)),
            )
    return total, normed


def gate(gate_up: Float[Tensor, "b n both"]) -> Float[Tensor, "b n f"]:
    """silu of the first half of the features, times the second half."""
    gate_up, f = gate_up.contiguous(), gate_up.shape[-1] // 2
    out = gate_up.new_empty(*gate_up.shape[:2], f)
    if out.numel():
        size = min(1024, next_power(f))
        with torch.cuda.device_of(out):
            _KERNELS.gate_rows[(out.numel() // f, -(-f // size))](gate_up, out, f, F=size, num_warps=4)
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
    _, rows, d = table.shape
    keys, values, slots = (qkv, qkv, qkv) if store is None else store
    if store is not None:
        check_contiguous(keys=keys, values=values)
    if not b * n:
        return
    size = 16
    heads = n_heads + n_kv_heads * (1 if store is None else 2)
    with torch.cuda.device_of(qkv):
        _KERNELS.turn_heads[(b * n, -(-heads // size))](
            *(qkv, table, qkv if positions is None else positions.contiguous(), keys, values, slots),
            *(n, rows, 0 if store is None else keys.shape[2]),
            H=n_heads,
            G=n_kv_heads,
            D=d,
            HEADS=size,
            GIVEN=positions is not None,
            STORE=store is not None,
            num_warps=4,
        )


def check_contiguous(**tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(f"{name} must be contiguous, got strides {tensor.stride()} of shape {tuple(tensor.shape)}")
