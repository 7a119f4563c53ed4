"""The passes of a transformer: over whole canvases, over parts of them, and over parts of one size or another at once.

Knows tensors and positions only; what a checkpoint calls its weights is said in the family's file, and which positions
to compute is decided by the engine. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.cache.kv import KVCache, Layer, Storage
from unmask.models import fused, plain
from unmask.models.base import ModelSpec, Prediction, check_request
from unmask.models.layers import TransformerShape
from unmask.models.packing import CAPTURED, Packing, is_worth_packing, known_lengths, known_spans, rounded
from unmask.models.stack import Stack
from unmask.models.transfer import on_device
from unmask.models.visibility import padding_mask, shadow_mask

# Beyond so many positions a pass keeps the device busy long enough for its launches not to show.
_GRAPHED = 16_384
# The lengths of the longest of packed rows, in steps.
_LENGTHS = 256
# Positions whose logits a graph may keep: 260 MB of LLaDA's.
_KEPT_LOGITS = 1024


class Transformer(Stack):
    """A MaskedLM (see base.py for what `predict` promises)."""

    packs = True

    def __init__(self, shape: TransformerShape, spec: ModelSpec) -> None:
        super().__init__(shape, spec)
        self._expected: set[tuple[int, int]] = set()  # rows and length of canvases that will come often

    def expect(self, rows: int, length: int) -> None:
        """Say that passes over so many whole canvases of that length will come often."""
        self._expected.add((rows, length))

    def predict(
        self,
        tokens: Int[Tensor, "b n"],
        *,
        lengths: Int[Tensor, " b"] | None = None,
        at: Int[Tensor, "b k"] | None = None,
        cache: KVCache | None = None,
        queries: Int[Tensor, "b q"] | None = None,
        attention_layers: range | None = None,
        shadow: Int[Tensor, "b s"] | None = None,
        states: bool = False,
    ) -> Prediction:
        check_request(self.spec, cache, queries, attention_layers, shadow)
        if shadow is not None or attention_layers is not None:
            return self._predict_more(tokens, lengths, at, attention_layers, shadow)
        given = {"lengths": lengths, "at": at, "cache": cache, "queries": queries}
        prediction = self.prepare(tokens, **given, states=states)()
        if prediction.fleeting:
            return replace(prediction, logits=prediction.logits.clone(), fleeting=False)
        return prediction

    def prepare(
        self,
        tokens: Int[Tensor, "b n"],
        *,
        lengths: Int[Tensor, " b"] | None = None,
        at: Int[Tensor, "b k"] | None = None,
        cache: KVCache | None = None,
        queries: Int[Tensor, "b q"] | None = None,
        states: bool = False,
    ) -> Callable[[], Prediction]:
        """`predict`, but for what can wait until it is known that the prediction is wanted.

        With `queries`, the logits may lie where the next pass over the same cache puts its own.
        """
        if queries is not None:
            assert cache is not None
            spans = known_spans(queries)
            if at is not None and spans is not None and self._is_worth_packing(spans, queries.numel()):
                width = queries.shape[1] if states else None
                ready = partial(self._span_pass, tokens, spans, cache, lengths, at, width)
            else:
                at = None if at is queries else at
                ready = self._part_pass(tokens, on_device(queries, self.device), cache, lengths, at)
        else:
            ready = partial(self._whole_pass, tokens, cache, lengths, at, states)

        # One at a time: what a graph leaves behind must have been picked up before it is replayed.
        alone = self.alone if self._fused else nullcontext()

        def predict() -> Prediction:
            with alone:
                return ready()

        return predict

    def _predict_more(
        self,
        tokens: Int[Tensor, "b n"],
        lengths: Int[Tensor, " b"] | None,
        at: Int[Tensor, "b k"] | None,
        attention_layers: range | None,
        shadow: Int[Tensor, "b s"] | None,
    ) -> Prediction:
        """Predictions with attention maps or shadows."""
        length = tokens.shape[1]
        visible = padding_mask(lengths, length, self.device)
        positions, seen, shadows = None, visible, 0
        if shadow is not None:
            shadows = shadow.shape[1]
            seen = shadow_mask(shadow, visible, length)
            own = torch.arange(length, device=self.device).expand(tokens.shape[0], -1)
            positions = torch.cat([own, shadow], dim=1)
            tokens = torch.cat([tokens, torch.full_like(shadow, self.spec.mask_id)], dim=1)
        states, attention = self._whole(tokens, positions, seen, watched=attention_layers or range(0))
        if attention is not None:
            attention = plain.without_padding(attention[:, :length, :length], visible)
        mains = plain.picked(states[:, : states.shape[1] - shadows], self._feeding(at, None, length))
        # One product with the head for both kinds of rows: its weights are by far the largest to read.
        logits = self._head(torch.cat([mains, states[:, -shadows:]], dim=1) if shadows else mains)
        main_logits, shadow_logits = logits.split([logits.shape[1] - shadows, shadows], dim=1)
        return Prediction(
            logits=main_logits,
            attention=attention,
            shadow_logits=shadow_logits if shadows else None,
            states=states[:, :length],
        )

    def _whole_pass(
        self,
        tokens: Int[Tensor, "b n"],
        cache: KVCache | None,
        lengths: Int[Tensor, " b"] | None,
        at: Int[Tensor, "b k"] | None,
        states: bool,
    ) -> Prediction:
        """A pass over every position; fills the cache."""
        storage = None if cache is None else cache.storage
        if storage is not None:
            shape = self.shape
            room = {"n_layers": shape.n_layers, "heads": shape.n_kv_heads, "width": shape.head_width}
            storage.allocate(**room, like=self.embedding.weight)
        layers, everything = None if storage is None else storage.layers, states or at is None
        places = None if cache is None else cache.places
        length, kept = tokens.shape[1], None if everything else self._feeding(at, None, tokens.shape[1])
        sizes = [length] * len(tokens) if lengths is None else known_lengths(lengths, length) or []
        spans = [(0, size) for size in sizes]
        if self._is_worth_packing(spans, tokens.numel()) or (spans and not self._is_planned(*tokens.shape)):
            found, packing = self._packed(tokens, spans, storage, places, kept)
            found = packing.unpacked(found, length) if kept is None else found
        else:
            full = spans and min(sizes) >= length
            lengths = None if full or lengths is None else on_device(lengths, self.device)
            given = _present(places=places, lengths=lengths, kept=kept)

            def whole(tokens: Tensor, *values: Tensor) -> tuple[Tensor]:
                here = dict(zip(given, values, strict=True))
                seen = padding_mask(here.get("lengths"), tokens.shape[1], self.device)
                places, kept = here.get("places"), here.get("kept")
                return (self._whole(tokens, None, seen, layers=layers, places=places, kept=kept)[0],)

            inputs = (tokens, *given.values())
            (found,) = self._run_whole(storage, tokens.numel(), _GRAPHED, whole, *inputs, kind=everything)
        rows = self._feeding(at, None, tokens.shape[1]) if everything else None
        return Prediction(logits=self._head(plain.picked(found, rows)), states=found if everything else None)

    def _span_pass(
        self,
        tokens: Int[Tensor, "b n"],
        spans: list[tuple[int, int]],
        cache: KVCache,
        lengths: Int[Tensor, " b"] | None,
        at: Int[Tensor, "b k"],
        width: int | None,
    ) -> Prediction:
        """`_part_pass` where rows differ in how much of them is computed: from where to where, the host knows.

        With `width`, states are told too, so many for each row.
        """
        rows = self._feeding(at, None, tokens.shape[1])
        assert rows is not None
        lengths = torch.full_like(cache.places, tokens.shape[1]) if lengths is None else lengths
        kept = rows if width is None else None
        found, packing = self._packed(tokens, spans, cache.storage, cache.places, kept, seen=lengths)
        if width is None:
            return Prediction(logits=self._head(found))
        found = packing.unpacked(found, width)
        return Prediction(logits=self._head(plain.picked(found, packing.columns(rows))), states=found)

    def _packed(
        self,
        tokens: Int[Tensor, "b n"],
        spans: list[tuple[int, int]],
        storage: Storage | None,
        places: Int[Tensor, " b"] | None,
        kept: Int[Tensor, "b k"] | None,
        *,
        seen: Int[Tensor, " b"] | None = None,
    ) -> tuple[Float[Tensor, "b k w"] | Float[Tensor, "positions 1 w"], Packing]:
        """States of the positions `kept`, or, packed, of all in the spans; and how they are packed.

        Positions see their span, or, with `seen`, the first so many of their row, as the cache then has them.
        """
        fast, heads = self._fused, (self.shape.n_heads, self.shape.n_kv_heads)
        sizes = [end - first for first, end in spans]
        # Places, tables and grids in steps: what is captured serves them all.
        longest = -(-tokens.shape[1] // _LENGTHS) * _LENGTHS
        packing = Packing.of(spans, rounded(sum(sizes)) if fast else sum(sizes), self.device)
        given = _present(places=places, kept=kept, seen=seen)
        length, last = tokens.shape[1], len(self.blocks) - 1

        def run(tokens: Tensor, row: Tensor, position: Tensor, rows: Tensor, *values: Tensor) -> tuple[Tensor]:
            here, packing = dict(zip(given, values, strict=True)), Packing(row=row, position=position, rows=rows)
            at = packing.places(here["kept"]) if "kept" in here else None
            slots = here["places"][row] if "places" in here else None
            pick = None if at is None else lambda x: x[at, 0]
            table = self.rotary(longest, device=self.device)
            visible = None if fast else padding_mask(here.get("seen"), length, self.device)

            def attend(qkv: Tensor, layer: Layer | None) -> Tensor:
                cached = layer is not None and "seen" in here
                if fast:
                    stored = (*layer, here["places"], here["seen"]) if cached else None
                    return fused.ragged_attention(qkv, packing.starts, packing.lengths, *heads, longest, stored)
                if not cached:
                    return plain.ragged_attention(qkv, sizes, *heads)
                keys, values = layer
                stored = (keys[:, :, :length], values[:, :, :length], here["places"], visible)
                return plain.ragged_attention(qkv, sizes, *heads, stored)

            def mix(layer: int, project: Callable[..., Tensor]) -> Tensor:
                kept = None if storage is None else storage.layers[layer]
                qkv = project(table, position[:, None], *heads, None if kept is None else (*kept, slots))
                mixed = attend(qkv, kept)
                return pick(mixed) if pick is not None and layer == last else mixed

            return (self._run(tokens, mix, pick=pick),)

        inputs = (packing.packed(tokens), packing.row, packing.position, packing.rows, *given.values())
        count, kind = packing.row.shape[0], ("packed", longest, *given)
        (found,) = self._run_whole(storage, count, CAPTURED, run, *inputs, kind=kind)
        return found, packing

    def _is_worth_packing(self, spans: list[tuple[int, int]], padded: int) -> bool:
        return is_worth_packing(sum(end - first for first, end in spans), padded, kernels=self._fused)

    def _is_planned(self, rows: int, length: int) -> bool:
        """Whether whole canvases of this shape may attend through PyTorch's kernels.

        In half precision they are the fastest there are, but a library takes a tenth of a second to plan for a new
        shape. That pays where it comes often; packed rows need no plan, and share what is captured.
        """
        return not self._fused or self.dtype.itemsize != 2 or (rows, length) in self._expected

    def _run_whole(
        self,
        storage: Storage | None,
        positions: int,
        most: int,
        run: Callable[..., tuple[Tensor]],
        *inputs: Tensor,
        kind: Any,
    ) -> tuple[Tensor, ...]:
        """What a pass over so many positions gives, by a graph if there are not more than `most`."""
        if positions <= most and self._fused:
            return self.graphs_of(storage).whole(run, *inputs, kind=kind)
        return run(*inputs)

    def _whole(
        self,
        tokens: Int[Tensor, "b n"],
        positions: Int[Tensor, "b n"] | None,
        seen: Bool[Tensor, "b 1 _n n"] | None,
        *,
        layers: list[Layer] | None = None,
        places: Int[Tensor, " b"] | None = None,
        watched: range = range(0),
        kept: Int[Tensor, "b k"] | None = None,
    ) -> tuple[Float[Tensor, "b k w"], Float[Tensor, "b n n"] | None]:
        """States of the positions `kept` (default: all), and the mean attention of the watched layers.

        Keys and values of all positions go to `layers`.
        """
        table, heads = self.rotary(tokens.shape[1], device=self.device), (self.shape.n_heads, self.shape.n_kv_heads)
        maps = []

        def mix(layer: int, project: Callable[..., Tensor]) -> Tensor:
            store = None if layers is None else (*layers[layer], places)
            qkv = project(table, positions, *heads, store)
            queries, keys, values = plain.split(qkv, *heads)
            if layer in watched:
                maps.append(plain.attention_map(queries, keys, seen))
            if kept is not None and layer == len(self.blocks) - 1:
                queries = queries.gather(2, kept[:, None, :, None].expand(-1, heads[0], -1, queries.shape[3]))
            # Watched layers attend in the same way: looking at a model must not change what it says.
            return plain.attend(queries, keys, values, seen)

        states = self._run(tokens, mix, pick=None if kept is None else partial(plain.picked, rows=kept))
        return states, torch.stack(maps).mean(0) if maps else None

    def _part_pass(
        self,
        tokens: Int[Tensor, "b n"],
        positions: Int[Tensor, "b q"],
        cache: KVCache,
        lengths: Int[Tensor, " b"] | None,
        at: Int[Tensor, "b k"] | None,
    ) -> Callable[[], Prediction]:
        """How to do a pass over some positions that see all else as it is in the cache, which has them renewed.

        Predicts the positions `at`, by default those that are computed.
        """
        length, layers = tokens.shape[1], cache.storage.layers
        tokens = tokens.gather(1, positions)
        heads = (self.shape.n_heads, self.shape.n_kv_heads)

        def head(states: Tensor, positions: Tensor, at: Tensor | None) -> Tensor:
            at = positions if at is None else at
            return self._head(plain.picked(states, self._feeding(at, positions, states.shape[1])))

        if not self._fused:
            rows = slice(len(tokens)) if cache.in_order else cache.places
            seen = padding_mask(lengths, length, self.device)

            def attend(qkv: Tensor, keys: Tensor, values: Tensor) -> Tensor:
                queries, _, _ = plain.split(qkv, *heads)
                return plain.attend(queries, keys[rows, :, :length], values[rows, :, :length], seen)

            def predict() -> Prediction:
                states = self._part(tokens, positions, layers, cache.places, attend)
                return Prediction(logits=head(states, positions, at), states=states)

            return predict
        lengths = torch.full_like(cache.places, length) if lengths is None else lengths
        longest = cache.storage.length

        # Where nearly all that is computed is predicted, the head belongs to the graph, which keeps its logits.
        wanted = positions if at is None else at
        within = positions.shape[1] <= wanted.shape[1] + 1 and wanted.numel() <= _KEPT_LOGITS

        def part(tokens: Tensor, positions: Tensor, places: Tensor, lengths: Tensor, *at: Tensor) -> tuple[Tensor, ...]:
            def attend(qkv: Tensor, keys: Tensor, values: Tensor) -> Tensor:
                return fused.block_attention(qkv, keys, values, places, lengths, heads[0], longest)

            states = self._part(tokens, positions, layers, places, attend)
            return (states, head(states, positions, at[0] if at else None)) if within else (states,)

        inputs = [tokens, positions, cache.places, lengths, *([at] if within and at is not None else [])]
        ready = self.graphs_of(cache.storage).part.prepare(part, *inputs, kind=within)

        def replayed() -> Prediction:
            states, *logits = ready.run()
            if within:
                return Prediction(logits=logits[0], states=states, fleeting=ready.replays)
            return Prediction(logits=head(states, positions, at), states=states)

        return replayed

    def _part(
        self,
        tokens: Int[Tensor, "b q"],
        positions: Int[Tensor, "b q"],
        layers: list[Layer],
        places: Int[Tensor, " b"],
        attend: Callable[[Tensor, Tensor, Tensor], Tensor],
    ) -> Float[Tensor, "b q w"]:
        table = self.rotary(layers[0][0].shape[2], device=self.device)
        heads = (self.shape.n_heads, self.shape.n_kv_heads)

        def mix(layer: int, project: Callable[..., Tensor]) -> Tensor:
            return attend(project(table, positions, *heads, (*layers[layer], places)), *layers[layer])

        return self._run(tokens, mix, cached=True)

    def _feeding(
        self, at: Int[Tensor, "b k"] | None, queries: Int[Tensor, "b q"] | None, length: int
    ) -> Int[Tensor, "_b k"] | None:
        """Which of `length` states predict the positions `at`: the head is only worth its cost on those; None: all."""
        if not self.spec.shifted and (at is None or at is queries):
            return None
        at = torch.arange(length, device=self.device)[None] if at is None else at
        row = at if queries is None else at - queries[:, :1]
        return (row - 1 if self.spec.shifted else row).clamp(0, length - 1)


def _present(**values: Tensor | None) -> dict[str, Tensor]:
    return {name: value for name, value in values.items() if value is not None}
