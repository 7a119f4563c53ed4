"""The passes of a transformer on a CUDA device: by kernels, and captured as CUDA graphs once a shape returns.

A pass computes what `Transformer.predict` computes, and never waits for the device. A graph works on the storage of a
cache, or without a cache. Graphs live as long as the weights stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from threading import Lock
from weakref import WeakKeyDictionary

from torch import Tensor

from unmask.cache.base import PassPlan
from unmask.cache.storage import KVCache, Storage
from unmask.models.attention import Packing, Padded, first_keys
from unmask.models.base import MaskedLM, PassInputs, Prediction
from unmask.models.kernels import ops
from unmask.models.kernels.attention import CachedKernel, PackedKernel
from unmask.models.kernels.graphs import CudaGraph, Outputs, PassGraphs, Record
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
        return self.uncached if cache is None else self.cached.setdefault(cache.storage, PassGraphs(self._record))


def runs(model: MaskedLM) -> bool:
    """Whether these passes give what the model's `predict` gives. A class with its own `predict` is left alone."""
    if not isinstance(model, Transformer) or not ops.fits(model):
        return False
    return next(kind for kind in type(model).__mro__ if "predict" in vars(kind)) is Transformer


def passes_of(model: Transformer) -> Passes:
    return Passes(model, model.fast.setdefault("passes", ModelGraphs()))


def announce(model: MaskedLM, rows: int, length: int) -> None:
    """Announce a frequent shape of whole canvases, so that passes are planned for it."""
    if runs(model):
        assert isinstance(model, Transformer)
        passes_of(model).graphs.announced.add((rows, length))


def forget(model: MaskedLM) -> None:
    """Drop captured passes; announced shapes stay announced."""
    if isinstance(model, Transformer) and "passes" in model.fast:
        passes_of(model).graphs.forget()


class Passes:
    """How a model runs its passes."""

    def __init__(self, model: Transformer, graphs: ModelGraphs) -> None:
        self.model, self.graphs = model, graphs

    def predict(self, inputs: PassInputs) -> Prediction:
        prediction = self.prepare(inputs)()
        if prediction.fleeting:
            return replace(prediction, logits=prediction.logits.clone(), fleeting=False)
        return prediction

    def prepare(self, inputs: PassInputs) -> Callable[[], Prediction]:
        """`predict` in two parts: first what can be done early, then a call for the rest.

        The next pass over the same cache may overwrite the logits.
        """
        plan = inputs.plan
        if inputs.block_size is not None and not _within_one_block(plan, inputs.block_size):
            # Positions of one row see different keys, which only plain attention with a mask can do.
            return partial(self.model.predict_plainly, inputs)
        packs = rounded(sum(plan.sizes)) < plan.padded
        if plan.self_contained:
            packs = packs or not self._is_planned(len(plan.rows), inputs.length)
            ready = partial(self._packed if packs else self._whole, inputs)
        else:
            ready = partial(self._packed, inputs) if packs and inputs.at is not None else self._part(inputs)

        def predict() -> Prediction:
            with self.graphs.lock:
                return ready()

        return predict

    def _whole(self, inputs: PassInputs) -> Prediction:
        """A pass over every position of rows side by side."""
        model, plan, cache, length = self.model, inputs.plan, inputs.cache, inputs.length

        def whole(tokens: Tensor, slots: Tensor | None, visible: Tensor | None, kept: Tensor | None) -> Outputs:
            # The mask is made here, because a graph keeps the tensors that it makes itself.
            attend = Padded(model.shape, None if visible is None else first_keys(visible, length))
            options = {"length": length, "cache": cache, "kept": kept, "ops": ops.KernelOps()}
            return (model.forward(tokens, None, attend, slots=slots, **options),)

        tokens, slots = inputs.tokens[:, :length], None if cache is None else cache.index
        visible = None if min(plan.seen) >= length else plan.visible
        kept = None if inputs.states else model.feeding(inputs.at, None, length)
        graphs, given = self.graphs.over(cache).whole, (tokens, slots, visible, kept)
        (states,) = graphs(whole, *given, kind="whole") if tokens.numel() <= _GRAPHED else whole(*given)
        return model.prediction_of(states, inputs, chosen=kept is not None)

    def _packed(self, inputs: PassInputs) -> Prediction:
        """A pass over rows one behind the other. Parts of rows see what the cache holds."""
        model, plan, cache = self.model, inputs.plan, inputs.cache
        longest = -(-inputs.length // _LENGTHS) * _LENGTHS

        def packed(
            tokens: Tensor,
            row: Tensor,
            position: Tensor,
            rows: Tensor,
            slots: Tensor | None,
            visible: Tensor | None,
            at: Tensor | None,
        ) -> Outputs:
            packing = Packing(row=row, position=position, rows=rows)
            storage = None if cache is None else cache.storage
            attend = PackedKernel(model.shape, packing, longest, storage, slots, visible)
            kept = None if at is None else packing.places(at - model.shift)
            slots = None if slots is None else slots[row]
            options = {"length": longest, "cache": cache, "kept": kept, "ops": ops.KernelOps()}
            return (model.forward(tokens, position[:, None], attend, slots=slots, **options),)

        packing = Packing.of(plan.spans, rounded(sum(plan.sizes)), model.device)
        layout = packing.packed(inputs.tokens), packing.row, packing.position, packing.rows
        slots, visible = None if cache is None else cache.index, None if plan.self_contained else plan.visible
        at = None if inputs.states else inputs.at
        graphs, given = self.graphs.over(cache).whole, (*layout, slots, visible, at)
        captured = len(packing.row) <= CAPTURED
        (states,) = graphs(packed, *given, kind=("packed", longest)) if captured else packed(*given)
        states = packing.unpacked(states, max(plan.sizes)) if at is None else states
        return model.prediction_of(states, inputs, chosen=at is not None)

    def _part(self, inputs: PassInputs) -> Callable[[], Prediction]:
        """A pass over parts of rows that are about equally wide, ready to be replayed."""
        model, plan, cache, positions = self.model, inputs.plan, inputs.cache, inputs.plan.positions
        assert cache is not None
        # Where nearly every computed position is predicted, the head belongs to the graph, which keeps its logits.
        predicted = positions if inputs.at is None else inputs.at
        with_head = positions.shape[1] <= predicted.shape[1] + 1 and predicted.numel() <= _KEPT_LOGITS

        def part(tokens: Tensor, positions: Tensor, slots: Tensor, visible: Tensor, at: Tensor | None) -> Outputs:
            attend = CachedKernel(model.shape, cache.storage, slots, visible)
            layer_ops, length = ops.few_rows_ops(model, tokens.numel()), cache.storage.length
            states = model.forward(tokens, positions, attend, length=length, cache=cache, slots=slots, ops=layer_ops)
            return (states, model.read_out(states, at, positions)) if with_head else (states,)

        tokens, at = inputs.tokens.gather(1, positions), inputs.at if with_head else None
        given = tokens, positions, cache.index, plan.visible, at
        ready = self.graphs.over(cache).part.prepare(part, *given, kind=with_head)

        def replayed() -> Prediction:
            states, *logits = ready.run()
            if not with_head:
                return model.prediction_of(states, inputs, chosen=False)
            return Prediction(logits=logits[0], states=states if inputs.states else None, fleeting=ready.replays)

        return replayed

    def _is_planned(self, rows: int, length: int) -> bool:
        """Whether whole canvases of this shape may attend through PyTorch's kernels.

        In half precision these are the fastest, but a library takes a tenth of a second to plan for a new shape. That
        pays for frequent shapes. Packed rows need no plan and share graphs.
        """
        return self.model.dtype.itemsize != 2 or (rows, length) in self.graphs.announced


def rounded(positions: int) -> int:
    return -(-positions // STEP) * STEP


def _within_one_block(plan: PassPlan, block_size: int) -> bool:
    """Whether all positions of each row see all visible keys in a block-causal model."""
    return all(row.span[0] // block_size == (row.visible - 1) // block_size for row in plan.rows)
