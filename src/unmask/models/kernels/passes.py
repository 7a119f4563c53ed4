"""The passes of a transformer on a CUDA device: by kernels, and captured as CUDA graphs once a shape returns.

A pass computes what `Transformer.predict` computes, and never waits for the device. A graph works on the storage of a
cache, or without a cache. Graphs live as long as the weights stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any, TypeGuard
from weakref import WeakKeyDictionary

from torch import Tensor

from unmask.cache.storage import KVCache, Storage
from unmask.models.attention import Packing, Padded, first_keys, picked
from unmask.models.base import MaskedLM, PassInputs, Prediction
from unmask.models.kernels import ops
from unmask.models.kernels.attention import block_attention, ragged_attention
from unmask.models.kernels.graphs import CudaGraph, Outputs, PassGraphs, Record
from unmask.models.kernels.products import few_rows_ops
from unmask.models.transformer import Transformer

# The number of packed positions is rounded up to a multiple of this, so that few shapes occur. Products have tiles of
# this size.
STEP = 128
# Packed passes of up to so many positions are captured. Larger shapes seldom return, and they keep the device busy
# while they are launched one by one.
CAPTURED = 2048
# A padded pass over more positions keeps the device busy long enough to hide its launches.
_GRAPHED = 16_384
# The length of the longest packed row is rounded up to a multiple of this.
_LENGTHS = 256
# Positions whose logits a graph may keep: 260 MB of LLaDA's.
_KEPT_LOGITS = 1024


class ModelGraphs:
    """The graphs of one model's passes."""

    def __init__(self, record: Record = CudaGraph) -> None:
        self.announced: set[tuple[int, int]] = set()  # rows and length of whole canvases that are frequent
        self.lock = Lock()  # held from a replay until its outputs have been used
        self._record = record
        self.forget()

    def forget(self) -> None:
        """Drop the graphs; a shape that returns is captured again."""
        self.uncached = PassGraphs(self._record)
        self.cached: WeakKeyDictionary[Storage, PassGraphs] = WeakKeyDictionary()

    def over(self, cache: KVCache | None) -> PassGraphs:
        """The graphs of passes over the storage of this cache, or without a cache."""
        if cache is None:
            return self.uncached
        return self.cached.get(cache.storage) or self.cached.setdefault(cache.storage, PassGraphs(self._record))


def runs(model: MaskedLM) -> TypeGuard[Transformer]:
    """Whether these passes give what the model's `predict` gives. A class with its own `predict` is left alone."""
    return isinstance(model, Transformer) and type(model).predict is Transformer.predict and ops.fits(model)


def graphs_of(model: Transformer) -> ModelGraphs:
    return model.fast.get("passes") or model.fast.setdefault("passes", ModelGraphs())


def announce(model: MaskedLM, rows: int, length: int) -> None:
    """Announce a frequent shape of whole canvases, so that passes are planned for it."""
    if runs(model):
        graphs_of(model).announced.add((rows, length))


def forget(model: MaskedLM) -> None:
    """Drop captured passes; announced shapes stay announced."""
    if isinstance(model, Transformer) and "passes" in model.fast:
        graphs_of(model).forget()


def predict(model: Transformer, inputs: PassInputs) -> Prediction:
    prediction = prepare(model, inputs)()
    if prediction.fleeting:
        return replace(prediction, logits=prediction.logits.clone(), fleeting=False)
    return prediction


def prepare(model: Transformer, inputs: PassInputs) -> Callable[[], Prediction]:
    """`predict` in two parts: first what can be done early, then a call for the rest.

    The next pass over the same cache may overwrite the logits.
    """
    plan, graphs, size = inputs.plan, graphs_of(model), inputs.block_size
    if size is not None and any(row.span[0] // size != (row.visible - 1) // size for row in plan.rows):
        # Positions of one row are in different blocks and see different keys, which takes plain attention with a mask.
        return partial(model.predict_plainly, inputs)
    packs = rounded(sum(plan.sizes)) < plan.padded
    if plan.self_contained:
        # In half precision PyTorch's kernels attend fastest, but a library takes a tenth of a second to plan for a new
        # shape. That pays for frequent shapes. Packed rows need no plan and share graphs.
        packs = packs or (model.dtype.itemsize == 2 and (len(plan.rows), inputs.length) not in graphs.announced)
        ready = partial(_packed if packs else _whole, model, inputs)
    else:
        packs = packs and inputs.at is not None
        ready = partial(_packed, model, inputs) if packs else _part(model, inputs)

    def predict() -> Prediction:
        with graphs.lock:
            return ready()

    return predict


def _whole(model: Transformer, inputs: PassInputs) -> Prediction:
    """A pass over every position of rows side by side."""
    plan, cache, length = inputs.plan, inputs.cache, inputs.length

    def whole(tokens: Tensor, slots: Tensor | None, visible: Tensor | None, kept: Tensor | None) -> Outputs:
        # The mask is made here, because a graph keeps the tensors that it makes itself.
        attend = Padded(model.shape, None if visible is None else first_keys(visible, length))
        options = {"length": length, "cache": cache, "slots": slots, "kept": kept, "ops": ops.KernelOps()}
        return (model.forward(tokens, None, attend, **options),)

    tokens, slots = inputs.tokens[:, :length], None if cache is None else cache.index
    visible = None if min(plan.seen) >= length else plan.visible
    feeding = model.feeding(inputs.at, None, tokens.shape)
    given = tokens, slots, visible, None if inputs.states else feeding
    captured = tokens.numel() <= _GRAPHED
    (states,) = graphs_of(model).over(cache).whole(whole, *given, kind="whole") if captured else whole(*given)
    if not inputs.states:
        return Prediction(logits=model.logits_of(states))
    return Prediction(logits=model.logits_of(picked(states, feeding)), states=states)


def _packed(model: Transformer, inputs: PassInputs) -> Prediction:
    """A pass over rows one behind the other. Parts of rows see what the cache holds."""
    plan, cache, shape = inputs.plan, inputs.cache, model.shape
    longest = -(-inputs.length // _LENGTHS) * _LENGTHS

    def packed(tokens: Tensor, row: Tensor, position: Tensor, rows: Tensor, *optional: Any) -> Outputs:
        packing, (slots, visible, at) = Packing(row=row, position=position, rows=rows), optional
        _, sizes, starts = rows

        def attend(layer: int, qkv: Tensor) -> Tensor:
            stored = None if cache is None or visible is None else (*cache.storage.layers[layer], slots, visible)
            return ragged_attention(qkv, starts, sizes, shape.n_heads, shape.n_kv_heads, longest, stored)

        kept = None if at is None else packing.places(at - model.shift)
        places = None if slots is None else slots[row]
        options = {"length": longest, "cache": cache, "slots": places, "kept": kept, "ops": ops.KernelOps()}
        return (model.forward(tokens, position[:, None], attend, **options),)

    packing = Packing.of(plan.spans, rounded(sum(plan.sizes)), model.device)
    layout = packing.packed(inputs.tokens), packing.row, packing.position, packing.rows
    slots, visible = None if cache is None else cache.index, None if plan.self_contained else plan.visible
    at = None if inputs.states else inputs.at
    given, captured = (*layout, slots, visible, at), len(packing.row) <= CAPTURED
    graphs = graphs_of(model).over(cache).whole
    (states,) = graphs(packed, *given, kind=("packed", longest)) if captured else packed(*given)
    if at is not None:
        return Prediction(logits=model.logits_of(states))
    feeding = packing.places((plan.positions if inputs.at is None else inputs.at) - model.shift)
    everything = picked(states, packing.places(plan.positions)) if inputs.states else None
    return Prediction(logits=model.logits_of(picked(states, feeding)), states=everything)


def _part(model: Transformer, inputs: PassInputs) -> Callable[[], Prediction]:
    """A pass over parts of rows that are about equally wide, ready to be replayed."""
    plan, cache, positions, n_heads = inputs.plan, inputs.cache, inputs.plan.positions, model.shape.n_heads
    assert cache is not None
    storage = cache.storage
    # Where nearly every computed position is predicted, the head belongs to the graph, which keeps its logits.
    predicted = positions if inputs.at is None else inputs.at
    with_head = positions.shape[1] <= predicted.shape[1] + 1 and predicted.numel() <= _KEPT_LOGITS

    def part(tokens: Tensor, positions: Tensor, slots: Tensor, visible: Tensor, at: Tensor | None) -> Outputs:
        def attend(layer: int, qkv: Tensor) -> Tensor:
            return block_attention(qkv, *storage.layers[layer], slots, visible, n_heads, storage.length)

        few, length = few_rows_ops(model, tokens.numel()), storage.length
        states = model.forward(tokens, positions, attend, length=length, cache=cache, slots=slots, ops=few)
        if not with_head:
            return (states,)
        return states, model.logits_of(picked(states, model.feeding(at, positions, tokens.shape)))

    tokens, at = inputs.tokens.gather(1, positions), inputs.at if with_head else None
    given = tokens, positions, cache.index, plan.visible, at
    ready = graphs_of(model).over(cache).part.prepare(part, *given, kind=with_head)

    def replayed() -> Prediction:
        states, *logits = ready.run()
        if not with_head:
            logits = [model.logits_of(picked(states, model.feeding(inputs.at, positions, tokens.shape)))]
        fleeting = with_head and ready.replays
        return Prediction(logits=logits[0], states=states if inputs.states else None, fleeting=fleeting)

    return replayed


def rounded(positions: int) -> int:
    return -(-positions // STEP) * STEP
