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

from unmask.cache.storage import KVCache
from unmask.device import fast_module
from unmask.errors import UnmaskError
from unmask.models.attention import Attend, Packed, Packing, Padded, first_keys, picked, shadow_mask, visible_mask
from unmask.models.base import Capabilities, ModelSpec, PassInputs, Prediction
from unmask.models.layers import Block, LayerOps, RMSNorm, TransformerShape, rotary_table

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
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.n_layers))
        self.norm = RMSNorm(shape.width, shape.norm_eps)
        self.head = None if shape.tied else nn.Linear(shape.width, shape.vocab_size, bias=False)
        # Rotary tables, which a captured graph may read, and what models/kernels keeps; emptied when the weights move.
        self.fast: dict[str, Any] = {}

    @property
    def device(self) -> torch.device:
        return self.embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.weight.dtype

    def predict(self, tokens: Int[Tensor, "b n"], *, block_size: int | None = None, **asked: Any) -> Prediction:
        block_size = (block_size or self.spec.block_size) if self.spec.causal else None
        inputs = PassInputs.of(tokens, block_size=block_size, **asked)
        self._check(inputs)
        if inputs.attention_layers is not None or inputs.shadow is not None:
            return self._predict_more(inputs)
        if inputs.cache is not None:
            shape = self.shape
            sizes = {"n_layers": shape.n_layers, "heads": shape.n_kv_heads, "width": shape.head_width}
            inputs.cache.storage.allocate(**sizes, like=self.embedding.weight)
        kernels = fast_module("unmask.models.kernels.passes", self.device)
        if kernels is not None and kernels.runs(self):
            return kernels.predict(self, inputs)
        return self.predict_plainly(inputs)

    def predict_plainly(self, inputs: PassInputs) -> Prediction:
        """A pass without kernels. Rows that differ much in size are packed, since padding would cost more."""
        plan, cache, length = inputs.plan, inputs.cache, inputs.length
        seen = None if plan.self_contained else cache
        slots = None if cache is None else cache.index
        packs = sum(plan.sizes) <= _WORTH_PACKING * plan.padded
        packing = Packing.of(plan.spans, sum(plan.sizes), self.device) if packs else None
        if packing is not None:
            tokens, positions = packing.packed(inputs.tokens), packing.position[:, None]
            slots = None if slots is None else slots[packing.row]
            attend = Packed(self.shape, plan, seen, block_size=inputs.block_size)
            feeding = packing.places((plan.positions if inputs.at is None else inputs.at) - self.shift)
        else:
            mask = visible_mask(plan, length, block_size=inputs.block_size)
            attend = Padded(self.shape, mask, None if seen is None else (seen.storage, seen.rows()), length)
            positions = None if plan.self_contained else plan.positions
            tokens = inputs.tokens[:, :length] if positions is None else inputs.tokens.gather(1, positions)
            feeding = self.feeding(inputs.at, positions, tokens.shape)
        kept = None if inputs.states else feeding
        found = self.forward(tokens, positions, attend, length=length, cache=cache, slots=slots, kept=kept)
        if not inputs.states:
            return Prediction(logits=self.logits_of(found))
        states = found if packing is None else picked(found, packing.places(plan.positions))
        return Prediction(logits=self.logits_of(picked(found, feeding)), states=states)

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
        mains = picked(states[:, :length], self.feeding(inputs.at, None, (len(tokens), length)))
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

        Keys and values are written to the cache, in these slots. Behind the attention of the last layer only the places
        `kept` are computed (None: all).
        """
        ops, table = ops or self._ops(), self._table(1 << (length - 1).bit_length())
        x, update = self.embedding(tokens), None
        for layer, block in enumerate(self.layers()):
            x, normed = ops.add_norm(x, update, block.attention_norm)
            store = None if cache is None or slots is None else (*cache.storage.layers[layer], slots)
            found = attend(layer, ops.project(block.attention, normed, table, positions, store))
            if layer == len(self.blocks) - 1:
                x, found = picked(x, kept), picked(found, kept)
            x, normed = ops.add_norm(x, ops.update(block.attention.out, found), block.mlp_norm)
            update = ops.update(block.down, ops.gated(block.gate_up, normed))
        return ops.add_norm(x, update, self.norm)[1]

    def logits_of(self, states: Float[Tensor, "b k w"]) -> Float[Tensor, "b k v"]:
        return F.linear(states, self.embedding.weight if self.head is None else self.head.weight)

    def feeding(
        self, at: Int[Tensor, "_b k"] | None, positions: Int[Tensor, "b q"] | None, shape: tuple[int, ...]
    ) -> Int[Tensor, "b k"] | None:
        """The places, in rows side by side, that predict the positions `at` (None: all that are computed).

        `positions` are those of the columns (None: 0, 1, 2, ...). The answer None stands for every place.
        """
        if at is None and not self.shift:
            return None
        rows, width = shape
        columns = torch.arange(width, device=self.device) if at is None else at
        if at is not None and positions is not None:
            columns = at - positions[:, :1]
        before = width * torch.arange(rows, device=self.device)[:, None]
        return before + (columns - self.shift).clamp(0, width - 1)

    def layers(self) -> Iterator[Block]:
        yield from self.blocks  # ty: ignore[invalid-yield]

    def _ops(self) -> LayerOps:
        kernels = fast_module("unmask.models.kernels.ops", self.device)
        return LayerOps() if kernels is None else kernels.layer_ops(self)

    def _table(self, length: int) -> Float[Tensor, "2 n d"]:
        """The rotary table of that many positions; to all threads the same."""
        name = f"rotary {length}"
        if (table := self.fast.get(name)) is None:
            made = rotary_table(self.shape.head_width, self.shape.rope_theta, length, self.device)
            table = self.fast.setdefault(name, made)
        return table

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
