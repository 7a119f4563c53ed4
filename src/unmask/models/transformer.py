"""The bidirectional transformer behind every family we run: RMSNorm, rotary positions, grouped heads, SwiGLU.

Knows tensors and positions only; what a checkpoint calls its weights is said in the family's file, and which positions
to compute is decided by the engine. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
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
from unmask.models.rotary import Rotary
from unmask.models.steps import JointSteps, Steps
from unmask.models.visibility import padding_mask, shadow_mask

# Beyond so many positions a pass keeps the device busy long enough for its launches not to show.
_GRAPHED = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerShape:
    """The sizes of a transformer, and the two things in which families differ."""

    width: int
    hidden: int  # width of the feed-forward layer
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_width: int
    vocab_size: int  # rows of the embedding, which may include padding beyond the tokenizer's vocabulary
    rope_theta: float
    norm_eps: float
    qkv_bias: bool
    tied: bool  # the head is the embedding


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps


class Attention(nn.Module):
    """Queries, keys and values come from one matrix: a pass over one block is bound by launches and weight reads."""

    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        heads = shape.n_heads + 2 * shape.n_kv_heads
        self.qkv = nn.Linear(shape.width, heads * shape.head_width, bias=shape.qkv_bias)
        self.out = nn.Linear(shape.n_heads * shape.head_width, shape.width, bias=False)


class Block(nn.Module):
    def __init__(self, shape: TransformerShape) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(shape.width, shape.norm_eps)
        self.attention = Attention(shape)
        self.mlp_norm = RMSNorm(shape.width, shape.norm_eps)
        self.gate_up = nn.Linear(shape.width, 2 * shape.hidden, bias=False)
        self.down = nn.Linear(shape.hidden, shape.width, bias=False)


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
        self._forget_graphs()

    def _forget_graphs(self) -> None:
        self._uncached = PassGraphs()
        self._cached: WeakKeyDictionary[Storage, PassGraphs] = WeakKeyDictionary()
        self._alone = Lock()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Transformer:
        self._forget_graphs()  # they would go on reading the weights from where they were
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_uncached", "_cached", "_alone")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._forget_graphs()

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
    ) -> Prediction:
        self._check(cache, queries, attention_layers, shadow)
        if shadow is not None or attention_layers is not None:
            return self._predict_more(tokens, lengths, at, attention_layers, shadow)
        return self.prepare(tokens, lengths=lengths, at=at, cache=cache, queries=queries)()

    def prepare(
        self,
        tokens: Int[Tensor, "b n"],
        *,
        lengths: Int[Tensor, " b"] | None = None,
        at: Int[Tensor, "b k"] | None = None,
        cache: KVCache | None = None,
        queries: Int[Tensor, "b q"] | None = None,
    ) -> Callable[[], Prediction]:
        """`predict`, but for what can wait until it is known that the prediction is wanted."""
        if queries is not None:
            assert cache is not None
            states_of = self._part_states(tokens, queries, cache, lengths)
        else:
            states_of = partial(self._whole_states, tokens, cache, lengths)

        def predict() -> Prediction:
            # One at a time: what a graph leaves behind must have been picked up before it is replayed.
            with self._alone if self._fused else nullcontext():
                states = states_of()
                return Prediction(logits=self._head(self._rows(states, at, queries)), states=states)

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
            attention = _without_padding(attention[:, :length, :length], visible)
        mains = self._rows(states[:, : states.shape[1] - shadows], at, None)
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

    def _whole_states(
        self, tokens: Int[Tensor, "b n"], cache: KVCache | None, lengths: Int[Tensor, " b"] | None
    ) -> Float[Tensor, "b n w"]:
        """States of every position; fills the cache."""
        storage = None if cache is None else cache.storage
        if storage is not None:
            shape = self.shape
            sizes = {"n_layers": shape.n_layers, "heads": shape.n_kv_heads, "width": shape.head_width}
            storage.allocate(**sizes, like=self.embedding.weight)
        layers = None if storage is None else storage.layers

        def whole(tokens: Tensor, *rest: Tensor) -> tuple[Tensor]:
            places = None if layers is None else rest[0]
            seen = padding_mask(rest[-1], tokens.shape[1], self.device) if len(rest) > (layers is not None) else None
            return (self._whole(tokens, None, seen, layers=layers, places=places)[0],)

        inputs = [tokens, None if cache is None else cache.places, lengths]
        inputs = [value for value in inputs if value is not None]
        if tokens.numel() > _GRAPHED or not self._fused:
            return whole(*inputs)[0]
        return self._graphs_of(storage).whole(whole, *inputs)[0]

    def _whole(
        self,
        tokens: Int[Tensor, "b n"],
        positions: Int[Tensor, "b n"] | None,
        seen: Bool[Tensor, "b 1 _n n"] | None,
        *,
        layers: list[Layer] | None = None,
        places: Int[Tensor, " b"] | None = None,
        watched: range = range(0),
    ) -> tuple[Float[Tensor, "b n w"], Float[Tensor, "b n n"] | None]:
        """States of every position, and the mean attention of the watched layers; keys and values go to `layers`."""
        table, heads = self.rotary(tokens.shape[1], device=self.device), (self.shape.n_heads, self.shape.n_kv_heads)
        maps = []

        def mix(layer: int, project: Callable[..., Tensor]) -> Tensor:
            store = None if layers is None else (*layers[layer], places)
            qkv = project(table, positions, *heads, store)
            queries, keys, values = plain.split(qkv, *heads)
            if layer in watched:
                maps.append(_attention_map(queries, keys, seen))
            # Watched layers too: looking at a model must not change what it says.
            return plain.attend(queries, keys, values, seen)

        states = self._run(tokens, mix)
        return states, torch.stack(maps).mean(0) if maps else None

    def _part_states(
        self,
        tokens: Int[Tensor, "b n"],
        positions: Int[Tensor, "b q"],
        cache: KVCache,
        lengths: Int[Tensor, " b"] | None,
    ) -> Callable[[], Float[Tensor, "b q w"]]:
        """How to get the states of some positions that see all else as it is in the cache, which has them renewed."""
        length, layers = tokens.shape[1], cache.storage.layers
        tokens = tokens.gather(1, positions)
        heads = (self.shape.n_heads, self.shape.n_kv_heads)
        if not self._fused:
            rows = slice(len(tokens)) if cache.in_order else cache.places
            seen = padding_mask(lengths, length, self.device)

            def attend(qkv: Tensor, keys: Tensor, values: Tensor) -> Tensor:
                queries, _, _ = plain.split(qkv, *heads)
                return plain.attend(queries, keys[rows, :, :length], values[rows, :, :length], seen)

            return lambda: self._part(tokens, positions, layers, cache.places, attend)
        lengths = torch.full_like(cache.places, length) if lengths is None else lengths
        longest = cache.storage.length

        def part(tokens: Tensor, positions: Tensor, places: Tensor, lengths: Tensor) -> tuple[Tensor]:
            def attend(qkv: Tensor, keys: Tensor, values: Tensor) -> Tensor:
                return fused.block_attention(qkv, keys, values, places, lengths, heads[0], longest)

            return (self._part(tokens, positions, layers, places, attend),)

        ready = self._graphs_of(cache.storage).part.prepare(part, tokens, positions, cache.places, lengths)
        return lambda: ready()[0]

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
        self, tokens: Int[Tensor, "b q"], mix: Callable[[int, Callable[..., Tensor]], Tensor], *, cached: bool = False
    ) -> Float[Tensor, "b q w"]:
        """States after the last norm.

        `mix` is given a layer and how to have its queries, keys and values (see steps.py), and gives what they attend
        to. `cached`: it reads the keys and values from a cache.
        """
        x, update = self.embedding(tokens), None
        steps = self._steps(x, cached=cached)
        for layer, block in enumerate(self._blocks()):
            x, normed = steps.add_norm(x, update, block.attention_norm.weight, block.attention_norm.eps)
            update = steps.update(block.attention.out, mix(layer, partial(steps.project, block.attention.qkv, normed)))
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

    def _rows(
        self, states: Float[Tensor, "b q w"], at: Int[Tensor, "b k"] | None, queries: Int[Tensor, "b q"] | None
    ) -> Float[Tensor, "b k w"]:
        """The states that predict the positions `at`: the head is only worth its cost on those."""
        if not self.spec.shifted and (at is None or at is queries):
            return states
        if at is None:
            return torch.cat([states[:, :1], states[:, :-1]], dim=1)
        row = at if queries is None else at - queries[:, :1]
        row = (row - 1 if self.spec.shifted else row).clamp(0, states.shape[1] - 1)
        return states.gather(1, row[:, :, None].expand(-1, -1, states.shape[2]))

    def _head(self, states: Float[Tensor, "b k w"]) -> Float[Tensor, "b k v"]:
        return F.linear(states, self.embedding.weight if self.head is None else self.head.weight)


def _attention_map(
    queries: Float[Tensor, "b h q d"], keys: Float[Tensor, "b g n d"], seen: Bool[Tensor, "b 1 _q n"] | None
) -> Float[Tensor, "b q n"]:
    """Softmax of the scaled products, in float32, averaged over heads."""
    grouped = queries.float().unflatten(1, (keys.shape[1], -1))
    scores = grouped @ keys.float()[:, :, None].transpose(-1, -2) * queries.shape[-1] ** -0.5
    if seen is not None:
        scores = scores.masked_fill(~seen[:, None], -torch.inf)
    return scores.softmax(-1).mean((1, 2))


def _without_padding(
    attention: Float[Tensor, "b n n"], visible: Bool[Tensor, "b 1 1 n"] | None
) -> Float[Tensor, "b n n"]:
    """Keys behind the end of a row have no weight already; queries there get none either."""
    return attention if visible is None else attention * visible[:, 0, 0, :, None]
