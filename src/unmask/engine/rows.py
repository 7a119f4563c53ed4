"""One request while it is decoded, and the rows that one policy decides together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.functional import pad

from unmask.device import on_device
from unmask.engine.canvas import Canvas
from unmask.engine.commit import PassResult
from unmask.engine.observe import Observer
from unmask.engine.plan import Plan
from unmask.engine.scheduler import Request
from unmask.errors import UnmaskError, WorkFailed
from unmask.models.base import ModelSpec
from unmask.policies import most_commits, name_of, remasks, state_of
from unmask.types import Commit, StepEvent

MOST_WAITING = 1000  # passes in which a policy may wait before it fills more positions than ever
_WIDTHS = 256  # canvases of a group are padded to a multiple of it, so that few widths occur


@dataclass(slots=True, eq=False, kw_only=True)
class Row:
    """One request while it is decoded."""

    number: int  # in the order of admission
    request: Request
    generator: torch.Generator
    slot: int = 0  # of its call's storage
    filled: int = 0  # most positions that were filled after a pass
    idle: int = 0  # passes since then in which the policy did not wait
    waited: int = 0  # passes since then in which it did
    leaving: bool = False  # the request was abandoned before the pass was sealed
    done: bool = False

    @property
    def canvas(self) -> Canvas:
        return self.request.canvas

    @property
    def plan(self) -> Plan:
        return self.request.plan

    def record(self, result: PassResult, *, eos_id: int, refreshed: bool) -> StepEvent:
        """Write the result of a pass to the canvas; returns the event."""
        canvas = self.canvas
        step, block = canvas.passes, canvas.block
        error, committed = None, {}
        try:
            self._check(result)
        except UnmaskError as caught:  # this row fails, the others go on
            error = caught
        if error is None:
            committed = self._write(result, eos_id)
            canvas.stale = result.drifted
        self.done = canvas.finished or error is not None
        text = self.request.token_text
        commits = tuple(Commit(position=at, token_id=token, text=text(token)) for at, token in committed.items())
        return StepEvent(
            row=self.number,
            step=step,
            block=block,
            committed=commits,
            remasked=result.remasked if error is None else (),
            refreshed=refreshed,
            finished=self.done,
            error=error,
        )

    def _write(self, result: PassResult, eos_id: int) -> dict[int, int]:
        """Write a result to the canvas; returns the commits that stand. Those behind the end of the text do not."""
        canvas, committed = self.canvas, _before(result.committed, self.canvas.block[1])
        ends = canvas.write(committed, result.remasked) and self.request.ended()
        while len(committed) < len(result.committed) and not ends:  # a pass that verifies may go on in the next block
            committed = _before(result.committed, canvas.block[1])
            ends = canvas.go_on(committed) and self.request.ended()
        if result.step is not None:
            canvas.block_step = result.step
        if self.leaving or ends:
            canvas.end_here(eos_id)
        return committed

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
        once = result.step is None  # a pass that verifies decides several times
        if once and committed > most_commits(policy, canvas.open_in_block(), canvas.block_step) + forced:
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


def _before(commits: dict[int, int], end: int) -> dict[int, int]:
    return {at: token for at, token in commits.items() if at < end}


class Group:
    """Rows that one policy decides together: their tokens on the device, and what the policy remembers of them."""

    def __init__(self, plan: Plan, request: Request, device: torch.device) -> None:
        self.policy, self.settings, self.detail = plan.policy, plan.decision_settings, request.detail
        self.observer = Observer(spec=plan.spec, settings=plan.decision_settings, needs=plan.needs)
        self.rows: list[Row] = []
        self.newcomers: list[Row] = []  # not on the device yet
        self.state: Any = None
        self.length = 0  # of the longest canvas; stays when rows leave, so that a policy's state keeps its shape
        self.tokens: Int[Tensor, "b n"] = torch.empty(0, 0, dtype=torch.long, device=device)
        self.holes: Bool[Tensor, "b n"] = self.tokens.bool()
        self.guesses: Int[Tensor, "b g n"] = self.tokens[:, None].expand(-1, plan.settings.verify, -1)

    def takes(self, request: Request) -> bool:
        """Whether the request may join: not while the policy keeps state, since a new row would have no history."""
        same = (self.policy, self.settings, self.detail) == (
            request.plan.policy,
            request.plan.decision_settings,
            request.detail,
        )
        return same and self.state is None

    def take_in(self, spec: ModelSpec) -> None:
        """Append the newcomers to the rows and to the tensors of the group."""
        rows, self.newcomers = self.newcomers, []
        if not rows:
            return
        device = self.tokens.device
        self.rows += rows
        self.length = max(row.canvas.length for row in self.rows)
        width = -(-self.length // _WIDTHS) * _WIDTHS
        padded = [row.canvas.tokens + [spec.eos_id] * (width - row.canvas.length) for row in rows]
        added = on_device(torch.tensor(padded, dtype=torch.long), device)
        wider = (0, width - self.tokens.shape[1])  # negative: the tensors become narrower
        self.tokens = torch.cat([pad(self.tokens, wider, value=spec.eos_id), added])
        self.holes = torch.cat([pad(self.holes, wider), added == spec.mask_id])
        same = added[:, None].expand(-1, self.guesses.shape[1], -1)  # nothing is known yet of what comes
        self.guesses = torch.cat([pad(self.guesses, wider, value=spec.eos_id), same])

    def retire(self) -> list[Row]:
        """Remove the rows that are done, and return them."""
        done = [row for row in self.rows if row.done]
        if not done:
            return []
        staying = [number for number, row in enumerate(self.rows) if not row.done]
        index = on_device(staying, self.tokens.device).long()
        self.rows = [self.rows[number] for number in staying]
        self.tokens, self.holes, self.guesses = self.tokens[index], self.holes[index], self.guesses[index]
        self.state = state_of(self.state, index)
        return done
