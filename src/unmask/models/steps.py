"""The steps of a layer: its matrix products, each with what follows it."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.cache.kv import Layer
from unmask.models import fused, wide


class Steps:
    """Products by the layer's modules, whatever these are; what follows by `plain` or `fused`.

    With `fused`, a gated product of many rows is one step where `wide` serves.
    """

    def __init__(self, ops: Any) -> None:
        self.add_norm = ops.add_norm
        self._ops = ops

    def project(
        self,
        linear: nn.Module,
        normed: Float[Tensor, "b n w"],
        table: Float[Tensor, "2 _ d"],
        positions: Int[Tensor, "b n"] | None,
        n_heads: int,
        n_kv_heads: int,
        store: tuple[*Layer, Int[Tensor, " b"]] | None,
    ) -> Float[Tensor, "b n heads"]:
        """Queries, keys and values, turned, and copied to the rows' places in a cache."""
        qkv = linear(normed)
        self._ops.turn_and_store(qkv, table, positions, n_heads, n_kv_heads, store)
        return qkv

    def gated(self, linear: nn.Module, normed: Float[Tensor, "b n w"]) -> Float[Tensor, "b n f"]:
        """SiLU of the first half of the product times the second."""
        # Quantised layers are of other types. The module itself is not called, nor what somebody has hooked to it.
        by_weight = self._ops is fused and type(linear) is nn.Linear and linear.bias is None
        if by_weight and wide.serves(normed, linear.weight):
            return wide.gated(normed, linear.weight)
        return self._ops.gate(linear(normed))

    def update(self, linear: nn.Module, x: Float[Tensor, "b n k"]) -> Float[Tensor, "*parts b n w"]:
        """The product, as `add_norm` takes it."""
        return linear(x)


class JointSteps:
    """A product and what follows it at once: for a few rows at given positions, whose keys are read from a cache.

    Modules are of the type `nn.Linear`, and only that of `project` may have a bias.
    """

    add_norm = staticmethod(fused.add_norm)

    def project(
        self,
        linear: nn.Linear,
        normed: Float[Tensor, "b n w"],
        table: Float[Tensor, "2 _ d"],
        positions: Int[Tensor, "b n"],
        n_heads: int,
        n_kv_heads: int,
        store: tuple[*Layer, Int[Tensor, " b"]],
    ) -> Float[Tensor, "b n heads"]:
        """Queries, turned; keys and values are in the cache only."""
        return fused.project_turn_store(
            normed, linear.weight, linear.bias, table, positions, n_heads, n_kv_heads, store
        )

    def gated(self, linear: nn.Linear, normed: Float[Tensor, "b n w"]) -> Float[Tensor, "b n f"]:
        return fused.gated(normed, linear.weight)

    def update(self, linear: nn.Linear, x: Float[Tensor, "b n k"]) -> Float[Tensor, "parts b n w"]:
        return fused.partial_product(x, linear.weight)
