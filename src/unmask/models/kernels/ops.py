"""The operations of `models/layers.py` on a CUDA device, by kernels."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.models.kernels import fused, wide
from unmask.models.layers import Attention, LayerOps, RMSNorm, Store
from unmask.models.transformer import Transformer

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def fits(model: Transformer) -> bool:
    """Whether kernels take the model's dtype and the width of its heads."""
    width = model.shape.head_width
    return width >= 16 and width.bit_count() == 1 and model.dtype in _DTYPES


def layer_ops(model: Transformer) -> LayerOps:
    return KernelOps() if fits(model) else LayerOps()


def few_rows_ops(model: Transformer, positions: int) -> LayerOps:
    """The operations for a pass over so many positions whose keys are read from a cache."""
    joint = fused.few(positions, model.dtype) and not model.shape.qk_norm and _plain_products(model)
    return JointOps() if joint else KernelOps()


def _plain_products(model: Transformer) -> bool:
    """Whether all products are by plain `nn.Linear` layers. Quantised layers, for one, compute their own."""
    products = ((b.attention.qkv, b.attention.out, b.gate_up, b.down) for b in model.layers())
    return all(type(product) is nn.Linear for layer in products for product in layer)


class KernelOps(LayerOps):
    """Products by the layer's modules, of any class; the operations between them by kernels."""

    def add_norm(self, x: Tensor, update: Tensor | None, norm: RMSNorm) -> tuple[Tensor, Tensor]:
        return fused.add_norm(x, update, norm.weight, norm.eps)

    turn_and_store = staticmethod(fused.turn_and_store)

    def gated(self, linear: nn.Module, normed: Float[Tensor, "b q w"]) -> Float[Tensor, "b q f"]:
        # A plain layer is known by its weight alone. The kernel calls neither the module nor its hooks.
        by_weight = type(linear) is nn.Linear and linear.bias is None
        if by_weight and wide.serves(normed, linear.weight):
            return wide.gated(normed, linear.weight)
        return fused.gate(linear(normed))


class JointOps(KernelOps):
    """A product and the operation that follows it in one kernel, for a few rows whose keys are read from a cache.

    Modules are of the type `nn.Linear`. Only that of `project` may have a bias. The result of `project` holds queries
    only; keys and values are in the store.
    """

    def project(
        self,
        attention: Attention,
        normed: Float[Tensor, "b q w"],
        table: Float[Tensor, "2 _ d"],
        positions: Int[Tensor, "b q"] | None,
        store: Store | None,
    ) -> Float[Tensor, "b q heads"]:
        assert positions is not None
        assert store is not None
        weight, bias = attention.qkv.weight, attention.qkv.bias
        heads = attention.n_heads, attention.n_kv_heads
        return fused.project_turn_store(normed, weight, bias, table, positions, *heads, store)

    def gated(self, linear: nn.Module, normed: Float[Tensor, "b q w"]) -> Float[Tensor, "b q f"]:
        assert isinstance(linear, nn.Linear)
        return fused.gated(normed, linear.weight)

    def update(self, linear: nn.Module, x: Float[Tensor, "b q k"]) -> Float[Tensor, "parts b q w"]:
        assert isinstance(linear, nn.Linear)
        return fused.partial_product(x, linear.weight)
