"""How passes are run: the plain way, on every device.

In every pass the loop calls `forward` for every model call, `decide` for every group, `read` once and `begin` once. The
runner of `engine/cuda` gives the same tokens. Where it can, it begins the next pass before the host has read the
results of this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from unmask import policies
from unmask.cache.storage import StoragePool
from unmask.device import fast_module
from unmask.engine.batch import Batch, Call
from unmask.engine.commit import CommitInputs, PassResult, apply, outcome_of
from unmask.engine.detail import TraceNumbers, TurnNumbers
from unmask.engine.forward import Pass, forward
from unmask.engine.rows import Group
from unmask.engine.verify import GuessedPass, forward_with_guesses, verified
from unmask.errors import UnmaskError
from unmask.models.base import MaskedLM
from unmask.types import Decision, StepView


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """What a pass did to a group, as the device knows it."""

    group: Group
    spans: tuple[tuple[int, int], ...]  # the positions of each row that the table tells of
    refreshed: tuple[bool, ...]  # rows whose cache the pass renewed
    table: Int[Tensor, "b results"] | None  # the results of the rows, laid out as engine/commit.py says
    trace: TraceNumbers | TurnNumbers | None
    error: UnmaskError | None  # instead of a table: why the policy could not decide


@runtime_checkable
class Runner(Protocol):
    """What the loop asks of a device."""

    model: MaskedLM
    pool: StoragePool

    @property
    def pending(self) -> bool:
        """Whether `read` has launched the next pass already, so that no row may join it."""
        ...

    def forward(self, call: Call) -> Pass:
        """Predict the window of the call's rows."""
        ...

    def decide(self, group: Group, done: Pass) -> GroupResult:
        """Have the policy decide, and commit within the guarantees; the group's tokens and state are replaced."""
        ...

    def read(self, batch: Batch, results: list[GroupResult]) -> list[list[PassResult]]:
        """Bring the results of all rows of all groups to the host in one copy; may launch the next pass."""
        ...

    def begin(self, batch: Batch) -> None:
        """Take over the pass that `read` launched, or launch the next one; the plain runner does neither."""
        ...

    def close(self, *, usable: bool) -> None:
        """End the loop; not `usable`: a pass failed, and nothing that it has written may be used again."""
        ...


class PlainRunner:
    """Runs every pass when it is asked for."""

    pending = False

    def __init__(self, model: MaskedLM, pool: StoragePool) -> None:
        self.model, self.pool = model, pool

    def forward(self, call: Call) -> Pass:
        return forward_with_guesses(self.model, call) if call.kind.verify else forward(self.model, call)

    def decide(self, group: Group, done: Pass) -> GroupResult:
        table = trace = error = None
        try:
            table, trace = self.decide_and_commit(group, done)
        except UnmaskError as caught:  # the rows of this group fail, the other groups go on
            error = caught
        refreshed = tuple(row.refresh for row in done.plan.rows)
        spans = done.spans
        return GroupResult(group=group, spans=spans, refreshed=refreshed, table=table, trace=trace, error=error)

    def decide_and_commit(
        self, group: Group, done: Pass
    ) -> tuple[Int[Tensor, "b results"], TraceNumbers | TurnNumbers | None]:
        """The table of results, and the numbers of a trace. The group gets its new tokens and state."""
        if isinstance(done, GuessedPass):
            return verified(group, done, partial(self._decide_once, most_open=done.most_open))
        most_open = max(row.canvas.open_in_block() for row in group.rows)  # known on the host; saves a rule work
        return self._decide_once(group, done, most_open=most_open)

    def _decide_once(
        self, group: Group, done: Pass, *, most_open: int
    ) -> tuple[Int[Tensor, "b results"], TraceNumbers | None]:
        generators = [row.generator for row in group.rows]
        observed = group.observer(done.prediction, done.window, group.tokens, group.holes, generators, most_open)
        decision, group.state = self.select(group, observed.view)
        inputs = CommitInputs(
            decision=decision,
            observed=observed,
            at=done.window.at,
            drifted=done.drifted,
            first=done.window.first,
            first_only=done.first_only(),
            pin_first=done.pin_first(),
            mask_id=self.model.spec.mask_id,
            mask_allowed=not group.settings.suppress_mask_token,
        )
        group.tokens, table = apply(group.tokens, inputs)
        trace = None
        if group.detail is not None:
            trace = TraceNumbers(observed.view, decision, outcome_of(inputs).tokens, group.detail)
        return table, trace

    def select(self, group: Group, view: StepView) -> tuple[Decision, Any]:
        return policies.decide(group.policy, view, group.state)

    def read(self, batch: Batch, results: list[GroupResult]) -> list[list[PassResult]]:
        return row_results(results, joined_tables(results).tolist())

    def begin(self, batch: Batch) -> None:
        pass

    def close(self, *, usable: bool) -> None:
        pass


def joined_tables(results: list[GroupResult]) -> Int[Tensor, " numbers"]:
    """The tables of all groups one behind the other, to be read at once."""
    parts = [result.table.flatten() for result in results if result.table is not None]
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.long)


def row_results(results: list[GroupResult], numbers: list[int]) -> list[list[PassResult]]:
    """The results of every row of every group, from the numbers of the joined tables."""
    found, at = [], 0
    for result in results:
        if result.table is None:
            assert result.error is not None
            found.append([PassResult.failed(result.error)] * len(result.spans))
            continue
        width = result.table.shape[1]
        rows = [numbers[at + width * row : at + width * (row + 1)] for row in range(len(result.spans))]
        found.append([PassResult.read(row, block) for row, block in zip(rows, result.spans, strict=True)])
        at += result.table.numel()
    return found


def runner_for(model: MaskedLM, pool: StoragePool) -> Runner:
    """The fastest way to run passes of this model."""
    cuda = fast_module("unmask.engine.cuda.runner", model.device)
    return PlainRunner(model, pool) if cuda is None else cuda.CudaRunner(model, pool)
