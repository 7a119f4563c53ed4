"""One request while it is decoded, what a pass does to it, and the rows that one policy decides together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.functional import pad

from unmask.device import on_device
from unmask.engine.canvas import Canvas
from unmask.engine.plan import Detail, Plan
from unmask.engine.scheduler import Request
from unmask.errors import UnmaskError, WorkFailed
from unmask.policies import most_commits, name_of, remasks, state_of
from unmask.types import Commit, Open, StepEvent

MOST_WAITING = 1000  # passes in which a policy may wait before it fills more positions than ever
_WIDTHS = 256  # canvases of a group are padded to a multiple of it, so that few widths occur


@dataclass(frozen=True, slots=True, kw_only=True)
class RowNumbers:
    """The numbers behind a decision about one row, for a trace."""

    open: tuple[Open, ...]
    committed: dict[int, dict[str, Any]]  # by open position: fields of a Commit, if the position is committed
    overlap: list[list[float]] | None  # of the open positions


@dataclass(frozen=True, slots=True, kw_only=True)
class PassResult:
    """What a pass did to one row."""

    committed: dict[int, int] = field(default_factory=dict)  # position -> token
    remasked: tuple[int, ...] = ()
    waiting: bool = False  # the policy let the row idle on purpose
    drifted: bool = False  # the next pass must refresh the row's cache
    broken: bool = False  # an open position had no usable logits
    foreign: bool = False  # the policy gave a token outside the vocabulary
    goes_on: bool = False  # the block stays open and needs no refresh, so `Cache.plan_next` has the next pass's plan
    refreshed: bool = False  # the pass renewed the row's cache
    numbers: RowNumbers | None = None  # for a trace
    error: UnmaskError | None = None  # why the policy could not decide; then the pass did nothing


@dataclass(slots=True, eq=False, kw_only=True)
class Row:
    """One request while it is decoded."""

    number: int  # in the order of admission
    request: Request
    canvas: Canvas
    plan: Plan
    generator: torch.Generator
    slot: int = 0  # of its call's storage
    filled: int = 0  # most positions that were filled after a pass
    idle: int = 0  # decisions since then in which the policy did not wait
    waited: int = 0  # decisions since then in which it did
    leaving: bool = False  # ends with the pass under way: its request was abandoned, or its text is complete
    done: bool = False
    guesses: list[list[int]] = field(default_factory=list)  # what the canvas may become; see verify.py

    def record(self, turns: list[PassResult]) -> StepEvent:
        """Write what a pass did to the canvas; returns the event. A pass has one turn, or more if guesses came true."""
        canvas, numbers = self.canvas, turns[0].numbers
        step, block = canvas.passes, canvas.block
        commits: list[Commit] = []
        remasked, error = (), None
        try:
            for number, turn in enumerate(turns):
                self._check(turn)
                commits += self._commits(turn)
                remasked, canvas.stale = turn.remasked, turn.drifted
                full = canvas.write(turn.committed, turn.remasked, same_pass=number > 0)
                self.leaving = self.leaving or (full and self.request.ended())
                if self.leaving:
                    canvas.end_here(self.plan.spec.eos_id)
                    break
        except UnmaskError as caught:  # this row fails, the others go on
            error = caught
        self.done = canvas.finished or error is not None
        return StepEvent(
            row=self.number,
            step=step,
            block=block,
            committed=tuple(sorted(commits, key=lambda commit: commit.position)),
            remasked=remasked,
            refreshed=turns[0].refreshed,
            open=None if numbers is None else numbers.open,
            overlap=None if numbers is None else numbers.overlap,
            finished=self.done,
            error=error,
        )

    def _commits(self, turn: PassResult) -> Iterator[Commit]:
        for position, token in turn.committed.items():
            numbers = {} if turn.numbers is None else turn.numbers.committed[position]
            yield Commit(position=position, token_id=token, text=self.request.token_text(token), **numbers)

    def _check(self, result: PassResult) -> None:
        """Raise why the row cannot be decoded to its end, if it cannot."""
        canvas, policy, committed = self.canvas, self.plan.policy, len(result.committed)
        if result.error is not None:
            raise result.error
        if result.broken:
            raise WorkFailed(f"the model gave no usable logits (NaN or all -inf) in forward pass {canvas.passes}")
        if result.foreign:
            outside = f"a token outside the vocabulary of {self.plan.spec.vocab_size}"
            raise WorkFailed(f"the policy {name_of(policy)} gave {outside}")
        forced = canvas.sliding < 1.0  # the engine may add a commit in the first open block
        if committed > most_commits(policy, canvas.open_in_block(), canvas.block_step) + forced:
            raise WorkFailed(f"the policy {name_of(policy)} commits more than its most_commits allows")
        filled = len(canvas.step_map) + committed - len(result.remasked)
        if filled > self.filled:
            self.filled, self.idle, self.waited = filled, 0, 0
            return
        self.idle, self.waited = self.idle + (not result.waiting), self.waited + result.waiting
        if self.idle <= 2 * len(canvas.holes) and self.waited < MOST_WAITING:
            return
        why = "commits nothing, since only the mask token is proposed; see suppress_mask_token"
        if result.waiting or committed or remasks(policy):
            why = "waits" if result.waiting else "takes back what it commits"
        passes = self.idle + self.waited
        raise WorkFailed(f"a row has made no progress in {passes} passes: the policy {name_of(policy)} {why}")


@dataclass(slots=True, eq=False, kw_only=True)
class Group:
    """Rows that one policy decides together: their tokens on the device, and what the policy remembers of them."""

    plan: Plan  # of the first row; `takes` says what it has in common with the others
    detail: Detail | None = None
    tokens: Int[Tensor, "b n"]
    holes: Bool[Tensor, "b n"]  # the positions to fill
    rows: list[Row] = field(default_factory=list)
    state: Any = None
    length: int = 0  # of the longest canvas; stays when rows leave, so that a policy's state keeps its shape

    def takes(self, request: Request) -> bool:
        """Whether the request may join: not while the policy keeps state, since a new row would have no history."""
        mine, its = ((plan.policy, plan.decision_settings) for plan in (self.plan, request.plan))
        return mine == its and self.detail == request.detail and self.state is None

    def take_in(self) -> bool:
        """Bring rows that have joined to the device; true if there are any."""
        joined = self.rows[len(self.tokens) :]
        if not joined:
            return False
        self.length = max(row.canvas.length for row in self.rows)
        width, spec = -(-self.length // _WIDTHS) * _WIDTHS, self.plan.spec
        added = padded([row.canvas.tokens for row in joined], width, spec.eos_id, self.tokens.device)
        wider = (0, width - self.tokens.shape[1])  # negative: the tensors become narrower
        self.tokens = torch.cat([pad(self.tokens, wider, value=spec.eos_id), added])
        self.holes = torch.cat([pad(self.holes, wider), added == spec.mask_id])
        return True

    def retire(self) -> list[Row]:
        """Remove the rows that are done, and return them."""
        done = [row for row in self.rows if row.done]
        if done:
            staying = [number for number, row in enumerate(self.rows) if not row.done]
            index = on_device(staying, self.tokens.device).long()
            self.rows = [self.rows[number] for number in staying]
            self.tokens, self.holes = self.tokens[index], self.holes[index]
            self.state = state_of(self.state, index)
        return done


def padded(rows: list[list[int]], width: int, fill: int, device: torch.device) -> Int[Tensor, "b n"]:
    """Rows of tokens on the device, each filled up to the width."""
    return on_device(torch.tensor([row + [fill] * (width - len(row)) for row in rows]), device)
