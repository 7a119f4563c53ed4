"""The passes of a transformer on a CUDA device: by kernels, and captured as CUDA graphs once a shape comes again.

What a pass computes is what `Transformer.predict` computes. Nothing here waits for the device. Graphs work on the
storage of a cache, or on none, and live as long as the weights stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.cache.base import PassPlan
from unmask.cache.storage import KVCache, Storage
from unmask.models.attention import Together, picked
from unmask.models.base import MaskedLM, Prediction
from unmask.models.kernels import ops
from unmask.models.kernels.attention import CachedKernel, PackedKernel
from unmask.models.kernels.graphs import CudaGraph, PassGraphs, Record
from unmask.models.packing import Packing
from unmask.models.transformer import Transformer

# Packed positions come in such steps, which a tile of a product has as well: what is captured serves them all.
STEP = 128
# Packed passes of up to so many positions are captured. The shapes of larger ones seldom come again, and they keep the
# device busy while they are launched one by one.
CAPTURED = 2048
# Beyond so many positions a pass that is not packed keeps the device busy long enough for its launches not to show.
_GRAPHED = 16_384
# The lengths of the longest of packed rows, in steps.
_LENGTHS = 256
# Positions whose logits a graph may keep: 260 MB of LLaDA's.
_KEPT_LOGITS = 1024


class ModelGraphs:
    """The graphs of one model's passes; those of a cache work on its storage."""

    def __init__(self, record: Record = CudaGraph) -> None:
        self.announced: set[tuple[int, int]] = set()  # rows and length of whole canvases that will come often
        self.lock = Lock()  # held from a replay until what it left behind has been picked up
        self._record = record
        self.forget()

    def forget(self) -> None:
        """Let go of the graphs; a shape that comes again is captured again."""
        self.uncached = PassGraphs(self._record)
        self.cached: WeakKeyDictionary[Storage, PassGraphs] = WeakKeyDictionary()

    def over(self, cache: KVCache | None) -> PassGraphs:
        """Of passes over this cache, or without one."""
        return self.uncached if cache is None else self.cached.setdefault(cache.storage, PassGraphs(self._record))


def runs(model: MaskedLM) -> bool:
    """Whether these passes are what the model's own `predict` gives: a class that overrides it is left alone."""
    if not isinstance(model, Transformer) or not ops.fits(model):
        return False
    return next(kind for kind in type(model).__mro__ if "predict" in vars(kind)) is Transformer


def passes_of(model: Transformer) -> Passes:
    return Passes(model, model.fast.setdefault("passes", ModelGraphs()))


def announce(model: MaskedLM, rows: int, length: int) -> None:
    """Announce a frequent shape, so that passes over so many whole canvases of that length are planned for."""
    if runs(model):
        assert isinstance(model, Transformer)
        passes_of(model).graphs.announced.add((rows, length))


def forget(model: MaskedLM) -> None:
    """Let go of captured passes; what was announced stays so."""
    if isinstance(model, Transformer) and "passes" in model.fast:
        passes_of(model).graphs.forget()


def rounded(positions: int) -> int:
    return -(-positions // STEP) * STEP


class Passes:
    """How a model runs its passes."""

    def __init__(self, model: Transformer, graphs: ModelGraphs) -> None:
        self.model, self.graphs = model, graphs

    def predict(
        self,
        tokens: Int[Tensor, "b n"],
        plan: PassPlan,
        at: Int[Tensor, "b k"] | None,
        cache: KVCache | None,
        block_size: int | None,
        *,
        states: bool = False,
    ) -> Prediction:
        prediction = self.prepare(tokens, plan, at, cache, block_size, states=states)()
        if prediction.fleeting:
            return replace(prediction, logits=prediction.logits.clone(), fleeting=False)
        return prediction

    def prepare(
        self,
        tokens: Int[Tensor, "b n"],
        plan: PassPlan,
        at: Int[Tensor, "b k"] | None,
        cache: KVCache | None,
        block_size: int | None,
        *,
        states: bool = False,
    ) -> Callable[[], Prediction]:
        """`predict` in two parts: what can be done early, and a call for the rest, once it is known to be wanted.

        The logits may lie where the next pass over the same cache puts its own.
        """
        tokens = tokens[:, : max(plan.seen)]
        if block_size is not None and not _within_one_block(plan, block_size):
            # Positions of one row see different keys there, which only plain attention with a mask does.
            return partial(self.model.predict_plainly, tokens, plan, at, cache, block_size, states=states)
        if plan.is_whole:
            ready = partial(self._whole, tokens, plan, at, cache, states)
        else:
            assert cache is not None
            packed = at is not None and self._is_worth_packing(plan)
            given = tokens, plan, at, cache
            ready = partial(self._packed_part, *given, states) if packed else self._part(*given)

        def predict() -> Prediction:
            with self.graphs.lock:
                return ready()

        return predict

    def _whole(
        self,
        tokens: Int[Tensor, "b n"],
        plan: PassPlan,
        at: Int[Tensor, "b k"] | None,
        cache: KVCache | None,
        states: bool,
    ) -> Prediction:
        """A pass over every position; fills the cache."""
        model, length = self.model, tokens.shape[1]
        everything = states or at is None
        columns = model.feeding(at, plan, length)
        kept = None if everything else columns
        if self._is_worth_packing(plan) or not self._is_planned(*tokens.shape):
            found, packing = self._packed(tokens, plan, cache, kept, stored=False)
            found = packing.unpacked(found, length) if kept is None else found
        else:
            visible = None if min(plan.seen) >= length else plan.visible
            given = _present(slots=None if cache is None else cache.index, visible=visible, kept=kept)

            def whole(tokens: Tensor, *values: Tensor) -> tuple[Tensor]:
                here, mask = dict(zip(given, values, strict=True)), None
                if "visible" in here:
                    keys = torch.arange(length, device=tokens.device)  # made here: a graph keeps what it makes itself
                    mask = (keys < here["visible"][:, None])[:, None, None]
                options = {"slots": here.get("slots"), "kept": here.get("kept"), "ops": ops.KernelOps()}
                attend = Together(model.shape, mask)
                return (model.forward(tokens, None, attend, length=length, cache=cache, **options),)

            (found,) = self._run(cache, tokens.numel(), _GRAPHED, whole, tokens, *given.values(), kind=everything)
        picks = columns if everything else None
        return Prediction(logits=model.logits_of(picked(found, picks)), states=found if everything else None)

    def _packed_part(
        self, tokens: Int[Tensor, "b n"], plan: PassPlan, at: Int[Tensor, "b k"] | None, cache: KVCache, states: bool
    ) -> Prediction:
        """A pass over parts of rows that differ much in size, or over parts of some and the whole of others."""
        model = self.model
        kept = None if states or at is None else at - model.shift
        found, packing = self._packed(tokens, plan, cache, kept, stored=True)
        if kept is not None:
            return Prediction(logits=model.logits_of(found))
        found = packing.unpacked(found, max(plan.sizes))
        return Prediction(logits=model.logits_of(picked(found, model.feeding(at, plan, max(plan.sizes)))), states=found)

    def _packed(
        self,
        tokens: Int[Tensor, "b n"],
        plan: PassPlan,
        cache: KVCache | None,
        kept: Int[Tensor, "_b k"] | None,
        *,
        stored: bool,
    ) -> tuple[Float[Tensor, "b k w"] | Float[Tensor, "positions 1 w"], Packing]:
        """States of the positions `kept` of each row, or of all, packed; and how they are packed.

        A position sees its own row as the pass computes it, or, with `stored`, as the cache then has it.
        """
        model = self.model
        longest = -(-tokens.shape[1] // _LENGTHS) * _LENGTHS
        packing = Packing.of(plan.spans, rounded(sum(plan.sizes)), model.device)
        slots, visible = None if cache is None else cache.index, plan.visible if stored else None
        kept = None if kept is None else kept.expand(len(tokens), -1)
        given = _present(slots=slots, kept=kept, visible=visible)

        def run(tokens: Tensor, row: Tensor, position: Tensor, rows: Tensor, *values: Tensor) -> tuple[Tensor]:
            here, packing = dict(zip(given, values, strict=True)), Packing(row=row, position=position, rows=rows)
            storage, slots = None if cache is None else cache.storage, here.get("slots")
            attend = PackedKernel(model.shape, packing, longest, storage, slots, here.get("visible"))
            options = {
                "slots": None if slots is None else slots[row],
                "kept": packing.places(here["kept"]) if "kept" in here else None,
                "ops": ops.KernelOps(),
            }
            return (model.forward(tokens, position[:, None], attend, length=longest, cache=cache, **options),)

        inputs = (packing.packed(tokens), packing.row, packing.position, packing.rows, *given.values())
        count, kind = packing.row.shape[0], ("packed", longest, *given)
        (found,) = self._run(cache, count, CAPTURED, run, *inputs, kind=kind)
        return found, packing

    def _part(
        self, tokens: Int[Tensor, "b n"], plan: PassPlan, at: Int[Tensor, "b k"] | None, cache: KVCache
    ) -> Callable[[], Prediction]:
        """A pass over parts of rows that are about equally wide, ready to be replayed."""
        model, positions = self.model, plan.positions
        tokens, length = tokens.gather(1, positions), cache.storage.length

        def head(states: Tensor, positions: Tensor, at: Tensor | None) -> Tensor:
            if at is None and not model.spec.shifted:
                return model.logits_of(states)
            columns = (positions if at is None else at) - positions[:, :1] - model.shift
            return model.logits_of(picked(states, columns.clamp(0, states.shape[1] - 1)))

        # Where nearly all that is computed is predicted, the head belongs to the graph, which keeps its logits.
        wanted = positions if at is None else at
        within = positions.shape[1] <= wanted.shape[1] + 1 and wanted.numel() <= _KEPT_LOGITS

        def part(tokens: Tensor, positions: Tensor, slots: Tensor, visible: Tensor, *at: Tensor) -> tuple[Tensor, ...]:
            attend = CachedKernel(model.shape, cache.storage, slots, visible)
            layer_ops = ops.few_rows_ops(model, tokens.numel())
            states = model.forward(tokens, positions, attend, length=length, cache=cache, slots=slots, ops=layer_ops)
            return (states, head(states, positions, at[0] if at else None)) if within else (states,)

        inputs = [tokens, positions, cache.index, plan.visible, *([at] if within and at is not None else [])]
        ready = self.graphs.over(cache).part.prepare(part, *inputs, kind=within)

        def replayed() -> Prediction:
            states, *logits = ready.run()
            if within:
                return Prediction(logits=logits[0], states=states, fleeting=ready.replays)
            return Prediction(logits=head(states, positions, at), states=states)

        return replayed

    def _run(
        self,
        cache: KVCache | None,
        positions: int,
        most: int,
        run: Callable[..., tuple[Tensor]],
        *inputs: Tensor,
        kind: Any,
    ) -> tuple[Tensor, ...]:
        """What a pass over so many positions gives, by a graph if there are not more than `most`."""
        if positions <= most:
            return self.graphs.over(cache).whole(run, *inputs, kind=kind)
        return run(*inputs)

    def _is_worth_packing(self, plan: PassPlan) -> bool:
        return rounded(sum(plan.sizes)) < plan.padded

    def _is_planned(self, rows: int, length: int) -> bool:
        """Whether whole canvases of this shape may attend through PyTorch's kernels.

        In half precision they are the fastest there are, but a library takes a tenth of a second to plan for a new
        shape. That pays where it comes often; packed rows need no plan, and share what is captured.
        """
        return self.model.dtype.itemsize != 2 or (rows, length) in self.graphs.announced


def _within_one_block(plan: PassPlan, block_size: int) -> bool:
    """Whether all positions of each row see all visible keys in a block-causal model."""
    return all(row.span[0] // block_size == (row.visible - 1) // block_size for row in plan.rows)


def _present(**values: Tensor | None) -> dict[str, Tensor]:
    return {name: value for name, value in values.items() if value is not None}
