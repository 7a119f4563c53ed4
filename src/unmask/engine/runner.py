"""How passes are run: the plain way, on every device.

In every pass the loop calls `forward` for every model call, `decide` for every group, `read` once and `begin` once. The
runner of `engine/cuda` gives the same tokens. Where it can, it begins the next pass before the host has read the
results of this one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from unmask import policies
from unmask.cache.storage import StoragePool
from unmask.device import fast_module
from unmask.engine.batch import Batch, Call
from unmask.engine.commit import Decided, commit
from unmask.engine.forward import forward
from unmask.engine.observe import observe
from unmask.engine.rows import Group, PassResult, Row
from unmask.engine.verify import forward_with_guesses, verified
from unmask.engine.window import Pass
from unmask.errors import UnmaskError
from unmask.models.base import MaskedLM
from unmask.types import Decision, StepView


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """What a pass did to a group: on the device, or known to the host already."""

    group: Group
    decided: Decided | None = None
    turns: list[list[PassResult]] | None = None  # of each row


class Runner:
    """What the loop asks of a device. This one runs every pass when it is asked for."""

    pending = False  # whether `read` has launched the next pass already, so that no row may join it

    def __init__(self, model: MaskedLM, pool: StoragePool) -> None:
        self.model, self.pool = model, pool

    def forward(self, call: Call) -> Pass:
        """Predict the window of the call's rows."""
        return forward_with_guesses(self.model, call) if call.kind.verify else forward(self.model, call)

    def decide(self, group: Group, done: Pass) -> GroupResult:
        """Have the policy decide, and commit within the guarantees; the group's tokens and state are replaced."""
        try:
            if done.guessed is not None:
                return GroupResult(group=group, turns=verified(group, done, self.decide_once))
            decided = self.decide_group(group, done)
        except UnmaskError as error:  # the rows of this group fail, the other groups go on
            return GroupResult(group=group, turns=[[PassResult(error=error, refreshed=r)] for r in done.refreshed])
        group.tokens, group.state = decided.tokens, decided.state
        return GroupResult(group=group, decided=decided)

    def decide_group(self, group: Group, done: Pass) -> Decided:
        return self.decide_once(group, done)

    def decide_once(self, group: Group, done: Pass, *, own: bool = False) -> Decided:
        """Observe, decide and commit; changes none of its inputs, except logits that are its `own`."""
        view, logits = observe(group, done, own=own)
        decision, state = self.select(group, view)
        return commit(group, done, view, logits, decision, state)

    def select(self, group: Group, view: StepView) -> tuple[Decision, Any]:
        return policies.decide(group.plan.policy, view, group.state)

    def read(self, batch: Batch, results: list[GroupResult]) -> list[tuple[Row, list[PassResult]]]:
        """Bring the results of all rows of all groups to the host in one copy; may launch the next pass."""
        return rows_of(results, joined_tables(results).tolist())

    def begin(self, batch: Batch) -> None:
        """Take over the pass that `read` launched, or launch the next one; the plain runner does neither."""

    def close(self, *, usable: bool) -> None:
        """End the loop; not `usable`: a pass failed, and nothing that it has written may be used again."""


def joined_tables(results: list[GroupResult]) -> Int[Tensor, " numbers"]:
    """The tables of all groups one behind the other, to be read at once."""
    parts = [result.decided.table.flatten() for result in results if result.decided is not None]
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.long)


def rows_of(results: list[GroupResult], numbers: list[int]) -> list[tuple[Row, list[PassResult]]]:
    """Every row of every group and its turns, from the numbers of the joined tables."""
    found, at = [], 0
    for result in results:
        turns = result.turns
        if result.decided is not None:
            end = at + result.decided.table.numel()
            turns, at = [[turn] for turn in result.decided.read(numbers[at:end])], end
        found += zip(result.group.rows, turns or (), strict=True)
    return found


def runner_for(model: MaskedLM, pool: StoragePool) -> Runner:
    """The fastest way to run passes of this model."""
    cuda = fast_module("unmask.engine.cuda.runner", model.device)
    return Runner(model, pool) if cuda is None else cuda.CudaRunner(model, pool)
