"""Forward passes of one shape, captured as CUDA graphs: hundreds of launches become one.

A shape is captured when it has come a few times: the first time compiles what has to be compiled, and a shape that does
not come again is not worth it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from threading import Lock
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

Outputs: TypeAlias = tuple[Tensor, ...]
Run: TypeAlias = Callable[..., Outputs]  # of tensors that lead with the rows, to such tensors
Shape: TypeAlias = tuple[Any, ...]  # sizes, and what else a graph depends on

_CAPTURING = Lock()  # entering a capture waits for the whole device, which must not happen during another one


class Ready(NamedTuple):
    """A run of which all is done that can be done before it is known to be wanted."""

    run: Callable[[], Outputs]  # what is left takes the host no time
    replays: bool  # a graph, so that the outputs lie where they lay the last time


@runtime_checkable
class Recording(Protocol):
    """A run on inputs that stay where they are, which can be repeated into the same outputs."""

    outputs: Outputs
    pool: Any  # the memory it works in, which later recordings may share

    def replay(self) -> None: ...


class CudaGraph:
    """A run recorded as a CUDA graph, in a pool of memory (None: a new one)."""

    def __init__(self, run: Run, inputs: list[Tensor], pool: Any) -> None:
        self._device = torch.cuda.device(inputs[0].device)  # a graph is replayed on the current one
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


Record: TypeAlias = Callable[[Run, list[Tensor], Any], Recording]


class Graphs:
    """The graphs of one function that always works on the same memory; not for two threads at a time.

    Runs of different kinds, which the caller tells apart, share no graph.
    """

    def __init__(
        self,
        *,
        after: int,
        pads: bool,
        steady: Collection[int] = (),
        early: bool = False,
        most: int = 32,
        record: Record = CudaGraph,
    ) -> None:
        self._after = after  # runs of a shape before it is captured
        self._pads = pads  # whether rows may be added, so that a batch which shrinks is not captured at every size
        self._steady = steady  # inputs that nobody changes in place: given again, they are not copied again
        self._early = early  # whether inputs may be copied long before the graph is replayed
        self._most = most
        self._record = record
        self._runs: Counter[Shape] = Counter()
        self.captured: OrderedDict[Shape, _Graph] = OrderedDict()  # the one that was used last comes last

    def __call__(self, run: Run, *inputs: Tensor, kind: Any = None, at_home: Collection[int] = ()) -> Outputs:
        """What the function gives; valid until the next call.

        Inputs that are `at_home` come from the same memory in every call of this kind, and are read there.
        """
        return self.prepare(run, *inputs, kind=kind, at_home=at_home).run()

    def prepare(self, run: Run, *inputs: Tensor, kind: Any = None, at_home: Collection[int] = ()) -> Ready:
        rows = inputs[0].shape[0]
        padded = padded_rows(rows) if self._pads else rows
        sizes = tuple((padded, *value.shape[1:]) if self._pads else tuple(value.shape) for value in inputs)
        shape = (kind, sizes, *(value.dtype for value in inputs), inputs[0].device)
        graph = self.captured.get(shape)
        if graph is None:
            return Ready(lambda: self._run_or_capture(run, inputs, shape, padded, at_home), replays=False)
        self.captured.move_to_end(shape)
        outputs = graph.outputs if padded == rows else tuple(value[:rows] for value in graph.outputs)
        if self._early:
            graph.fill(inputs)

        def replay() -> Outputs:
            if not self._early:
                graph.fill(inputs)
            graph.replay()
            return outputs

        return Ready(replay, replays=True)

    def _run_or_capture(
        self, run: Run, inputs: tuple[Tensor, ...], shape: Shape, rows: int, at_home: Collection[int]
    ) -> Outputs:
        self._runs[shape] += 1
        if self._runs[shape] <= self._after:
            return run(*inputs)
        own = _own(inputs, rows if self._pads else None, at_home)
        pool = next(iter(self.captured.values())).recording.pool if self.captured else None
        self.captured[shape] = _Graph(own, self._record(run, own, pool), self._steady)
        if len(self.captured) > self._most:
            oldest, _ = self.captured.popitem(last=False)
            del self._runs[oldest]  # when it comes back, it has to prove itself again
        # Copies: the caller takes this for a plain run, whose outputs the next run leaves alone.
        return tuple(value.clone() for value in self.prepare(run, *inputs, kind=shape[0]).run())


class PassGraphs:
    """The graphs of passes over whole canvases, and over parts of them, that work on the same memory."""

    def __init__(self, record: Record = CudaGraph) -> None:
        self.whole = Graphs(after=2, pads=False, record=record)
        # Padding costs little here: reading the weights is what takes the time. All but the tokens stay as they are.
        self.part = Graphs(after=1, pads=True, steady=(1, 2, 3, 4), early=True, record=record)


class _Graph:
    """A recording, and the inputs that it reads."""

    def __init__(self, inputs: list[Tensor], recording: Recording, steady: Collection[int]) -> None:
        self.inputs = inputs
        self.recording, self.outputs, self.replay = recording, recording.outputs, recording.replay
        self.steady = steady
        self.given: list[Tensor | None] = [None] * len(inputs)

    def fill(self, inputs: tuple[Tensor, ...]) -> None:
        """Copy what has changed to where the graph reads it."""
        into, values = [], []
        for index, (own, value) in enumerate(zip(self.inputs, inputs, strict=True)):
            if value is not self.given[index] and value is not own:
                rows = value.shape[0]
                into.append(own[:rows])
                values.append(value)
                if rows < own.shape[0]:
                    # Rows that repeat the last one write what it writes.
                    into.append(own[rows:])
                    values.append(value[-1:].expand_as(own[rows:]))
                if index in self.steady:
                    self.given[index] = value
        torch._foreach_copy_(into, values)


def padded_rows(rows: int) -> int:
    """1, 2, then multiples of 4."""
    return rows if rows <= 2 else -(-rows // 4) * 4


def _own(inputs: tuple[Tensor, ...], rows: int | None, at_home: Collection[int]) -> list[Tensor]:
    """Copies of that many rows (None: as many as there are), the last one repeated; those at home where they fit."""

    def copied(x: Tensor) -> Tensor:
        missing = 0 if rows is None else rows - x.shape[0]
        return torch.cat([x, x[-1:].expand(missing, *x.shape[1:])])

    # They outlive this call, so they must not be born as inference tensors, which nobody else may write to.
    with torch.inference_mode(False):
        return [x if index in at_home and rows in (None, x.shape[0]) else copied(x) for index, x in enumerate(inputs)]
