"""How passes are run: the plain way, on every device.

In every pass the loop asks a runner to run the model calls, to have groups decide, and to read the results. The runner
of `engine/cuda` does the same sooner, and the loop cannot tell the two apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Int
from torch import Tensor

from unmask import policies
from unmask.cache.storage import StoragePool
from unmask.device import fast_module
from unmask.engine.batch import Batch, Call
from unmask.engine.commit import CommitInputs, PassResult, apply, outcome_of
from unmask.engine.detail import Numbers
from unmask.engine.forward import Pass, forward
from unmask.engine.rows import Group
from unmask.errors import UnmaskError
from unmask.models.base import MaskedLM
from unmask.types import Decision, StepView


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What became of a group's decision."""

    group: Group
    blocks: tuple[tuple[int, int], ...]  # of the rows, when it was made
    refreshed: tuple[bool, ...]
    results: Int[Tensor, "b results"] | None = None  # laid out as commit.py says
    numbers: Numbers | None = None  # for traces
    error: UnmaskError | None = None  # instead of results: why the policy could not decide


@runtime_checkable
class Runner(Protocol):
    """What the loop asks for."""

    model: MaskedLM
    pool: StoragePool

    @property
    def pending(self) -> bool:
        """Whether the next pass has begun, so that no row may join it."""
        ...

    def forward(self, call: Call) -> Pass: ...

    def decide(self, group: Group, done: Pass) -> Decided:
        """All that a pass does to a group on the device: view, decision, guarantees, commits, results."""
        ...

    def read(self, batch: Batch, decided: list[Decided]) -> list[list[PassResult]]:
        """What the pass did to every row of every group."""
        ...

    def begin(self, batch: Batch) -> None:
        """Begin the next pass, where that saves time."""
        ...

    def close(self, *, usable: bool) -> None:
        """End the loop; not `usable`: a pass failed, and nothing that it left may be used again."""
        ...


class PlainRunner:
    """Runs every pass when it is asked for, and waits for it."""

    pending = False

    def __init__(self, model: MaskedLM, pool: StoragePool) -> None:
        self.model, self.pool = model, pool

    def forward(self, call: Call) -> Pass:
        return forward(self.model, call)

    def decide(self, group: Group, done: Pass) -> Decided:
        try:
            return decided_of(group, done, *self.decided(group, done))
        except UnmaskError as error:  # the rows of this group fail, the others go on
            return replace(decided_of(group, done), error=error)

    def decided(self, group: Group, done: Pass) -> tuple[Int[Tensor, "b results"], Numbers | None]:
        """The results of the group; its tokens are changed accordingly."""
        generators = [row.generator for row in group.rows]
        most_open = max(row.canvas.open_in_block() for row in group.rows)
        observed = group.observer(done.prediction, done.window, group.tokens, group.holes, generators, most_open)
        decision, group.state = self.select(group, observed.view)
        inputs = CommitInputs(
            decision=decision,
            observed=observed,
            at=done.window.at,
            drifted=done.drifted,
            first_only=done.first_only(),
            pinned=done.pinned(),
            mask_id=self.model.spec.mask_id,
            mask_allowed=not group.settings.suppress_mask_token,
        )
        group.tokens, results = apply(group.tokens, inputs)
        numbers = None
        if group.detail is not None:
            numbers = Numbers(observed.view, decision, outcome_of(inputs).tokens, group.detail)
        return results, numbers

    def select(self, group: Group, view: StepView) -> tuple[Decision, Any]:
        return policies.decide(group.policy, view, group.state)

    def read(self, batch: Batch, decided: list[Decided]) -> list[list[PassResult]]:
        return results_of(decided, numbers_of(decided).tolist())

    def begin(self, batch: Batch) -> None:
        pass

    def close(self, *, usable: bool) -> None:
        pass


def decided_of(group: Group, done: Pass, results: Tensor | None = None, numbers: Numbers | None = None) -> Decided:
    refreshed = tuple(row.refresh for row in done.plan.rows)
    return Decided(group=group, blocks=done.window.blocks, refreshed=refreshed, results=results, numbers=numbers)


def numbers_of(decided: list[Decided]) -> Int[Tensor, " numbers"]:
    """The results of all groups one behind the other, to be read at once."""
    parts = [one.results.flatten() for one in decided if one.results is not None]
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.long)


def results_of(decided: list[Decided], numbers: list[int]) -> list[list[PassResult]]:
    """What `numbers_of` holds, row by row."""
    found, at = [], 0
    for one in decided:
        if one.results is None:
            assert one.error is not None
            found.append([PassResult.failed(one.error)] * len(one.blocks))
            continue
        width = one.results.shape[1]
        rows = [numbers[at + width * row : at + width * (row + 1)] for row in range(len(one.blocks))]
        found.append([PassResult.read(row, block) for row, block in zip(rows, one.blocks, strict=True)])
        at += one.results.numel()
    return found


def runner_for(model: MaskedLM, pool: StoragePool) -> Runner:
    """The fastest way to run passes of this model."""
    cuda = fast_module("unmask.engine.cuda.runner", model.device)
    return PlainRunner(model, pool) if cuda is None else cuda.CudaRunner(model, pool)
