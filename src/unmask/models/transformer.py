"""The transformer behind every family we run: embedding, layers, head, and one pass over them.

Knows tensors and positions only. A family's file says what its checkpoints call the weights. The plan says which
positions to compute. attention.py says which keys they see. On CUDA devices `models/kernels` runs the same passes
faster.
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
from unmask.models.attention import Attend, Packed, Packing, Padded, first_keys, picked, shadow_mask, visible_mask
from unmask.models.base import Capabilities, ModelSpec, PassInputs, Prediction
from unmask.models.layers import Block, LayerOps, RMSNorm, Rotary, TransformerShape

# Padding costs less than packing where the positions to compute are more than this share of the padded ones.
_WORTH_PACKING = 0.9


class Transformer(nn.Module):
    """A MaskedLM; see base.py for what `predict` promises."""

    capabilities: ClassVar[Capabilities] = Capabilities(attention=True, shadow=True, states=True)

    def __init__(self, shape: TransformerShape, spec: ModelSpec) -> None:
        super().__init__()
        self.shape = shape
        self.spec = spec
        self.shift = int(spec.shifted)  # the state that predicts a position stands this far before it
        self.embedding = nn.Embedding(shape.vocab_size, shape.width)
        self.rotary = Rotary(shape.head_width, shape.rope_theta)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.n_layers))
        self.norm = RMSNorm(shape.width, shape.norm_eps)
        self.head = None if shape.tied else nn.Linear(shape.width, shape.vocab_size, bias=False)
        self.fast: dict[str, Any] = {}  # what models/kernels keeps for these weights; emptied when they move

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
        inputs = PassInputs(
            tokens=tokens,
            plan=plan or PassPlan.whole([tokens.shape[1]] * len(tokens), self.device),
            at=at,
            cache=cache,
            block_size=(block_size or self.spec.block_size) if self.spec.causal else None,
            attention_layers=attention_layers,
            shadow=shadow,
            states=states,
        )
        self._check(inputs)
        if attention_layers is not None or shadow is not None:
            return self._predict_more(inputs)
        if cache is not None:
            self._make_room(cache)
        kernels = fast_module("unmask.models.kernels.passes", self.device)
        if kernels is not None and kernels.runs(self):
            return kernels.passes_of(self).predict(inputs)
        return self.predict_plainly(inputs)

    def predict_plainly(self, inputs: PassInputs) -> Prediction:
        """A pass without kernels. Rows that differ much in size are packed, since padding would cost more."""
        plan = inputs.plan
        packs = sum(plan.sizes) <= _WORTH_PACKING * plan.padded
        return self._predict_packed(inputs) if packs else self._predict_padded(inputs)

    def _predict_padded(self, inputs: PassInputs) -> Prediction:
        """Rows side by side, each as wide as the widest span."""
        plan, cache, length = inputs.plan, inputs.cache, inputs.length
        mask = visible_mask(plan, length, block_size=inputs.block_size)
        if plan.self_contained:
            tokens, positions, attend = inputs.tokens[:, :length], None, Padded(self.shape, mask)
        else:
            positions = plan.positions
            tokens, attend = inputs.tokens.gather(1, positions), Padded(self.shape, mask, cache=cache, length=length)
        kept = None if inputs.states else self.feeding(inputs.at, positions, tokens.shape[1])
        found = self.forward(tokens, positions, attend, length=length, cache=cache, kept=kept)
        return self.prediction_of(found, inputs, chosen=kept is not None)

    def _predict_packed(self, inputs: PassInputs) -> Prediction:
        """Rows one behind the other."""
        plan, cache = inputs.plan, inputs.cache
        packing = Packing.of(plan.spans, sum(plan.sizes), self.device)
        attend = Packed(self.shape, plan, None if plan.self_contained else cache, block_size=inputs.block_size)
        slots = None if cache is None else cache.index[packing.row]
        kept = None if inputs.states or inputs.at is None else packing.places(inputs.at - self.shift)
        tokens, positions = packing.packed(inputs.tokens), packing.position[:, None]
        found = self.forward(tokens, positions, attend, length=inputs.length, cache=cache, slots=slots, kept=kept)
        found = packing.unpacked(found, max(plan.sizes)) if kept is None else found
        return self.prediction_of(found, inputs, chosen=kept is not None)

    def _predict_more(self, inputs: PassInputs) -> Prediction:
        """Predictions with attention maps or shadows, over whole canvases."""
        tokens, shadow, length, positions = inputs.tokens[:, : inputs.length], inputs.shadow, inputs.length, None
        mask = visible = visible_mask(inputs.plan, length, block_size=inputs.block_size)
        shadows = 0 if shadow is None else shadow.shape[1]
        if shadow is not None:
            mask = shadow_mask(shadow, visible, length)
            positions = torch.cat([torch.arange(length, device=self.device).expand(len(tokens), -1), shadow], dim=1)
            tokens = torch.cat([tokens, torch.full_like(shadow, self.spec.mask_id)], dim=1)
        attend = Padded(self.shape, mask, watched=inputs.attention_layers or range(0))
        states = self.forward(tokens, positions, attend, length=length)
        mains = picked(states[:, :length], self.feeding(inputs.at, None, length))
        # One product with the head for both kinds of rows: its weights are by far the largest to read.
        logits = self.logits_of(torch.cat([mains, states[:, length:]], dim=1))
        main_logits, shadow_logits = logits.split([mains.shape[1], shadows], dim=1)
        attention = torch.stack(attend.maps).mean(0)[:, :length, :length] if attend.maps else None
        if attention is not None:  # queries behind the end of a row get no weight; the mask has excluded keys there
            attention = attention * first_keys(inputs.plan.visible, length)[:, 0].mT
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

        Keys and values are written to the cache, in these slots (None: the cache's). The last layer computes its
        attention and what follows for the positions `kept` only (None: all).
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

    def prediction_of(self, states: Float[Tensor, "b q w"], inputs: PassInputs, *, chosen: bool) -> Prediction:
        """The prediction from the states of all computed positions or, if `chosen`, of those feeding the head."""
        if chosen:
            return Prediction(logits=self.logits_of(states))
        positions = None if inputs.plan.self_contained else inputs.plan.positions
        logits = self.read_out(states, inputs.at, positions)
        return Prediction(logits=logits, states=states if inputs.states else None)

    def read_out(
        self, states: Float[Tensor, "b q w"], at: Int[Tensor, "b k"] | None, positions: Int[Tensor, "b q"] | None
    ) -> Float[Tensor, "b k v"]:
        """Logits for the positions `at` from the states of all computed positions."""
        return self.logits_of(picked(states, self.feeding(at, positions, states.shape[1])))

    def feeding(
        self, at: Int[Tensor, "b k"] | None, positions: Int[Tensor, "b q"] | None, width: int
    ) -> Int[Tensor, "_b k"] | None:
        """Which of `width` computed columns predict the positions `at` (None: all that are computed).

        `positions` are those of the columns (None: 0, 1, 2, ...). The answer None stands for every column.
        """
        if at is None and not self.shift:
            return None
        column = torch.arange(width, device=self.device)[None] if at is None else at
        if at is not None and positions is not None:
            column = at - positions[:, :1]
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

    def _check(self, inputs: PassInputs) -> None:
        """Refuse, in one line, a prediction that has no meaning."""
        if inputs.cache is not None and (inputs.attention_layers is not None or inputs.shadow is not None):
            raise UnmaskError("attention maps and shadow predictions need the whole canvas: they go with no cache")
        if inputs.cache is None and not inputs.plan.self_contained:
            raise UnmaskError("a pass over part of a canvas needs a cache that a whole pass has filled")
        if inputs.shadow is not None and self.spec.shifted:
            reason = "predicts a position from the one before it"
            raise UnmaskError(f"{self.spec.family} {reason}, so it has no shadow predictions")

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Transformer:
        self.fast = {}
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"fast": {}}
