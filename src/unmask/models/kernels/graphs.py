"""Functions of tensors captured as CUDA graphs: hundreds of launches become one.

A shape is captured after a few runs. The first run compiles kernels, and a shape that never returns is not worth a
graph.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

Input: TypeAlias = Tensor | None  # None: this run has no such input
Outputs: TypeAlias = tuple[Tensor, ...]
Run: TypeAlias = Callable[..., Outputs]  # inputs and outputs lead with the rows
Shape: TypeAlias = tuple[Any, ...]  # sizes, and what else a graph depends on

_CAPTURING = Lock()  # entering a capture waits for the whole device, which is forbidden during another capture


class Ready(NamedTuple):
    """A prepared run: everything that can be done early has been done."""

    run: Callable[[], Outputs]  # if it replays, it takes the host next to no time
    replays: bool  # the run is a graph, so that every run writes its outputs to the same memory


class CudaGraph:
    """A run on inputs that stay where they are, recorded to be repeated into the same outputs.

    It works in a pool of memory (None: a new one), which later recordings may share.
    """

    def __init__(self, run: Run, inputs: list[Any], pool: Any) -> None:
        self._device = torch.cuda.device(inputs[0].device)  # a graph is replayed on the current device
        graph = torch.cuda.CUDAGraph()
        with _CAPTURING, self._device:
            # Libraries set themselves up in the first call on a stream, which must not happen within a capture.
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                run(*inputs)
            torch.cuda.current_stream().wait_stream(stream)
            with torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local"):
                self.outputs = run(*inputs)
        self._graph = graph
        self.pool = graph.pool()

    def replay(self) -> None:
        with self._device:
            self._graph.replay()


Record: TypeAlias = Callable[[Run, list[Input], Any], Any]  # what it gives has the attributes of a CudaGraph


@dataclass(eq=False, slots=True, kw_only=True)
class Graphs:
    """The graphs of one function that always works on the same memory. Not for two threads at a time.

    Runs of different kinds, which the caller tells apart, share no graph.
    """

    after: int  # runs of a shape before it is captured
    pads: bool  # whether rows may be added, so that a batch which shrinks is not captured at every size
    steady: Collection[int] = ()  # inputs that are never changed in place: the same tensor is not copied twice
    most: int = 32
    record: Record = CudaGraph
    runs: Counter[Shape] = field(default_factory=Counter)
    captured: OrderedDict[Shape, _Graph] = field(default_factory=OrderedDict)  # the latest to be used comes last

    def __call__(self, run: Run, *inputs: Any, **options: Any) -> Outputs:
        """What the function gives; valid until the next call. Takes what `prepare` takes."""
        return self.prepare(run, *inputs, **options).run()

    def prepare(
        self, run: Run, first: Tensor, *others: Input, kind: Any = None, at_home: Collection[int] = ()
    ) -> Ready:
        """Copy the inputs to where a graph reads them, if there is a graph of their shapes.

        Inputs that are `at_home` come from the same memory in every call of this kind, and are read there.
        """
        inputs, rows = (first, *others), first.shape[0]
        padded = padded_rows(rows) if self.pads else rows
        shapes = [None if value is None else tuple(value.shape) for value in inputs]
        sizes = tuple((padded, *shape[1:]) if self.pads and shape is not None else shape for shape in shapes)
        shape = (kind, sizes, *(None if value is None else value.dtype for value in inputs), first.device)
        graph = self.captured.get(shape)
        if graph is None:
            return Ready(lambda: self._run_or_capture(run, inputs, shape, padded, at_home), replays=False)
        self.captured.move_to_end(shape)
        outputs = graph.recording.outputs
        outputs = outputs if padded == rows else tuple(value[:rows] for value in outputs)
        graph.fill(inputs)

        def replay() -> Outputs:
            graph.recording.replay()
            return outputs

        return Ready(replay, replays=True)

    def _run_or_capture(
        self, run: Run, inputs: tuple[Any, ...], shape: Shape, rows: int, at_home: Collection[int]
    ) -> Outputs:
        self.runs[shape] += 1
        if self.runs[shape] <= self.after:
            return run(*inputs)
        # The copies outlive this call. Inference tensors could not be written to outside of inference mode.
        with torch.inference_mode(False):
            own = [_own(x, rows if self.pads else None, index in at_home) for index, x in enumerate(inputs)]
        pool = next(iter(self.captured.values())).recording.pool if self.captured else None
        self.captured[shape] = _Graph(own, self.record(run, own, pool), self.steady)
        if len(self.captured) > self.most:
            oldest, _ = self.captured.popitem(last=False)
            del self.runs[oldest]  # a shape that returns is counted from zero again
        # Copies: to the caller this is a plain run, whose outputs the next run leaves alone.
        return tuple(value.clone() for value in self.prepare(run, *inputs, kind=shape[0]).run())


class PassGraphs:
    """The graphs of passes over whole canvases, and over parts of them, that work on the same memory."""

    def __init__(self, record: Record = CudaGraph) -> None:
        self.whole = Graphs(after=2, pads=False, record=record)
        # Padding costs little here: most of the time goes into reading weights. Only the tokens change in place.
        self.part = Graphs(after=1, pads=True, steady=(1, 2, 3, 4), record=record)


@dataclass(eq=False, slots=True)
class _Graph:
    """A recording, and the inputs that it reads."""

    inputs: list[Input]
    recording: Any
    steady: Collection[int]
    given: dict[int, Tensor] = field(default_factory=dict)  # steady inputs as they were last copied

    def fill(self, inputs: Sequence[Input]) -> None:
        """Copy the inputs that have changed to where the graph reads them."""
        into, values = [], []
        for index, (own, value) in enumerate(zip(self.inputs, inputs, strict=True)):
            if own is None or value is None or value is self.given.get(index) or value is own:
                continue
            rows = value.shape[0]
            into.append(own[:rows])
            values.append(value)
            if rows < own.shape[0]:
                # Rows that repeat the last row write what it writes.
                into.append(own[rows:])
                values.append(value[-1:].expand_as(own[rows:]))
            if index in self.steady:
                self.given[index] = value
        torch._foreach_copy_(into, values)


def padded_rows(rows: int) -> int:
    """1, 2, then multiples of 4."""
    return rows if rows <= 2 else -(-rows // 4) * 4


def _own(x: Input, rows: int | None, at_home: bool) -> Input:
    """A copy of that many rows (None: as many as there are), the last row repeated; an input at home as it is."""
    if x is None or (at_home and rows in (None, x.shape[0])):
        return x
    missing = 0 if rows is None else rows - x.shape[0]
    return torch.cat([x, x[-1:].expand(missing, *x.shape[1:])])
