"""The bidirectional transformer behind every family we run: embedding, layers, head, and one pass over them.

Knows tensors and positions only. What a checkpoint calls its weights is said in the family's file; which positions to
compute is the plan's; who sees whom is in attention.py. On CUDA devices `models/kernels` runs the same passes faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from unmask.cache.base import PassPlan
from unmask.cache.storage import KVCache
from unmask.device import fast_module
from unmask.errors import UnmaskError
from unmask.models.attention import Attend, Cached, Packed, Together, picked, shadow_mask, visible_mask
from unmask.models.base import Capabilities, ModelSpec, Prediction
from unmask.models.layers import Block, LayerOps, RMSNorm, TransformerShape
from unmask.models.packing import Packing
from unmask.models.rotary import Rotary

# The share of positions, padding included, above which padding costs less than doing without it.
_WORTH_PACKING = 0.9


class Transformer(nn.Module):
    """A MaskedLM; see base.py for what `predict` promises."""

    capabilities: ClassVar[Capabilities] = Capabilities(attention=True, shadow=True, states=True)

    def __init__(self, shape: TransformerShape, spec: ModelSpec) -> None:
        super().__init__()
        self.shape = shape
        self.spec = spec
        self.shift = int(spec.shifted)  # how far before a position the state stands that predicts it
        self.embedding = nn.Embedding(shape.vocab_size, shape.width)
        self.rotary = Rotary(shape.head_width, shape.rope_theta)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.n_layers))
        self.norm = RMSNorm(shape.width, shape.norm_eps)
        self.head = None if shape.tied else nn.Linear(shape.width, shape.vocab_size, bias=False)
        self.fast: dict[str, Any] = {}  # what models/kernels keeps for these weights; void when they move

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype

    def predict(
        self,
        tokens: Int[Tensor, "b n"],
        *,
        plan: PassPlan | None = None,
        at: Int[Tensor, "b k"] | None = None,
        cache: KVCache | None = None,
        block_size: int | None = None,
        attention_layers: range | None = None,
        shadow: Int[Tensor, "b s"] | None = None,
        states: bool = False,
    ) -> Prediction:
        plan = plan or PassPlan.whole([tokens.shape[1]] * len(tokens), self.device)
        block_size = (block_size or self.spec.block_size) if self.spec.causal else None
        tokens = tokens[:, : max(plan.seen)]
        self._check(plan, cache, attention_layers, shadow)
        if attention_layers is not None or shadow is not None:
            return self._predict_more(tokens, plan, at, block_size, attention_layers or range(0), shadow)
        if cache is not None:
            self._make_room(cache)
        kernels = fast_module("unmask.models.kernels.passes", self.device)
        if kernels is not None and kernels.runs(self):
            return kernels.passes_of(self).predict(tokens, plan, at, cache, block_size, states=states)
        return self.predict_plainly(tokens, plan, at, cache, block_size, states=states)

    def predict_plainly(
        self,
        tokens: Int[Tensor, "b n"],
        plan: PassPlan,
        at: Int[Tensor, "b k"] | None,
        cache: KVCache | None,
        block_size: int | None,
        *,
        states: bool = False,
    ) -> Prediction:
        """`predict` without captured passes."""
        tokens = tokens
        if sum(plan.sizes) <= _WORTH_PACKING * plan.padded:
            return self._predict_packed(tokens, plan, at, cache, block_size, states=states)
        return self._predict_padded(tokens, plan, at, cache, block_size, states=states)

    def _predict_padded(
        self,
        tokens: Int[Tensor, "b n"],
        plan: PassPlan,
        at: Int[Tensor, "b k"] | None,
        cache: KVCache | None,
        block_size: int | None,
        *,
        states: bool,
    ) -> Prediction:
        """Rows side by side, each as wide as the widest span."""
        length = tokens.shape[1]
        mask = visible_mask(plan, length, block_size=block_size)
        if plan.is_whole:
            positions, attend = None, Together(self.shape, mask)
        else:
            assert cache is not None
            positions, attend = plan.positions, Cached(self.shape, cache, mask, length)
            tokens = tokens.gather(1, positions)
        columns = self.feeding(at, plan, tokens.shape[1])
        kept = None if states else columns
        found = self.forward(tokens, positions, attend, length=length, cache=cache, kept=kept)
        logits = self.logits_of(attend.pick(found, columns) if kept is None and columns is not None else found)
        return Prediction(logits=logits, states=found if states else None)

    def _predict_packed(
        self,
        tokens: Int[Tensor, "b n"],
        plan: PassPlan,
        at: Int[Tensor, "b k"] | None,
        cache: KVCache | None,
        block_size: int | None,
        *,
        states: bool,
    ) -> Prediction:
        """Rows one behind the other."""
        packing = Packing.of(plan.spans, sum(plan.sizes), self.device)
        attend = Packed(self.shape, plan, None if plan.is_whole else cache, block_size=block_size)
        slots = None if cache is None else cache.index[packing.row]
        kept = None if states or at is None else packing.places(at - self.shift)
        inputs = packing.packed(tokens), packing.position[:, None]
        found = self.forward(*inputs, attend, length=max(plan.seen), cache=cache, slots=slots, kept=kept)
        if kept is not None:
            return Prediction(logits=self.logits_of(found))
        width = tokens.shape[1] if plan.is_whole else max(plan.sizes)
        found = packing.unpacked(found, width)
        return Prediction(logits=self.logits_of(picked(found, self.feeding(at, plan, width))), states=found)

    def _predict_more(
        self,
        tokens: Int[Tensor, "b n"],
        plan: PassPlan,
        at: Int[Tensor, "b k"] | None,
        block_size: int | None,
        watched: range,
        shadow: Int[Tensor, "b s"] | None,
    ) -> Prediction:
        """Predictions with attention maps or shadows."""
        length, positions, shadows = tokens.shape[1], None, 0
        mask = visible = visible_mask(plan, length, block_size=block_size)
        if shadow is not None:
            shadows = shadow.shape[1]
            mask = shadow_mask(shadow, visible, length)
            positions = torch.cat([torch.arange(length, device=self.device).expand(len(tokens), -1), shadow], dim=1)
            tokens = torch.cat([tokens, torch.full_like(shadow, self.spec.mask_id)], dim=1)
        attend = Together(self.shape, mask, watched=watched)
        states = self.forward(tokens, positions, attend, length=length)
        mains = picked(states[:, :length], self.feeding(at, plan, length))
        # One product with the head for both kinds of rows: its weights are by far the largest to read.
        logits = self.logits_of(torch.cat([mains, states[:, length:]], dim=1))
        main_logits, shadow_logits = logits.split([logits.shape[1] - shadows, shadows], dim=1)
        attention = torch.stack(attend.maps).mean(0)[:, :length, :length] if attend.maps else None
        if attention is not None:  # keys behind the end of a row have no weight already; queries there get none either
            attention = attention * (torch.arange(length, device=self.device) < plan.visible[:, None])[..., None]
        return Prediction(logits=main_logits, attention=attention, shadow_logits=shadow_logits if shadows else None)

    def forward(
        self,
        tokens: Int[Tensor, "b q"],
        positions: Int[Tensor, "b q"] | None,
        attend: Attend,
        *,
        length: int,
        cache: KVCache | None = None,
        slots: Int[Tensor, " b"] | None = None,
        kept: Int[Tensor, "_b k"] | None = None,
        ops: LayerOps | None = None,
    ) -> Float[Tensor, "_b k w"]:
        """States after the last norm of tokens at these positions (None: 0, 1, 2, ...), all of them below `length`.

        Keys and values are written to the cache, in these slots (None: its own). Behind the attention of the last layer
        only the positions `kept` are computed (None: all).
        """
        ops, table = ops or self._ops(), self.rotary(length, device=self.device)
        layers = None if cache is None else cache.storage.layers
        slots = cache.index if slots is None and cache is not None else slots
        x, update = self.embedding(tokens), None
        for layer, block in enumerate(self.layers()):
            x, normed = ops.add_norm(x, update, block.attention_norm)
            store = None if layers is None or slots is None else (*layers[layer], slots)
            qkv = ops.project(block.attention, normed, table, positions, store)
            rows = kept if layer == len(self.blocks) - 1 else None
            x = x if rows is None else attend.pick(x, rows)
            update = ops.update(block.attention.out, attend(layer, qkv, rows))
            x, normed = ops.add_norm(x, update, block.mlp_norm)
            update = ops.update(block.down, ops.gated(block.gate_up, normed))
        return ops.add_norm(x, update, self.norm)[1]

    def logits_of(self, states: Float[Tensor, "b k w"]) -> Float[Tensor, "b k v"]:
        return F.linear(states, self.embedding.weight if self.head is None else self.head.weight)

    def feeding(self, at: Int[Tensor, "b k"] | None, plan: PassPlan, width: int) -> Int[Tensor, "_b k"] | None:
        """Which of `width` computed columns predict the positions `at`: the head is worth its cost only there.

        None: all of them.
        """
        if at is None and not self.spec.shifted:
            return None
        column = torch.arange(width, device=self.device)[None] if at is None else plan.columns_of(at)
        return (column - self.shift).clamp(0, width - 1)

    def layers(self) -> Iterator[Block]:
        yield from self.blocks  # ty: ignore[invalid-yield]

    def _ops(self) -> LayerOps:
        kernels = fast_module("unmask.models.kernels.ops", self.device)
        return LayerOps() if kernels is None else kernels.layer_ops(self)

    def _make_room(self, cache: KVCache) -> None:
        shape = self.shape
        sizes = {"n_layers": shape.n_layers, "heads": shape.n_kv_heads, "width": shape.head_width}
        cache.storage.allocate(**sizes, like=self.embedding.weight)

    def _check(
        self, plan: PassPlan, cache: KVCache | None, attention_layers: range | None, shadow: Tensor | None
    ) -> None:
        """Refuse, in one line, a prediction that has no meaning."""
        spec = self.spec
        if cache is not None and attention_layers is not None:
            raise UnmaskError("attention maps need the whole canvas: they cannot be had with a cache")
        if cache is not None and shadow is not None:
            raise UnmaskError("shadow predictions need the whole canvas: they cannot be had with a cache")
        if cache is None and not plan.is_whole:
            raise UnmaskError("a pass over part of a canvas needs a cache that a whole pass has filled")
        if shadow is not None and (spec.shifted or spec.causal):
            reason = "predicts a position from the one before it" if spec.shifted else "sees only what lies before"
            raise UnmaskError(f"{spec.family} {reason}, so it has no shadow predictions")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Transformer:
        self.fast = {}
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"fast": {}}
