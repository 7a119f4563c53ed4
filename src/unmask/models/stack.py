"""The layers of the bidirectional transformer behind every family we run, one after the other.

RMSNorm, rotary positions, grouped heads, SwiGLU. Which positions are computed, and what they attend to, is the
caller's: see transformer.py. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.models import fused, plain
from unmask.models.base import ModelSpec
from unmask.models.graphed import Graphed
from unmask.models.layers import Block, RMSNorm, TransformerShape
from unmask.models.rotary import Rotary
from unmask.models.steps import JointSteps, Steps


class Stack(Graphed):
    """Embedding, layers and head, with the weights of a checkpoint."""

    def __init__(self, shape: TransformerShape, spec: ModelSpec) -> None:
        super().__init__()
        self.shape = shape
        self.spec = spec
        self.embedding = nn.Embedding(shape.vocab_size, shape.width)
        self.rotary = Rotary(shape.head_width, shape.rope_theta)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.n_layers))
        self.norm = RMSNorm(shape.width, shape.norm_eps)
        self.head = None if shape.tied else nn.Linear(shape.width, shape.vocab_size, bias=False)

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype

    def _run(
        self,
        tokens: Int[Tensor, "b q"],
        mix: Callable[[int, Callable[..., Tensor]], Tensor],
        *,
        cached: bool = False,
        pick: Callable[[Tensor], Tensor] | None = None,
    ) -> Float[Tensor, "_b k w"]:
        """States after the last norm.

        `mix` is given a layer and how to have its queries, keys and values (see steps.py), and gives what they attend
        to. `cached`: it reads the keys and values from a cache. `pick`: in the last layer it gives that for some rows
        only, since nobody looks at the others behind it; this picks them.
        """
        x, update = self.embedding(tokens), None
        steps = self._steps(x, cached=cached)
        for layer, block in enumerate(self._blocks()):
            x, normed = steps.add_norm(x, update, block.attention_norm.weight, block.attention_norm.eps)
            mixed = mix(layer, partial(steps.project, block.attention.qkv, normed))
            x = pick(x) if pick is not None and layer == len(self.blocks) - 1 else x
            update = steps.update(block.attention.out, mixed)
            x, normed = steps.add_norm(x, update, block.mlp_norm.weight, block.mlp_norm.eps)
            update = steps.update(block.down, steps.gated(block.gate_up, normed))
        return steps.add_norm(x, update, self.norm.weight, self.norm.eps)[1]

    def _steps(self, x: Float[Tensor, "b q w"], *, cached: bool) -> Steps | JointSteps:
        if not self._fused:
            return Steps(plain)
        return JointSteps() if cached and fused.few(x) and self._plain_products else Steps(fused)

    @property
    def _fused(self) -> bool:
        """Whether kernels run on this device, and with heads of this width."""
        width = self.shape.head_width
        return width >= 16 and width.bit_count() == 1 and fused.available(self.embedding.weight)

    @property
    def _plain_products(self) -> bool:
        """Whether the layers' products are what their weights say: quantised ones, and other people's, are not."""
        products = ((b.attention.qkv, b.attention.out, b.gate_up, b.down) for b in self._blocks())
        return all(type(product) is nn.Linear for layer in products for product in layer)

    def _blocks(self) -> Iterator[Block]:
        yield from self.blocks  # ty: ignore[invalid-yield]

    def _head(self, states: Float[Tensor, "b k w"]) -> Float[Tensor, "b k v"]:
        return F.linear(states, self.embedding.weight if self.head is None else self.head.weight)
