"""The live rows of the loop: which share a model call, which are decided together, who joins and who leaves.

A call is made of groups, a group of rows. Rows of one group lie side by side on the device, and groups side by side in
the call. Knows nothing of how passes are run.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.functional import pad

from unmask.cache.base import PassPlan
from unmask.cache.refresh import DriftStates
from unmask.cache.storage import KVCache, Lease, StoragePool
from unmask.device import on_device
from unmask.engine.canvas import Canvas
from unmask.engine.commit import PassResult
from unmask.engine.observe import Observer
from unmask.engine.plan import CallKind, Plan
from unmask.engine.scheduler import Request, Scheduler
from unmask.engine.window import Window
from unmask.errors import UnmaskError, WorkFailed
from unmask.models.base import ModelSpec
from unmask.policies import most_commits, name_of, remasks
from unmask.types import Commit, StepEvent

_WIDTHS = 256  # canvases of a group are padded to a multiple of it, so that few widths are met
_MOST_LEASES = 2  # of one kind at a time: a longer canvas may have a larger storage, beside the one in use


@dataclass(slots=True, eq=False, kw_only=True)
class Row:
    """One request while it is decoded."""

    number: int  # in the order of admission
    request: Request
    generator: torch.Generator
    slot: int = 0  # of its call's storage
    idle: int = 0  # passes in a row that committed no more than they took back
    leaving: bool = False  # it was abandoned when the pass was sealed
    done: bool = False

    @property
    def canvas(self) -> Canvas:
        return self.request.canvas

    @property
    def plan(self) -> Plan:
        return self.request.plan

    def record(self, result: PassResult, *, eos_id: int, refreshed: bool) -> StepEvent:
        """Note on the canvas what a pass did, and say so."""
        canvas = self.canvas
        step, block = canvas.passes, canvas.block
        error = self._error(result)
        if error is None:
            completed = canvas.write(result.committed, result.remasked)
            canvas.stale = result.drifted
            if self.leaving or (completed and self.request.ended()):
                canvas.end_here(eos_id)
        self.done = canvas.finished or error is not None
        commits = tuple(Commit(position=at, token_id=token) for at, token in result.committed.items())
        return StepEvent(
            row=self.number,
            step=step,
            block=block,
            committed=commits if error is None else (),
            remasked=result.remasked if error is None else (),
            refreshed=refreshed,
            finished=self.done,
            error=error,
        )

    def _error(self, result: PassResult) -> UnmaskError | None:
        """Why the row can come to no good."""
        canvas, policy, committed = self.canvas, self.plan.policy, len(result.committed)
        if result.error is not None:
            return result.error
        if result.broken:
            return WorkFailed(f"the model gave no usable logits (NaN or all -inf) in forward pass {canvas.passes}")
        if committed > most_commits(policy, canvas.open_in_block(), canvas.block_step):
            return WorkFailed(f"the policy {name_of(policy)} commits more than it said")
        moved = result.waiting or committed > len(result.remasked)
        self.idle = 0 if moved else self.idle + 1
        if self.idle > 2 * len(canvas.holes):
            reason = "the policy takes back what it commits" if remasks(policy) else "only the mask token is proposed"
            return WorkFailed(f"a row makes no progress: {reason}; see suppress_mask_token")
        return None


class Group:
    """Rows that one policy decides together: their tokens on the device, and what the policy remembers of them."""

    def __init__(self, plan: Plan, request: Request, device: torch.device) -> None:
        self.policy, self.settings, self.detail = plan.policy, plan.decision_settings, request.detail
        self.observer = Observer(spec=plan.spec, settings=plan.decision_settings, needs=plan.needs)
        self.rows: list[Row] = []
        self.state: Any = None
        self.length = 0  # of the longest canvas it has had, so that a policy's state keeps its shape
        self.tokens: Int[Tensor, "b n"] = torch.empty(0, 0, dtype=torch.long, device=device)
        self.holes: Bool[Tensor, "b n"] = self.tokens.bool()

    def takes(self, request: Request) -> bool:
        """Whether the request may join: not while the policy keeps state, since a new row would have no history."""
        same = (self.policy, self.settings, self.detail) == (
            request.plan.policy,
            request.plan.decision_settings,
            request.detail,
        )
        return same and self.state is None

    def add(self, rows: list[Row], spec: ModelSpec) -> None:
        device = self.tokens.device
        self.rows += rows
        self.length = max(row.canvas.length for row in self.rows)
        width = -(-self.length // _WIDTHS) * _WIDTHS
        padded = [row.canvas.tokens + [spec.eos_id] * (width - row.canvas.length) for row in rows]
        added = on_device(torch.tensor(padded, dtype=torch.long), device)
        wider = (0, width - self.tokens.shape[1])  # narrower, if that is below zero
        self.tokens = torch.cat([pad(self.tokens, wider, value=spec.eos_id), added])
        self.holes = torch.cat([pad(self.holes, wider), added == spec.mask_id])

    def retire(self) -> list[Row]:
        """Forget the rows that are done, and give them back."""
        done = [row for row in self.rows if row.done]
        if not done:
            return []
        staying = [number for number, row in enumerate(self.rows) if not row.done]
        index = on_device(staying, self.tokens.device).long()
        self.rows = [self.rows[number] for number in staying]
        self.tokens, self.holes = self.tokens[index], self.holes[index]
        if self.state is not None:
            values = {item.name: getattr(self.state, item.name) for item in fields(self.state)}
            kept = {name: value[index] for name, value in values.items() if isinstance(value, Tensor)}
            self.state = replace(self.state, **kept)
        return done


class Call:
    """Rows that one model call serves."""

    def __init__(self, kind: CallKind, lease: Lease | None, drift: DriftStates | None, device: torch.device) -> None:
        self.kind, self.lease, self.drift, self.device = kind, lease, drift, device
        self.groups: list[Group] = []
        self.caches: list[KVCache | None] = []  # with the prompt and, if it is guided, without
        self._window: Window | None = None
        self._plan: PassPlan | None = None

    @property
    def rows(self) -> list[Row]:
        return [row for group in self.groups for row in group.rows]

    @property
    def length(self) -> int:
        return max(group.length for group in self.groups)

    def changed(self) -> None:
        """Rows have joined or left."""
        self._window = self._plan = None
        if self.lease is None:
            self.caches = [None, None]
        else:
            slots = [row.slot for row in self.rows]
            self.caches = [KVCache(storage, slots, self.device) for storage in self.lease.storages]

    def window(self) -> Window:
        """The window of the next pass."""
        canvases = [row.canvas for row in self.rows]
        before = self._window
        if before is not None and before.blocks == tuple(canvas.block for canvas in canvases):
            self._window = before.next()
        else:
            self._window = Window.over(canvases, self.device)
        return self._window

    def plan(self, *, shifted: bool) -> PassPlan:
        """What the next pass computes."""
        return self._planned(tuple(row.plan.cache.plan(row.canvas, shifted=shifted) for row in self.rows))

    def plan_next(self, *, shifted: bool) -> PassPlan | None:
        """What the pass after the one under way computes if every row stays in its block; None: the result decides."""
        found = [row.plan.cache.plan_next(row.canvas, shifted=shifted) for row in self.rows]
        known = tuple(plan for plan in found if plan is not None)
        return self._planned(known) if len(known) == len(found) else None

    def _planned(self, rows: tuple[Any, ...]) -> PassPlan:
        if self._plan is None or self._plan.rows != rows:
            self._plan = PassPlan(rows, self.device)
        return self._plan

    def tokens(self) -> Int[Tensor, "b n"]:
        """The canvases as the model gets them: no wider than the longest."""
        return self._together([group.tokens for group in self.groups])

    def holes(self) -> Bool[Tensor, "b n"]:
        return self._together([group.holes for group in self.groups])

    def _together(self, parts: list[Tensor]) -> Tensor:
        length = self.length
        if len(parts) == 1:
            return parts[0][:, :length]
        return torch.cat([pad(part, (0, length - part.shape[1])) for part in parts])

    def places(self) -> list[tuple[Group, int, int]]:
        """Each group, and from where to where its rows are among those of the call."""
        found, first = [], 0
        for group in self.groups:
            found.append((group, first, first + len(group.rows)))
            first += len(group.rows)
        return found


class Batch:
    """All rows that are decoded at the moment."""

    def __init__(self, spec: ModelSpec, device: torch.device, pool: StoragePool) -> None:
        self.spec, self.device, self.pool = spec, device, pool
        self.calls: list[Call] = []
        self.reserved: list[tuple[int, Request]] = []  # taken from the line, to join the next pass

    @property
    def rows(self) -> list[Row]:
        return [row for call in self.calls for row in call.rows]

    @property
    def settled(self) -> bool:
        """Whether the next pass has the same rows, as far as is known before the result of this one."""
        return not self.reserved and not any(row.leaving for row in self.rows)

    def seal(self, scheduler: Scheduler) -> None:
        """Note which rows leave with the pass under way, and reserve newcomers for rows that are free already."""
        for row in self.rows:
            row.leaving = row.request.abandoned  # another thread may say so at any time
        self._reserve(scheduler)

    def admit(self, scheduler: Scheduler) -> None:
        """Let newcomers join: those that were reserved, and as many more as there are free rows."""
        self._reserve(scheduler)
        newcomers, self.reserved = self.reserved, []
        rows = [self._row(number, request) for number, request in newcomers]
        changed: dict[int, Call] = {}
        while rows:
            kind = rows[0].plan.call_kind
            alike = [row for row in rows if row.plan.call_kind == kind]
            call = self._call_for(alike, scheduler.rows)
            joining = [row for row in alike if call.lease is None or row.canvas.length <= call.lease.length]
            joining = joining if call.lease is None else joining[: call.lease.free]
            self._join(call, joining)
            changed[id(call)] = call
            rows = [row for row in rows if row not in joining]
        for call in changed.values():
            call.changed()

    def retire(self) -> None:
        """Take out the rows that are done."""
        for call in self.calls:
            done = [row for group in call.groups for row in group.retire()]
            if call.lease is not None:
                for row in done:
                    call.lease.give_back(row.slot, clean=row.canvas.finished)
            call.groups = [group for group in call.groups if group.rows]
            if done and call.groups:
                call.changed()
        for call in self.calls:
            if not call.groups and call.lease is not None:
                call.lease.close(usable=True)
        self.calls = [call for call in self.calls if call.groups]

    def close(self, *, usable: bool) -> None:
        for call in self.calls:
            if call.lease is not None:
                call.lease.close(usable=usable)
        self.calls = []

    def _reserve(self, scheduler: Scheduler) -> None:
        room = scheduler.rows - len(self.rows) - len(self.reserved)
        if room > 0:
            self.reserved += scheduler.take(room, self._fits)

    def _fits(self, request: Request) -> bool:
        """Whether there is, or may be, a storage for the request."""
        kind = request.plan.call_kind
        leases = [call.lease for call in self.calls if call.kind == kind and call.lease is not None]
        reserved = any(other.plan.call_kind == kind for _, other in self.reserved)
        fitting = any(request.canvas.length <= lease.length and lease.free for lease in leases)
        return kind.cache == "none" or fitting or len(leases) + reserved < _MOST_LEASES

    def _row(self, number: int, request: Request) -> Row:
        if request.plan.spec is not self.spec:
            raise UnmaskError("a request was made by another generator than the one that decodes it")
        generator = torch.Generator(self.device).manual_seed(request.canvas.seed)
        return Row(number=number, request=request, generator=generator)

    def _call_for(self, rows: list[Row], most: int) -> Call:
        """A call of the rows' kind that can take the first of them, made if there is none."""
        kind, length = rows[0].plan.call_kind, rows[0].canvas.length
        for call in self.calls:
            if call.kind == kind and (call.lease is None or (call.lease.free and length <= call.lease.length)):
                return call
        lease, drift = None, None
        if kind.cache != "none":
            longest = max(row.canvas.length for row in rows)
            lease = Lease(self.pool, rows=most, length=longest, guided=kind.guided)
            if kind.drift is not None:
                drift = DriftStates(kind.drift, slots=lease.rows, length=lease.length)
        call = Call(kind, lease, drift, self.device)
        self.calls.append(call)
        return call

    def _join(self, call: Call, rows: list[Row]) -> None:
        for row in rows:
            row.slot = 0 if call.lease is None else call.lease.take()
        while rows:
            group = next((group for group in call.groups if group.takes(rows[0].request)), None)
            if group is None:
                group = Group(rows[0].plan, rows[0].request, self.device)
                call.groups.append(group)
            joining = [row for row in rows if group.takes(row.request)]
            group.add(joining, self.spec)
            rows = [row for row in rows if row not in joining]
