"""Passes on a CUDA device: decisions are captured, results are read from pinned memory, and the next pass begins early.

A pass writes keys and values, so it cannot be thrown away. It begins before the host has read the result of the pass
before only if the same rows take part and its plan does not depend on that result, as it does where blocks slide or
guesses are verified. Then the device never waits for the host. Tokens are those of the plain runner.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from threading import Lock
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from unmask import policies
from unmask.cache.base import PassPlan
from unmask.cache.storage import StoragePool
from unmask.device import on_device
from unmask.engine.batch import Batch, Call
from unmask.engine.commit import FLAGS, Decided
from unmask.engine.plan import Plan
from unmask.engine.rows import Group, PassResult, Row
from unmask.engine.runner import GroupResult, Runner, joined_tables, rows_of
from unmask.engine.window import Pass, Window
from unmask.models.base import MaskedLM, PassInputs, Prediction
from unmask.models.kernels import passes
from unmask.models.kernels.graphs import Graphs, Run
from unmask.models.transformer import Transformer
from unmask.rules.kernels import serves

_MOST = 4  # policies whose graphs are kept
_SHAPES = 16  # shapes of each: a graph holds a copy of its logits, or keeps alive the logits that it reads in place
_LOOKING = Lock()
_GOES_ON = FLAGS.index("goes_on") - len(FLAGS)  # its column in a table
Reading = Callable[[Int[Tensor, " numbers"]], Callable[[], list[int]]]


class CudaRunner(Runner):
    """Begins the next pass as soon as its rows and its plan are certain."""

    def __init__(self, model: MaskedLM, pool: StoragePool) -> None:
        super().__init__(model, pool)
        self.reading: Reading = pinned_reading
        self._pass: Pass | None = None  # the pass under way
        self._launched: tuple[list[Row], Prediction] | None = None  # the pass after it, launched by `read`
        self._begun: tuple[Call, Pass] | None = None

    @property
    def pending(self) -> bool:
        return self._launched is not None

    def forward(self, call: Call) -> Pass:
        begun, self._begun = self._begun, None
        self._pass = begun[1] if begun is not None and begun[0] is call else super().forward(call)
        return self._pass

    def decide_group(self, group: Group, done: Pass) -> Decided:
        if not can_capture(group, done):
            return super().decide_group(group, done)
        return Decisions.of(self.pool, group.plan)(self, group, done)

    def read(self, batch: Batch, results: list[GroupResult]) -> list[tuple[Row, list[PassResult]]]:
        read = self.reading(joined_tables(results))
        depends = any(row.canvas.sliding < 1.0 or row.plan.settings.verify for row in batch.rows)
        if len(batch.calls) > 1 or not batch.stays or depends:
            return rows_of(results, read())
        call, ready = batch.calls[0], None
        if (prediction := self._predict_anywhere(call, results)) is None:
            ready = self._prepared(call, self._pass.window if self._pass else None)
            prediction = ready() if ready is not None and _cannot_complete(call) else None
        found = rows_of(results, read())
        if prediction is None and ready is not None and all(turn.goes_on for _, (turn,) in found):
            prediction = ready()
        if prediction is not None:
            self._launched = call.rows, prediction
        return found

    def begin(self, batch: Batch) -> None:
        launched, self._launched = self._launched, None
        if not batch.calls:
            return
        call = batch.calls[0]
        if launched is None:
            self._begun = call, super().forward(call)
            return
        rows, prediction = launched
        if call.rows != rows:  # a row has failed
            index = on_device([rows.index(row) for row in call.rows], self.model.device)
            prediction = Prediction(logits=prediction.logits[index])
        self._begun = call, Pass.of(call.plan(), call.next_window(), prediction)

    def close(self, *, usable: bool) -> None:
        self._pass = self._launched = self._begun = None
        if not usable:  # memory may have run out: drop everything that is kept for later
            self.pool.clear()
            with _LOOKING:
                self.pool.kept.clear()
            passes.forget(self.model)

    def prepare(self, call: Call, plan: PassPlan, at: Int[Tensor, "b k"] | None) -> Callable[[], Prediction] | None:
        """A pass over the call's rows, ready to begin; None where the model does not prepare passes."""
        if not passes.runs(self.model):
            return None
        assert isinstance(self.model, Transformer)
        tokens, cache, block_size = call.tokens(), call.caches[0], call.kind.block_size
        inputs = PassInputs(tokens=tokens, plan=plan, at=at, cache=cache, block_size=block_size)
        return passes.prepare(self.model, inputs)

    def _prepared(self, call: Call, window: Window | None) -> Callable[[], Prediction] | None:
        """The next pass of rows that stay in their blocks; None where it needs more than a plain prediction."""
        kind = call.kind
        plain = not (kind.guided or kind.whole or kind.shadow or kind.attention_layers)
        plan = call.plan_next() if plain else None
        if plan is None or window is None:
            return None
        return self.prepare(call, plan, window.predicted(plan))

    def _predict_anywhere(self, call: Call, results: list[GroupResult]) -> Prediction | None:
        """Launch the next pass without knowing which rows stay in their block and which go on to the next one.

        Without a cache both compute the whole canvas, and a flag on the device says which block to predict. None with a
        cache, where a row may end, or where the blocks differ in width or distance.
        """
        rows, window = call.rows, self._pass.window if self._pass else None
        if call.kind.cache != "none" or window is None or any(row.plan.settings.early_stop for row in rows):
            return None
        blocks = [block for row in rows for block in row.canvas.blocks[row.canvas.block_index :][:2]]
        starts, widths = [start for start, _ in blocks], {end - start for start, end in blocks}
        shifts = {after - before for before, after in zip(starts[::2], starts[1::2], strict=False)}
        if len(blocks) < 2 * len(rows) or len(widths) > 1 or len(shifts) > 1:
            return None
        tables = [result.table for _, result in results if isinstance(result, Decided)]
        if len(tables) < len(results):
            return None
        goes_on = torch.cat([table[:, _GOES_ON] for table in tables]) > 0
        at = torch.where(goes_on[:, None], window.at, window.at + shifts.pop())
        ready = self._prepared(call, replace(window, at=at, blocks=()))
        return None if ready is None else ready()


def _cannot_complete(call: Call) -> bool:
    """Whether every policy leaves its rows' blocks open in this pass, whatever it sees."""
    for row in call.rows:
        left = row.canvas.open_in_block()
        if policies.most_commits(row.plan.policy, left, row.canvas.block_step) >= left:
            return False
    return True


def pinned_reading(numbers: Int[Tensor, " numbers"]) -> Callable[[], list[int]]:
    """Begin a copy to the host; the function returned waits for the copy, but not for work launched after it."""
    if not numbers.is_cuda:
        return numbers.tolist
    copy = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
    copy.copy_(numbers, non_blocking=True)
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(numbers.device))

    def read() -> list[int]:
        done.synchronize()
        return copy.tolist()

    return read


class Decisions:
    """One policy's decisions as CUDA graphs: dozens of small launches between a prediction and the read become one.

    They live as long as the generator's storage pool, and serve every generation with the same policy and settings.
    """

    def __init__(self) -> None:
        self.graphs = Graphs(after=2, pads=True, steady=(3, 4, 5, 6, 7), most=_SHAPES)
        self._lock = Lock()

    @classmethod
    def of(cls, pool: StoragePool, plan: Plan) -> Decisions:
        """The captured decisions for the plan's policy and settings, none at first."""
        with _LOOKING:
            kept, key = pool.kept, (plan.spec, plan.policy, plan.decision_settings)
            found = kept[key] = kept.pop(key, None) or cls()  # the latest to be used comes last
            if len(kept) > _MOST:
                del kept[next(iter(kept))]
            return found

    def __call__(self, runner: Runner, group: Group, done: Pass) -> Decided:
        """What comes of the decision: copies, which the next call leaves alone."""
        # A graph has its logits to itself, so a captured decision may write to them.
        decide, inputs, flags = decision_of(runner, group, done, own=torch.cuda.is_current_stream_capturing)
        # Logits that the model always leaves in the same place are read there.
        home = inputs[0].data_ptr() if done.prediction.fleeting else None
        with self._lock:
            at_home = () if home is None else (0,)
            tokens, table = self.graphs(decide, *inputs, kind=(flags, home), at_home=at_home)
            tokens, table = tokens.clone(), table.clone()
        return Decided(tokens=tokens, table=table, blocks=done.window.blocks, refreshed=done.refreshed)


def decision_of(
    runner: Runner, group: Group, done: Pass, *, own: Callable[[], bool]
) -> tuple[Run, tuple[Tensor, ...], tuple[str, ...]]:
    """A group's decision as a function of tensors alone, these tensors, and the flags that are among them.

    The fourth to the eighth tensor stay as they are from pass to pass. `own`: the function may write to its logits.
    """
    window = done.window
    optional = {name: getattr(done, name) for name in ("drifted", "first_only", "pin_first")} | {"first": window.first}
    flags = {name: flag for name, flag in optional.items() if flag is not None}

    def decide(logits: Tensor, tokens: Tensor, step: Tensor, *steady: Tensor) -> tuple[Tensor, Tensor]:
        holes, at, inside, length, total, *values = steady
        here: dict[str, Any] = dict.fromkeys(optional) | dict(zip(flags, values, strict=True))
        first = here.pop("first")
        window = Window(blocks=(), at=at, inside=inside, first=first, step=step, length=length, total=total)
        part = Pass(window=window, prediction=Prediction(logits=logits), **here)
        decided = runner.decide_once(replace(group, rows=[], tokens=tokens, holes=holes), part, own=own())
        return decided.tokens, decided.table

    steady = (group.holes, window.at, window.inside, window.length, window.total)
    return decide, (done.prediction.logits, group.tokens, window.step, *steady, *flags.values()), tuple(flags)


def can_capture(group: Group, done: Pass) -> bool:
    """Whether the decision of the group is a function of tensors alone, and kernels serve its logits."""
    plan = group.plan
    pure = policies.is_pure(plan.policy) and not plan.needs
    return pure and plan.settings.temperature == 0.0 and group.detail is None and serves(done.prediction.logits)
