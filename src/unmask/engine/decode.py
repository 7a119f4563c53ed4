"""The block loop: forward pass, proposal, policy, commit, event; until every row is full.

Deals in token ids only, never text. Who consumes the events (text, a stream, a trace, a benchmark) is not its business.
Rows are independent: each has its own blocks, steps, noise and end, leaves the batch when it is full, and may join one
that is under way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.functional import pad

from unmask import policies
from unmask.cache.kv import StoragePool
from unmask.engine import reuse
from unmask.engine.canvas import Canvas
from unmask.engine.clock import Clock
from unmask.engine.decisions import Decisions, forget_decisions
from unmask.engine.figures import Detail, Figures
from unmask.engine.forward import Forward
from unmask.engine.observe import Observation, Observer
from unmask.engine.request import check_compatible
from unmask.engine.settle import Case, outcome_of, settle
from unmask.engine.window import Window
from unmask.errors import OutOfMemory, WorkFailed
from unmask.models.base import MaskedLM, Prediction
from unmask.models.transfer import on_device
from unmask.policies import Policy, is_pure, most_commits, name_of, needs_of, remasks
from unmask.settings import Settings
from unmask.types import Commit, Decision, StepEvent

_WIDTHS = 256  # captured decisions are about canvases of such widths: few graphs for many lengths

# Asked for canvases to take in: at most so many, each at most so long (None: as long as the model can).
Arrivals: TypeAlias = Callable[[int, int | None], list[Canvas]]


def decode(
    model: MaskedLM,
    canvases: list[Canvas],
    policy: Policy,
    settings: Settings,
    *,
    ended: Callable[[Canvas], bool] | None = None,
    detail: Detail | None = None,
    clock: Clock | None = None,
    pool: StoragePool | None = None,
    arrivals: Arrivals | None = None,
    rows: int | None = None,
) -> Iterator[StepEvent]:
    """Fill the canvases in place; one event per forward pass and row.

    With `settings.early_stop`, a row for which `ended` is true after a completed block is filled up with end-of-text.
    `pool` keeps the storage of caches, and what was captured on it, from one generation to the next.
    `arrivals` is asked in every pass for canvases to take in, while there are fewer than `rows`; they are numbered on.
    """
    pool = pool or StoragePool()
    rows = len(canvases) if rows is None else rows
    loop = _Loop(model, canvases, policy, settings, ended, detail, clock, pool, arrivals, rows)
    try:
        while loop.live:
            yield from loop.step()
    except Exception as error:
        # What a pass left in the storage may be no numbers at all, and must not get into the next generation.
        loop.forward.close(usable=False)
        if not isinstance(error, torch.OutOfMemoryError):
            raise
        _let_go(model, pool)
        raise OutOfMemory("the device ran out of memory while decoding; use a smaller batch or fewer tokens") from error
    finally:
        loop.forward.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    """A forward pass that the device may still be at work on."""

    window: Window
    prediction: Prediction
    drifted: Bool[Tensor, " b"] | None  # rows whose cache the next pass must refresh; None: nobody asked
    alone: Bool[Tensor, "b 1"] | None  # rows that must commit the first position of their block, and no other
    renewed: bool = False  # every row's cache, which takes so long that nobody waits for what is launched after it


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ahead:
    """The next pass, as far as it goes before the read."""

    window: Window  # if every row goes on in its block
    ready: Callable[[], Prediction] | None = None  # over this window, if it could be prepared
    here: Callable[[], Prediction] | None = None  # the same, but begun: the policy cannot complete a block
    anywhere: Callable[[], Prediction] | None = None  # begun, over the blocks where rows go on, whichever these are


@dataclass(slots=True, kw_only=True)
class _Row:
    number: int  # in the order of arrival
    canvas: Canvas
    generator: torch.Generator
    idle: int = 0  # passes in a row that committed no more than they took back


class _Loop:
    def __init__(
        self,
        model: MaskedLM,
        canvases: list[Canvas],
        policy: Policy,
        settings: Settings,
        ended: Callable[[Canvas], bool] | None,
        detail: Detail | None,
        clock: Clock | None,
        pool: StoragePool,
        arrivals: Arrivals | None,
        rows: int,
    ) -> None:
        check_compatible(policy, model, settings)
        needs = needs_of(policy)
        self.spec, self.policy, self.settings = model.spec, policy, settings
        self.ended, self.detail, self.clock = ended, detail, clock
        self.arrivals, self.rows, self.seen = arrivals, rows, 0
        self.live: list[_Row] = []
        self.state: Any = None
        self.begun: _Begun | None = None
        pure = is_pure(policy) and not needs and settings.temperature == 0.0 and not detail and not clock
        pure = pure and _works_on_its_own(model.device)
        self.decisions = Decisions.of(pool, model.spec, policy, settings) if pure else None
        layers = policy.attention_layers(model.spec.n_layers) if "attention" in needs else None  # ty: ignore[missing-attribute]
        self.forward = Forward(model, canvases, settings, pool, needs=needs, attention_layers=layers, rows=rows)
        self.observe = Observer(spec=model.spec, settings=settings, needs=needs)
        self.length = 0  # of the longest row
        self.tokens = torch.empty(0, 0, dtype=torch.long, device=model.device)
        self.holes = self.tokens.bool()
        self._take_in(canvases)

    @torch.inference_mode()
    def step(self) -> list[StepEvent]:
        """One forward pass over the live rows."""
        begun, self.begun = self.begun or self._begin(self._window()), None
        window = begun.window
        if self.decisions is not None and not begun.renewed and self.decisions.serve(begun.prediction.logits):
            told, figures = self._decide_by_graph(begun, self.decisions), None
        else:
            told, figures = self._decide(begun)
        reading = _reading(told)
        # A device that works on its own begins the next pass before anybody has looked at this one: before the read
        # where it is needed in any case, after it where every row goes on in its block, else as soon as it is known
        # where each goes on. Whoever joins changes what the next pass is about.
        newcomers = self._newcomers()
        leaving = [row.canvas.abandoned for row in self.live]  # another thread may say so at any time
        looks = not (self.clock or newcomers or any(leaving)) and _works_on_its_own(self.tokens.device)
        ahead = self._look_ahead(window, told) if looks else None
        read = reading()
        if ahead is not None and all(goes_on for *_, goes_on in read):
            ready = ahead.here or ahead.anywhere or ahead.ready
            self.begun = self._begin(ahead.window, ready=ready, refresh=False)
        events = [self._record(index, values, window, leaves=leaving[index]) for index, values in enumerate(read)]
        if figures:
            events = [figures.attach(event, index) for index, event in enumerate(events)]
        self._drop_finished()
        if self.begun is None and (ahead is None or ahead.anywhere is None):
            newcomers += self._newcomers(len(newcomers))  # for the rows that have just got free
        if newcomers:
            self.forward.join(len(newcomers))
            self._take_in(newcomers)
        if ahead is not None and self.live and self.begun is None:
            self.begun = self._begin(self._window(), ready=ahead.anywhere)
        return events

    def _newcomers(self, others: int = 0) -> list[Canvas]:
        """Who else joins the next pass; nobody where those who are there have a memory that newcomers lack."""
        room = self.rows - len(self.live) - others
        if self.arrivals is None or room < 1 or self.state is not None or self.clock or not self.forward.joins:
            return []
        return self.arrivals(room, self.forward.longest)

    def _take_in(self, canvases: list[Canvas]) -> None:
        """Put rows behind those that are there; padding is as wide as any row, or what is captured, needs it."""
        device = self.tokens.device
        for number, canvas in enumerate(canvases, self.seen):
            generator = torch.Generator(device).manual_seed(canvas.seed)
            self.live.append(_Row(number=number, canvas=canvas, generator=generator))
        self.seen += len(canvases)
        self.length = max((len(row.canvas.tokens) for row in self.live), default=0)
        width = self.length if self.decisions is None else -(-self.length // _WIDTHS) * _WIDTHS
        padded = [canvas.tokens + [self.spec.eos_id] * (width - len(canvas.tokens)) for canvas in canvases]
        added = on_device(torch.tensor(padded, dtype=torch.long).view(len(padded), width), device)
        wider = (0, width - self.tokens.shape[1])  # narrower, if that is below zero
        self.tokens = torch.cat([pad(self.tokens, wider, value=self.spec.eos_id), added])
        self.holes = torch.cat([pad(self.holes, wider), added == self.spec.mask_id])

    def _look_ahead(self, window: Window, told: Int[Tensor, "b facts"]) -> _Ahead:
        following = window.next()
        anywhere = self._predicted_anywhere(window, told)
        if anywhere is not None:
            return _Ahead(window=following, anywhere=lambda: anywhere)
        ready = self.forward.prepare(following, self._canvas)
        if ready is None or not self._cannot_complete(window):
            return _Ahead(window=following, ready=ready)
        here = ready()
        return _Ahead(window=following, here=lambda: here)

    def _cannot_complete(self, window: Window) -> bool:
        """Whether the policy leaves every block open in this pass, whatever it sees."""
        return all(
            most_commits(self.policy, canvas.open_in_block(), canvas.block_step) < canvas.open_in_block()
            for canvas in window.canvases
        )

    def _predicted_anywhere(self, window: Window, told: Int[Tensor, "b facts"]) -> Prediction | None:
        """The next pass over whole canvases all of which have a block to come, where it is alike for each of them."""
        if self.settings.cache != "none" or self.settings.early_stop:
            return None
        spans = [span for canvas in window.canvases for span in canvas.blocks[canvas.block_index :][:2]]
        starts, widths = [start for start, _ in spans], {end - start for start, end in spans}
        shifts = {after - before for before, after in zip(starts[::2], starts[1::2], strict=False)}
        if len(spans) < 2 * len(window.canvases) or len(widths) > 1 or len(shifts) > 1:
            return None
        goes_on = told[:, -1:] > 0
        at = torch.where(goes_on, window.at, window.at + shifts.pop())
        ready = self.forward.prepare(replace(window, at=at), self._canvas)
        return None if ready is None else ready()

    def _decide(self, begun: _Begun) -> tuple[Int[Tensor, "b facts"], Figures | None]:
        """Have the policy decide, write its commits, and tell what the host must know of each row."""
        window = begun.window
        generators = [row.generator for row in self.live]
        most = max(canvas.open_in_block() for canvas in window.canvases)
        seen = self.observe(begun.prediction, window, self.tokens, self.holes, generators, most)
        if self.clock:
            self.clock.start()
        decision, self.state = policies.decide(self.policy, seen.view, self.state)
        if self.clock:
            self.clock.lap(self.clock.policy, [row.number for row in self.live])
        case = self._case(decision, seen, begun)
        self.tokens, told = settle(case, self.tokens)
        return told, Figures(seen.view, decision, outcome_of(case).tokens, self.detail) if self.detail else None

    def _decide_by_graph(self, begun: _Begun, decisions: Decisions) -> Int[Tensor, "b facts"]:
        """The same for a policy that is pure, at temperature 0: nothing but tensors goes in and comes out."""
        window = begun.window
        flags = [flag for flag in (begun.drifted, begun.alone) if flag is not None]

        def decide(logits: Tensor, tokens: Tensor, step: Tensor, *steady: Tensor) -> tuple[Tensor, Tensor]:
            holes, at, inside, length, *given = steady
            frame = Window(canvases=[], spans=[], at=at, inside=inside, step=step, length=length)
            drifted = None if begun.drifted is None else given[0]
            alone = None if begun.alone is None else given[-1]
            now = _Begun(window=frame, prediction=Prediction(logits=logits), drifted=drifted, alone=alone)
            # What a graph reads it has to itself.
            seen = self.observe(now.prediction, frame, tokens, holes, [], None, own=_is_captured(logits))
            decision, _ = policies.decide(self.policy, seen.view, None)
            return settle(self._case(decision, seen, now), tokens)

        inputs = (
            begun.prediction.logits,
            self.tokens,
            window.step,
            self.holes,
            window.at,
            window.inside,
            window.length,
        )
        kind = (begun.drifted is None, begun.alone is None)
        self.tokens, told = decisions(kind, decide, *inputs, *flags, fleeting=begun.prediction.fleeting)
        return told

    @property
    def _canvas(self) -> Int[Tensor, "b n"]:
        """The tokens as the model gets them: no wider than the longest row."""
        return self.tokens[:, : self.length]

    def _window(self) -> Window:
        return Window.over([row.canvas for row in self.live], self.tokens.device)

    def _begin(self, window: Window, *, ready: Callable[[], Prediction] | None = None, refresh: bool = True) -> _Begun:
        """The forward pass of the live rows, perhaps prepared; without `refresh`, of rows known to need none."""
        if ready is not None:
            return _Begun(window=window, prediction=replace(ready(), states=None), drifted=None, alone=None)
        rows = None
        if refresh:
            shifted = self.spec.shifted
            alone = [reuse.commits_first_only(canvas, self.settings, shifted=shifted) for canvas in window.canvases]
            rows = on_device(alone, self.tokens.device)[:, None] if any(alone) else None
        if self.clock:
            self.clock.start()
        prediction, drifted = self.forward(window, self._canvas, self.holes[:, : self.length], refresh=refresh)
        if self.clock:
            self.clock.lap(self.clock.model, [row.number for row in self.live])
        cached = self.settings.cache != "none"
        renewed = cached and refresh and all(reuse.is_refresh(canvas, self.settings) for canvas in window.canvases)
        return _Begun(window=window, prediction=prediction, drifted=drifted, alone=rows, renewed=renewed)

    def _case(self, decision: Decision, seen: Observation, begun: _Begun) -> Case:
        return Case(
            decision=decision,
            seen=seen,
            at=begun.window.at,
            drifted=begun.drifted,
            alone=begun.alone,
            mask_id=self.spec.mask_id,
            mask_allowed=not self.settings.suppress_mask_token,
        )

    def _record(self, index: int, values: list[int], window: Window, *, leaves: bool) -> StepEvent:
        """Note on the host's canvas what a pass did to one row, and say so."""
        start, end = window.spans[index]
        width, columns = window.at.shape[1], range(end - start)
        committed = {start + c: values[c] for c in columns if values[width + c]}
        remasked = tuple(start + c for c in columns if values[2 * width + c])
        waiting, drifted, broken, _ = values[-4:]
        row = self.live[index]
        moved = bool(waiting) or len(committed) > len(remasked)
        self._check(row, broken=broken, moved=moved, committed=len(committed))
        canvas = row.canvas
        step, block = canvas.passes, canvas.block
        refreshed = self.settings.cache != "none" and reuse.is_refresh(canvas, self.settings)
        completed = canvas.write(committed, remasked)
        canvas.stale = bool(drifted)
        ended = completed and self.settings.early_stop and self.ended is not None and self.ended(canvas)
        if ended or leaves:
            canvas.end_here(self.spec.eos_id)
        commits = tuple(Commit(position=position, token_id=token) for position, token in committed.items())
        return StepEvent(
            row=row.number,
            step=step,
            block=block,
            committed=commits,
            remasked=remasked,
            refreshed=refreshed,
            finished=canvas.finished,
        )

    def _check(self, row: _Row, *, broken: int, moved: bool, committed: int) -> None:
        """Stop a generation that can come to no good."""
        canvas = row.canvas
        if broken:
            place = f"forward pass {canvas.passes} of row {row.number}"
            raise WorkFailed(f"the model gave no usable logits (NaN or all -inf) in {place}")
        if committed > most_commits(self.policy, canvas.open_in_block(), canvas.block_step):
            raise WorkFailed(f"the policy {name_of(self.policy)} commits more than it said")
        row.idle = 0 if moved else row.idle + 1
        if row.idle > 2 * len(canvas.holes):
            reason = (
                "the policy takes back what it commits" if remasks(self.policy) else "only the mask token is proposed"
            )
            raise WorkFailed(f"row {row.number} makes no progress: {reason}; see suppress_mask_token")

    def _drop_finished(self) -> None:
        staying = [index for index, row in enumerate(self.live) if not row.canvas.finished]
        if len(staying) == len(self.live):
            return
        self.live = [self.live[index] for index in staying]
        rows = on_device(staying, self.tokens.device).long()
        self.tokens, self.holes = self.tokens[rows], self.holes[rows]
        self.forward.keep(rows, staying)
        if self.state is not None:
            values = {item.name: getattr(self.state, item.name) for item in fields(self.state)}
            kept = {name: value[rows] for name, value in values.items() if isinstance(value, Tensor)}
            self.state = replace(self.state, **kept)


def _reading(told: Int[Tensor, "b facts"]) -> Callable[[], list[list[int]]]:
    """Begin to copy to the host; the result waits for what has been asked of the device until now, no longer."""
    if not told.is_cuda:
        return told.tolist
    copy = torch.empty(told.shape, dtype=told.dtype, pin_memory=True)
    copy.copy_(told, non_blocking=True)
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(told.device))

    def read() -> list[list[int]]:
        done.synchronize()
        return copy.tolist()

    return read


def _let_go(model: MaskedLM, pool: StoragePool) -> None:
    """Of all that is kept for later generations."""
    pool.clear()
    forget_decisions(pool)
    forget_graphs: Any = getattr(model, "forget_graphs", None)
    if forget_graphs is not None:
        forget_graphs()


def _is_captured(logits: Tensor) -> bool:
    return logits.is_cuda and torch.cuda.is_current_stream_capturing()


def _works_on_its_own(device: torch.device) -> bool:
    """Whether what is asked of the device is done while the host goes on."""
    return device.type == "cuda"
