"""The bidirectional transformer behind every family we run: RMSNorm, rotary positions, grouped heads, SwiGLU.

Knows tensors and positions only; what a checkpoint calls its weights is said in the family's file, and which positions
to compute is decided by the engine. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from unmask.cache.kv import KVCache, Layer, Storage
from unmask.errors import UnmaskError
from unmask.models import fused, plain
from unmask.models.base import ModelSpec, Prediction
from unmask.models.graphs import PassGraphs
from unmask.models.layers import Block, RMSNorm, TransformerShape
from unmask.models.rotary import Rotary
from unmask.models.steps import JointSteps, Steps
from unmask.models.visibility import padding_mask, shadow_mask

# Beyond so many positions a pass keeps the device busy long enough for its launches not to show.
_GRAPHED = 16_384
# Positions whose logits a graph may keep: 260 MB of LLaDA's.
_KEPT_LOGITS = 1024


class Transformer(nn.Module):
    """A MaskedLM (see base.py for what `predict` promises)."""

    def __init__(self, shape: TransformerShape, spec: ModelSpec) -> None:
        super().__init__()
        self.shape = shape
        self.spec = spec
        self.embedding = nn.Embedding(shape.vocab_size, shape.width)
        self.rotary = Rotary(shape.head_width, shape.rope_theta)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.n_layers))
        self.norm = RMSNorm(shape.width, shape.norm_eps)
        self.head = None if shape.tied else nn.Linear(shape.width, shape.vocab_size, bias=False)
        self.forget_graphs()

    def forget_graphs(self) -> None:
        """Let go of captured passes; they are captured again when they come again."""
        self._uncached = PassGraphs()
        self._cached: WeakKeyDictionary[Storage, PassGraphs] = WeakKeyDictionary()
        self._alone = Lock()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Transformer:
        self.forget_graphs()  # they would go on reading the weights from where they were
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_uncached", "_cached", "_alone")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.forget_graphs()

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
        lengths: Int[Tensor, " b"] | None = None,
        at: Int[Tensor, "b k"] | None = None,
        cache: KVCache | None = None,
        queries: Int[Tensor, "b q"] | None = None,
        attention_layers: range | None = None,
        shadow: Int[Tensor, "b s"] | None = None,
        states: bool = False,
    ) -> Prediction:
        self._check(cache, queries, attention_layers, shadow)
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
            ready = self._part_pass(tokens, queries, cache, lengths, None if at is queries else at)
        else:
            ready = partial(self._whole_pass, tokens, cache, lengths, at, states)

        # One at a time: what a graph leaves behind must have been picked up before it is replayed.
        alone = self._alone if self._fused else nullcontext()

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
        mains = _picked(states[:, : states.shape[1] - shadows], self._feeding(at, None, length))
        # One product with the head for both kinds of rows: its weights are by far the largest to read.
        logits = self._head(torch.cat([mains, states[:, -shadows:]], dim=1) if shadows else mains)
        main_logits, shadow_logits = logits.split([logits.shape[1] - shadows, shadows], dim=1)
        return Prediction(
            logits=main_logits,
            attention=attention,
            shadow_logits=shadow_logits if shadows else None,
            states=states[:, :length],
        )

    def _check(
        self,
        cache: KVCache | None,
        queries: Tensor | None,
        attention_layers: range | None,
        shadow: Tensor | None,
    ) -> None:
        if cache is not None and attention_layers is not None:
            raise UnmaskError("attention maps need the whole canvas: they cannot be had with a cache")
        if cache is not None and shadow is not None:
            raise UnmaskError("shadow predictions need the whole canvas: they cannot be had with a cache")
        if queries is not None and cache is None:
            raise UnmaskError("queries need a cache that a full pass has filled")
        if shadow is not None and self.spec.shifted:
            raise UnmaskError(
                f"{self.spec.family} predicts a position from the one before it, so it has no shadow predictions"
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
            sizes = {"n_layers": shape.n_layers, "heads": shape.n_kv_heads, "width": shape.head_width}
            storage.allocate(**sizes, like=self.embedding.weight)
        layers, everything = None if storage is None else storage.layers, states or at is None
        given = {
            "places": None if cache is None else cache.places,
            "lengths": lengths,
            "at": None if everything else at,
        }
        given = {name: value for name, value in given.items() if value is not None}

        def whole(tokens: Tensor, *values: Tensor) -> tuple[Tensor]:
            here = dict(zip(given, values, strict=True))
            seen = padding_mask(here.get("lengths"), tokens.shape[1], self.device)
            kept = None if everything else self._feeding(here["at"], None, tokens.shape[1])
            return (self._whole(tokens, None, seen, layers=layers, places=here.get("places"), kept=kept)[0],)

        if tokens.numel() <= _GRAPHED and self._fused:
            (found,) = self._graphs_of(storage).whole(whole, tokens, *given.values(), kind=everything)
        else:
            (found,) = whole(tokens, *given.values())
        rows = self._feeding(at, None, tokens.shape[1]) if everything else None
        return Prediction(logits=self._head(_picked(found, rows)), states=found if everything else None)

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

        states = self._run(tokens, mix, kept=kept)
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
            return self._head(_picked(states, self._feeding(at, positions, states.shape[1])))

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
        ready = self._graphs_of(cache.storage).part.prepare(part, *inputs, kind=within)

        def replayed() -> Prediction:
            states, *logits = ready.run()
            if within:
                return Prediction(logits=logits[0], states=states, fleeting=ready.replays)
            return Prediction(logits=head(states, positions, at), states=states)

        return replayed

    def _graphs_of(self, storage: Storage | None) -> PassGraphs:
        """Those that work on a storage, or on none."""
        if storage is None:
            return self._uncached
        if storage not in self._cached:
            self._cached[storage] = PassGraphs()
        return self._cached[storage]

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

    def _run(
        self,
        tokens: Int[Tensor, "b q"],
        mix: Callable[[int, Callable[..., Tensor]], Tensor],
        *,
        cached: bool = False,
        kept: Int[Tensor, "b k"] | None = None,
    ) -> Float[Tensor, "b k w"]:
        """States after the last norm.

        `mix` is given a layer and how to have its queries, keys and values (see steps.py), and gives what they attend
        to. `cached`: it reads the keys and values from a cache. `kept`: it gives that for these rows only in the last
        layer, behind whose attention nobody looks at the others.
        """
        x, update = self.embedding(tokens), None
        steps = self._steps(x, cached=cached)
        for layer, block in enumerate(self._blocks()):
            x, normed = steps.add_norm(x, update, block.attention_norm.weight, block.attention_norm.eps)
            mixed = mix(layer, partial(steps.project, block.attention.qkv, normed))
            x = _picked(x, kept if layer == len(self.blocks) - 1 else None)
            update = steps.update(block.attention.out, mixed)
            x, normed = steps.add_norm(x, update, block.mlp_norm.weight, block.mlp_norm.eps)
            update = steps.update(block.down, steps.gated(block.gate_up, normed))
        return steps.add_norm(x, update, self.norm.weight, self.norm.eps)[1]

    def _steps(self, x: Float[Tensor, "b q w"], *, cached: bool) -> Steps | JointSteps:
        if not self._fused:
            return Steps(plain)
        quantised = not isinstance(next(self._blocks()).attention.qkv, nn.Linear)
        return JointSteps() if cached and fused.few(x) and not quantised else Steps(fused)

    @property
    def _fused(self) -> bool:
        """Whether kernels run on this device, and with heads of this width."""
        width = self.shape.head_width
        return width >= 16 and width.bit_count() == 1 and fused.available(self.embedding.weight)

    def _blocks(self) -> Iterator[Block]:
        yield from self.blocks  # ty: ignore[invalid-yield]

    def _feeding(
        self, at: Int[Tensor, "b k"] | None, queries: Int[Tensor, "b q"] | None, length: int
    ) -> Int[Tensor, "_b k"] | None:
        """Which of `length` states predict the positions `at`: the head is only worth its cost on those; None: all."""
        if not self.spec.shifted and (at is None or at is queries):
            return None
        at = torch.arange(length, device=self.device)[None] if at is None else at
        row = at if queries is None else at - queries[:, :1]
        return (row - 1 if self.spec.shifted else row).clamp(0, length - 1)

    def _head(self, states: Float[Tensor, "b k w"]) -> Float[Tensor, "b k v"]:
        return F.linear(states, self.embedding.weight if self.head is None else self.head.weight)


def _picked(states: Float[Tensor, "b q w"], rows: Int[Tensor, "_b k"] | None) -> Float[Tensor, "b k w"]:
    """Some of the states, by default all."""
    if rows is None:
        return states
    return states.gather(1, rows[:, :, None].expand(states.shape[0], -1, states.shape[2]))
