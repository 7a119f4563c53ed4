"""The operations between the products of a layer on a CUDA device, in one launch each.

Results are rounded where the plain operations of layers.py round. A result depends on its own row of the batch only.
The width of a head is a power of two, at least 16.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor, nn

from unmask.models.kernels import launch, wide
from unmask.models.layers import LayerOps, RMSNorm, Store
from unmask.models.transformer import Transformer
from unmask.rules.kernels import next_power

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)

# log2(e) in two pieces, so that the product with a float32 loses nothing.
_LOG2_E = tl.constexpr(1.4426950216293335)
_LOG2_E_REST = tl.constexpr(1.925963033500011e-08)
_INFINITE = tl.constexpr(104.0)  # e^104 is infinite in float32, and e^-104 is zero


@triton.jit
def add_norm_rows(x, update, weight, sum_out, normed_out, w, eps, PARTS: tl.constexpr, W: tl.constexpr):
    """One row of `w` features: the sum, rounded, and its RMS norm, rounded before the gain and after. Grid (b * n,).

    `update` is the sum, rounded, of that many PARTS, (PARTS, b * n, w); there may be none.
    """
    columns = tl.arange(0, W)
    inside = columns < w
    at = tl.program_id(0).to(tl.int64) * w + columns
    # Everything is loaded at once: the program has little to compute while it waits.
    state = tl.load(x + at, mask=inside, other=0.0)
    gain = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    if PARTS:
        total = tl.load(update + at, mask=inside, other=0.0).to(tl.float32)
        for _ in tl.static_range(1, PARTS):
            update += tl.num_programs(0).to(tl.int64) * w
            total += tl.load(update + at, mask=inside, other=0.0).to(tl.float32)
        state = (state.to(tl.float32) + total.to(x.dtype.element_ty).to(tl.float32)).to(x.dtype.element_ty)
        tl.store(sum_out + at, state, mask=inside)
    wide = state.to(tl.float32)
    mean = tl.div_rn(tl.sum(wide * wide, axis=0), w * 1.0)
    normed = (wide * tl.rsqrt(mean + eps)).to(x.dtype.element_ty)
    tl.store(normed_out + at, (normed.to(tl.float32) * gain).to(x.dtype.element_ty), mask=inside)


@triton.jit
def _exp(x):
    """e^x to the last bit but one: tl.exp is less exact, and a silu that is rounded to bfloat16 would show it."""
    x = tl.minimum(tl.maximum(x, -_INFINITE), _INFINITE)
    whole = tl.floor(x * _LOG2_E)
    rest = tl.fma(x, _LOG2_E_REST, tl.fma(x, _LOG2_E, whole * -1.0))
    return tl.exp2(rest) * tl.exp2(whole)


@triton.jit
def silu(x):
    """x / (1 + e^-x), in float32."""
    return tl.div_rn(x, 1.0 + _exp(x * -1.0))


@triton.jit
def gate_rows(gate_up, out, f, F: tl.constexpr):
    """silu(gate) * up for F features of one row, the silu rounded first. Grid (b * n, f / F)."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * F + tl.arange(0, F)
    inside = columns < f
    gate = tl.load(gate_up + row * 2 * f + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * f + f + columns, mask=inside, other=0.0).to(tl.float32)
    opened = silu(gate).to(out.dtype.element_ty)
    tl.store(out + row * f + columns, (opened.to(tl.float32) * up).to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["n", "rows", "capacity"])
def turn_heads(
    qkv, table, positions, keys, values, slots, n, rows, capacity,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr,
    GIVEN: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    """Turns queries and keys of HEADS heads of one position where they are, and stores keys and values.

    Grid (b * n, heads / HEADS), of queries and keys, and values only if there is a store. `table` (2, rows, D).
    GIVEN: positions are read; keys and values with the position -1 are not stored.
    """
    token = tl.program_id(0)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    position = (token % n).to(tl.int64)
    known = True
    if GIVEN:
        position = tl.load(positions + token)
        known = position >= 0
        position = tl.maximum(position, 0)
    low = tl.arange(0, D // 2)
    turn = table + position * D + low
    cos_low, cos_high = tl.load(turn), tl.load(turn + D // 2)
    sin_low, sin_high = tl.load(turn + rows * D), tl.load(turn + rows * D + D // 2)
    at = qkv + (token.to(tl.int64) * (H + 2 * G) + head)[:, None] * D + low[None, :]
    there = (head < H + 2 * G)[:, None]
    x_low = tl.load(at, mask=there, other=0.0)
    x_high = tl.load(at + D // 2, mask=there, other=0.0)
    wide_low, wide_high = x_low.to(tl.float32), x_high.to(tl.float32)
    turned_low = tl.fma(wide_high, sin_low[None, :], wide_low * cos_low[None, :]).to(x_low.dtype)
    turned_high = tl.fma(wide_low, sin_high[None, :], wide_high * cos_high[None, :]).to(x_low.dtype)
    turning = (head < H + G)[:, None]
    tl.store(at, turned_low, mask=turning)
    tl.store(at + D // 2, turned_high, mask=turning)
    if STORE:
        is_key = (known & (head >= H) & (head < H + G))[:, None]
        is_value = (known & (head >= H + G) & (head < H + 2 * G))[:, None]
        row = tl.load(slots + token // n) * G
        into = ((row + head - H) * capacity + position)[:, None] * D + low[None, :]
        tl.store(keys + into, turned_low, mask=is_key)
        tl.store(keys + into + D // 2, turned_high, mask=is_key)
        into -= G * capacity.to(tl.int64) * D
        tl.store(values + into, x_low, mask=is_value)
        tl.store(values + into + D // 2, x_high, mask=is_value)


def fits(model: Transformer) -> bool:
    """Whether kernels take the model's dtype and the width of its heads."""
    width = model.shape.head_width
    return width >= 16 and width.bit_count() == 1 and model.dtype in _DTYPES


def layer_ops(model: Transformer) -> LayerOps:
    return KernelOps() if fits(model) else LayerOps()


class KernelOps(LayerOps):
    """Products by the layer's modules, of any class; the operations between them by kernels."""

    def add_norm(self, x: Tensor, update: Tensor | None, norm: RMSNorm) -> tuple[Tensor, Tensor]:
        """An update may come in parts, (parts, b, q, w). They are added in their order, and the sum is rounded."""
        x, w = x.contiguous(), x.shape[-1]
        total = x if update is None else torch.empty_like(x)
        normed = torch.empty_like(x)
        updates = x if update is None else update.contiguous()
        parts = 0 if update is None or not x.numel() else update.numel() // x.numel()
        width = next_power(w)
        options = {"PARTS": parts, "W": width, "num_warps": min(8, max(1, width // 256))}
        launch(add_norm_rows, (x.numel() // w,), x, updates, norm.weight, total, normed, w, norm.eps, **options)
        return total, normed

    @staticmethod
    def turn_and_store(
        qkv: Tensor, table: Tensor, positions: Tensor | None, n_heads: int, n_kv_heads: int, store: Store | None
    ) -> None:
        """Positions are below the store's capacity. A position of -1 is not stored.

        Two rows may share a slot only if they are the same.
        """
        b, n, _ = qkv.shape
        _, turns, d = table.shape
        keys, values, slots = (qkv, qkv, qkv) if store is None else store
        heads, at_a_time = n_heads + n_kv_heads * (1 if store is None else 2), 16
        grid = b * n, -(-heads // at_a_time)
        tensors = qkv, table, qkv if positions is None else positions.contiguous(), keys, values, slots
        capacity = 0 if store is None else keys.shape[2]
        constants = {"H": n_heads, "G": n_kv_heads, "D": d, "HEADS": at_a_time, "num_warps": 4}
        constants |= {"GIVEN": positions is not None, "STORE": store is not None}
        launch(turn_heads, grid, *tensors, n, turns, capacity, **constants)

    def gated(self, linear: nn.Module, normed: Tensor) -> Tensor:
        # A plain layer is known by its weight alone. The kernel calls neither the module nor its hooks.
        by_weight = type(linear) is nn.Linear and linear.bias is None
        if by_weight and wide.serves(normed, linear.weight):
            return wide.gated(normed, linear.weight)
        return gate(linear(normed))


def gate(gate_up: Float[Tensor, "b n both"]) -> Float[Tensor, "b n f"]:
    """silu of the first half of the features, times the second half."""
    gate_up, f = gate_up.contiguous(), gate_up.shape[-1] // 2
    out, size = gate_up.new_empty(*gate_up.shape[:2], f), min(1024, next_power(f))
    grid = out.numel() // f, -(-f // size)
    launch(gate_rows, grid, gate_up, out, f, F=size, num_warps=4)
    return out
