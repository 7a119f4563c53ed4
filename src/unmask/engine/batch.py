"""The live rows of the loop: which of them share a model call, which join and which leave.

A batch is made of calls, a call of groups, a group of rows (rows.py). Knows nothing of how passes are run.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.functional import pad

from unmask.cache.base import PassPlan, RowPlan
from unmask.cache.kinds import DriftStates
from unmask.cache.storage import KVCache, Lease, StoragePool
from unmask.engine.plan import CallKind
from unmask.engine.rows import Group, Row
from unmask.engine.scheduler import Request, Scheduler
from unmask.engine.window import Pass, Window
from unmask.errors import UnmaskError
from unmask.models.base import ModelSpec

_MOST_LEASES = 2  # at a time: a canvas too long for the storage in use may borrow a second, larger one


class Call:
    """Rows that one model call serves."""

    def __init__(self, kind: CallKind, lease: Lease | None, device: torch.device) -> None:
        self.kind, self.lease, self.device = kind, lease, device
        self.drift: DriftStates | None = None
        if lease is not None and kind.drift is not None:
            self.drift = DriftStates(kind.drift, slots=lease.rows, length=lease.length)
        self.groups: list[Group] = []
        self.caches: list[KVCache | None] = []  # of passes with the prompt and, for guidance, of passes without it
        self._window: Window | None = None
        self._plan: PassPlan | None = None

    @property
    def rows(self) -> list[Row]:
        return [row for group in self.groups for row in group.rows]

    @property
    def length(self) -> int:
        return max(group.length for group in self.groups)

    def take_in(self) -> None:
        """Let the rows that have joined a group take part in the next pass."""
        if [group for group in self.groups if group.take_in()]:  # a list: every group must take in its rows
            self._changed()

    def retire(self) -> None:
        """Take out the rows that are done, and groups without rows."""
        done = [row for group in self.groups for row in group.retire()]
        if self.lease is not None:
            for row in done:
                self.lease.give_back(row.slot, clean=row.canvas.finished)
        self.groups = [group for group in self.groups if group.rows]
        if done and self.groups:
            self._changed()

    def _changed(self) -> None:
        self._window = self._plan = None
        if self.lease is None:
            self.caches = [None, None]
        else:
            slots = [row.slot for row in self.rows]
            self.caches = [KVCache(storage, slots, self.device) for storage in self.lease.storages]

    def next_window(self) -> Window:
        """The window of the next pass. Called once in every pass, since the step of the window counts the calls."""
        canvases, before = [row.canvas for row in self.rows], self._window
        stays = before is not None and before.blocks == tuple(canvas.block for canvas in canvases)
        self._window = replace(before, step=before.step + 1) if stays else Window.over(canvases, self.device)
        return self._window

    def plan(self) -> PassPlan:
        """What the next pass computes."""
        return self._planned(tuple(row.plan.cache.plan(row.canvas) for row in self.rows))

    def plan_next(self) -> PassPlan | None:
        """What the pass after the one under way computes if every row stays in its block; None: the result decides."""
        found = [row.plan.cache.plan_next(row.canvas) for row in self.rows]
        known = tuple(plan for plan in found if plan is not None)
        return self._planned(known) if len(known) == len(found) else None

    def _planned(self, rows: tuple[RowPlan, ...]) -> PassPlan:
        if self._plan is None or self._plan.rows != rows:
            self._plan = PassPlan(rows, self.device)
        return self._plan

    def tokens(self) -> Int[Tensor, "b n"]:
        """The canvases as the model gets them: as wide as the call is long."""
        return self._together([group.tokens for group in self.groups])

    def holes(self) -> Bool[Tensor, "b n"]:
        return self._together([group.holes for group in self.groups])

    def _together(self, parts: list[Tensor]) -> Tensor:
        length = self.length
        if len(parts) == 1:
            return parts[0][:, :length]
        return torch.cat([pad(part, (0, length - part.shape[1])) for part in parts])

    def split(self, done: Pass) -> Iterator[tuple[Group, Pass]]:
        """Each group, and the part of a pass over the call that concerns it."""
        if len(self.groups) == 1:
            yield self.groups[0], done
            return
        first = 0
        for group in self.groups:
            rows = slice(first, first + len(group.rows))
            yield group, done.part(rows, length=group.length, whole=self.kind.whole)
            first = rows.stop


class Batch:
    """All rows that are decoded at the moment."""

    def __init__(self, spec: ModelSpec, device: torch.device, pool: StoragePool) -> None:
        self.spec, self.device, self.pool = spec, device, pool
        self.calls: list[Call] = []
        self.leases: list[Lease] = []  # storage in use; rows of every kind of cache share it
        self.reserved: list[tuple[int, Request]] = []  # taken from the line, to join the next pass

    @property
    def rows(self) -> list[Row]:
        return [row for call in self.calls for row in call.rows]

    @property
    def stays(self) -> bool:
        """Whether the next pass has the same rows, as far as the host knows before it reads the results."""
        return not self.reserved and not any(row.leaving for row in self.rows)

    def seal(self, scheduler: Scheduler) -> None:
        """Note which rows are abandoned, and reserve waiting requests for the room that is left."""
        for row in self.rows:
            row.leaving = row.request.abandoned  # another thread may abandon it at any time
        self._reserve(scheduler)

    def admit(self, scheduler: Scheduler) -> None:
        """Let the reserved requests join, and as many more from the line as there are free rows."""
        self._reserve(scheduler)
        newcomers, self.reserved = self.reserved, []
        longest = max((request.canvas.length for _, request in newcomers), default=0)
        for number, request in newcomers:
            self._join(number, request, rows=scheduler.rows, longest=longest)
        for call in self.calls:
            call.take_in()

    def retire(self) -> None:
        """Take out the rows that are done."""
        for call in self.calls:
            call.retire()
        self.calls = [call for call in self.calls if call.groups]
        for lease in [lease for lease in self.leases if not lease.used]:
            lease.close(usable=True)
            self.leases.remove(lease)

    def close(self, *, usable: bool) -> None:
        for lease in self.leases:
            lease.close(usable=usable)
        self.calls, self.leases = [], []

    def _reserve(self, scheduler: Scheduler) -> None:
        room = scheduler.rows - len(self.rows) - len(self.reserved)
        if room > 0:
            self.reserved += scheduler.take(room, self._fits)

    def _fits(self, request: Request) -> bool:
        """Whether a storage in use has room for the request, or another storage may be borrowed."""
        kind = request.plan.call_kind
        return kind.cache == "none" or self._lease_for(request) is not None or len(self.leases) < _MOST_LEASES

    def _lease_for(self, request: Request) -> Lease | None:
        length, guided = request.canvas.length, request.plan.call_kind.guided
        return next((lease for lease in self.leases if lease.holds(length, guided=guided)), None)

    def _join(self, number: int, request: Request, *, rows: int, longest: int) -> None:
        """Put a request into a group that takes it, within a call of its kind; make the group and the call if need be.

        New storage has room for `rows` rows, each as long as the `longest` newcomer.
        """
        plan, lease = request.plan, None
        kind = plan.call_kind
        if plan.spec is not self.spec:
            raise UnmaskError("a request was made by another generator than the one that decodes it")
        if kind.cache != "none" and (lease := self._lease_for(request)) is None:
            lease = Lease(self.pool, rows=rows, length=longest, guided=kind.guided)
            self.leases.append(lease)
        call = next((call for call in self.calls if call.kind == kind and call.lease is lease), None)
        if call is None:
            call = Call(kind, lease, self.device)
            self.calls.append(call)
        group = next((group for group in call.groups if group.takes(request)), None)
        if group is None:
            empty = torch.empty(0, 0, dtype=torch.long, device=self.device)
            group = Group(plan=plan, detail=request.detail, tokens=empty, holes=empty.bool())
            call.groups.append(group)
        generator = torch.Generator(self.device).manual_seed(plan.settings.seed)
        row = Row(number=number, request=request, canvas=request.canvas, plan=plan, generator=generator)
        row.slot = 0 if lease is None else lease.take()
        group.rows.append(row)
