"""The block loop: forward pass, proposal, policy, commit, event; until every row is full.

Deals in token ids only, never text. Who consumes the events (text, a stream, a trace, a benchmark) is not its business.
Rows are independent: each has its own blocks, steps, noise and end, and leaves the batch when it is full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.cache.kv import StoragePool
from unmask.engine import reuse
from unmask.engine.canvas import Canvas
from unmask.engine.clock import Clock
from unmask.engine.decisions import Decisions, forget_decisions
from unmask.engine.figures import Detail, Figures
from unmask.engine.forward import Forward
from unmask.engine.observe import Observation, Observer
from unmask.engine.settle import Case, outcome_of, settle
from unmask.engine.window import Window
from unmask.errors import UnmaskError, WorkFailed
from unmask.models.base import MaskedLM, Prediction
from unmask.models.transfer import on_device
from unmask.policies import Policy, is_pure, most_commits, name_of, needs_of, remasks
from unmask.settings import Settings
from unmask.types import Commit, Decision, StepEvent


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
) -> Iterator[StepEvent]:
    """Fill the canvases in place; one event per forward pass and row.

    With `settings.early_stop`, a row for which `ended` is true after a completed block is filled up with end-of-text.
    `pool` keeps the storage of caches, and what was captured on it, from one generation to the next.
    """
    pool = pool or StoragePool()
    loop = _Loop(model, canvases, policy, settings, ended, detail, clock, pool)
    try:
        while loop.live:
            yield from loop.step()
    except Exception as error:
        # What a pass left in the storage may be no numbers at all, and must not get into the next generation.
        loop.forward.close(usable=False)
        if isinstance(error, torch.OutOfMemoryError):
            _let_go(model, pool)
        raise
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
    ) -> None:
        check_compatible(policy, model, settings)
        needs = needs_of(policy)
        self.spec, self.policy, self.settings = model.spec, policy, settings
        self.ended, self.detail, self.clock = ended, detail, clock
        self.canvases = canvases
        self.live = list(range(len(canvases)))
        self.state: Any = None
        self.begun: _Begun | None = None
        pure = is_pure(policy) and not needs and settings.temperature == 0.0 and not detail and not clock
        pure = pure and _works_on_its_own(model.device)
        self.decisions = Decisions.of(pool, model.spec, policy, settings) if pure else None
        self.idle = [0] * len(canvases)  # passes in a row that committed no more than they took back
        layers = policy.attention_layers(model.spec.n_layers) if "attention" in needs else None  # ty: ignore[missing-attribute]
        self.forward = Forward(model, canvases, settings, pool, needs=needs, attention_layers=layers)
        self.observe = Observer(spec=model.spec, settings=settings, needs=needs)
        self.generators = [torch.Generator(model.device).manual_seed(canvas.seed) for canvas in canvases]
        length = max((len(canvas.tokens) for canvas in canvases), default=0)
        padded = [canvas.tokens + [self.spec.eos_id] * (length - len(canvas.tokens)) for canvas in canvases]
        self.tokens = torch.tensor(padded, device=model.device)
        self.holes = self.tokens == self.spec.mask_id

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
        # where each goes on.
        ahead = self._look_ahead(window, told) if not self.clock and _works_on_its_own(self.tokens.device) else None
        read = reading()
        if ahead is not None and all(goes_on for *_, goes_on in read):
            ready = ahead.here or ahead.anywhere or ahead.ready
            self.begun = self._begin(ahead.window, ready=ready, refresh=False)
        elif ahead is not None and ahead.here is not None:
            raise WorkFailed(f"the policy {name_of(self.policy)} commits more than it said")
        events = [self._record(index, values, window) for index, values in enumerate(read)]
        if figures:
            events = [figures.attach(event, index) for index, event in enumerate(events)]
        self._drop_finished()
        if ahead is not None and self.live and self.begun is None:
            self.begun = self._begin(self._window(), ready=ahead.anywhere)
        return events

    def _look_ahead(self, window: Window, told: Int[Tensor, "b facts"]) -> _Ahead:
        following = window.next()
        anywhere = self._predicted_anywhere(window, told)
        if anywhere is not None:
            return _Ahead(window=following, anywhere=lambda: anywhere)
        ready = self.forward.prepare(following, self.tokens)
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
        ready = self.forward.prepare(replace(window, at=at), self.tokens)
        return None if ready is None else ready()

    def _decide(self, begun: _Begun) -> tuple[Int[Tensor, "b facts"], Figures | None]:
        """Have the policy decide, write its commits, and tell what the host must know of each row."""
        window = begun.window
        generators = [self.generators[row] for row in self.live]
        most = max(canvas.open_in_block() for canvas in window.canvases)
        seen = self.observe(begun.prediction, window, self.tokens, self.holes, generators, most)
        if self.clock:
            self.clock.start()
        decision, self.state = self.policy.select(seen.view, self.state)
        if self.clock:
            self.clock.lap(self.clock.policy, self.live)
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
            decision, _ = self.policy.select(seen.view, None)
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

    def _window(self) -> Window:
        return Window.over([self.canvases[row] for row in self.live], self.tokens.device)

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
        prediction, drifted = self.forward(window, self.tokens, self.holes, refresh=refresh)
        if self.clock:
            self.clock.lap(self.clock.model, self.live)
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

    def _record(self, index: int, values: list[int], window: Window) -> StepEvent:
        """Note on the host's canvas what a pass did to one row, and say so."""
        start, end = window.spans[index]
        width, columns = window.at.shape[1], range(end - start)
        committed = {start + c: values[c] for c in columns if values[width + c]}
        remasked = tuple(start + c for c in columns if values[2 * width + c])
        waiting, drifted, broken, _ = values[-4:]
        row = self.live[index]
        self._check(row, broken=broken, moved=bool(waiting) or len(committed) > len(remasked))
        canvas = self.canvases[row]
        step, block = canvas.passes, canvas.block
        refreshed = self.settings.cache != "none" and reuse.is_refresh(canvas, self.settings)
        completed = canvas.write(committed, remasked)
        canvas.stale = bool(drifted)
        if completed and self.settings.early_stop and self.ended is not None and self.ended(canvas):
            canvas.end_here(self.spec.eos_id)
        commits = tuple(Commit(position=position, token_id=token) for position, token in committed.items())
        return StepEvent(
            row=row,
            step=step,
            block=block,
            committed=commits,
            remasked=remasked,
            refreshed=refreshed,
            finished=canvas.finished,
        )

    def _check(self, row: int, *, broken: int, moved: bool) -> None:
        """Stop a generation that can come to no good."""
        canvas = self.canvases[row]
        if broken:
            place = f"forward pass {canvas.passes} of row {row}"
            raise WorkFailed(f"the model gave no usable logits (NaN or all -inf) in {place}")
        self.idle[row] = 0 if moved else self.idle[row] + 1
        if self.idle[row] > 2 * len(canvas.holes):
            reason = (
                "the policy takes back what it commits" if remasks(self.policy) else "only the mask token is proposed"
            )
            raise WorkFailed(f"row {row} makes no progress: {reason}; see suppress_mask_token")

    def _drop_finished(self) -> None:
        staying = [index for index, row in enumerate(self.live) if not self.canvases[row].finished]
        if len(staying) == len(self.live):
            return
        self.live = [self.live[index] for index in staying]
        rows = on_device(staying, self.tokens.device).long()
        self.tokens, self.holes = self.tokens[rows], self.holes[rows]
        self.forward.keep(rows)
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


def check_compatible(policy: Policy, model: MaskedLM, settings: Settings) -> None:
    """Refuse, in one line, a combination that has no meaning."""
    name, needs = name_of(policy), needs_of(policy)
    beyond = ", ".join(sorted(needs & {"sequence_logits", "attention", "shadow"}))
    if settings.cache != "none" and beyond:
        raise UnmaskError(f"the policy {name} needs {beyond} and cannot run with cache={settings.cache!r}")
    if "shadow" in needs and model.spec.shifted:
        raise UnmaskError(f"the policy {name} is not defined for {model.spec.family} models, whose head is shifted")
