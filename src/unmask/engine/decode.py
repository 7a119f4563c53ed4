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

from unmask.engine import reuse
from unmask.engine.canvas import Canvas
from unmask.engine.clock import Clock
from unmask.engine.figures import Detail, Figures
from unmask.engine.forward import Forward
from unmask.engine.observe import Observation, Observer
from unmask.engine.window import Window
from unmask.errors import UnmaskError, WorkFailed
from unmask.models.base import MaskedLM
from unmask.policies import Policy, name_of, needs_of, remasks, with_progress
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
) -> Iterator[StepEvent]:
    """Fill the canvases in place; one event per forward pass and row.

    With `settings.early_stop`, a row for which `ended` is true after a completed block is filled up with end-of-text.
    """
    loop = _Loop(model, canvases, policy, settings, ended, detail, clock)
    while loop.live:
        yield from loop.step()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """What a pass really does to the window: the policy's wish within the guarantees of the loop."""

    commit: Bool[Tensor, "b k"]
    remask: Bool[Tensor, "b k"]
    tokens: Int[Tensor, "b k"]


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
    ) -> None:
        check_compatible(policy, model, settings)
        needs = needs_of(policy)
        self.spec, self.policy, self.settings = model.spec, policy, settings
        self.ended, self.detail, self.clock = ended, detail, clock
        self.canvases = canvases
        self.live = list(range(len(canvases)))
        self.state: Any = None
        self.idle = [0] * len(canvases)  # passes in a row that committed no more than they took back
        layers = policy.attention_layers(model.spec.n_layers) if "attention" in needs else None  # ty: ignore[missing-attribute]
        self.forward = Forward(model, settings, needs=needs, attention_layers=layers)
        self.observe = Observer(spec=model.spec, settings=settings, needs=needs)
        self.generators = [torch.Generator(model.device).manual_seed(canvas.seed) for canvas in canvases]
        length = max((len(canvas.tokens) for canvas in canvases), default=0)
        padded = [canvas.tokens + [self.spec.eos_id] * (length - len(canvas.tokens)) for canvas in canvases]
        self.tokens = torch.tensor(padded, device=model.device)
        self.holes = self.tokens == self.spec.mask_id

    @torch.inference_mode()
    def step(self) -> list[StepEvent]:
        """One forward pass over the live rows."""
        window = Window.over([self.canvases[row] for row in self.live], self.tokens.device)
        if self.clock:
            self.clock.start()
        prediction = self.forward(window, self.tokens, ~self.holes)
        if self.clock:
            self.clock.lap(self.clock.model, self.live)
        generators = [self.generators[row] for row in self.live]
        seen = self.observe(prediction, window, self.tokens, self.holes, generators)
        if self.clock:
            self.clock.start()
        decision, self.state = self.policy.select(seen.view, self.state)
        if self.clock:
            self.clock.lap(self.clock.policy, self.live)
        outcome = self._settle(decision, seen, window)
        events = self._write(outcome, decision, seen, window)
        self._drop_finished()
        return events

    def _settle(self, decision: Decision, seen: Observation, window: Window) -> _Outcome:
        commit = with_progress(decision, seen.view.masked)
        tokens = seen.view.proposed if decision.tokens is None else decision.tokens
        shifted = self.spec.shifted
        alone = [reuse.commits_first_only(canvas, self.settings, shifted=shifted) for canvas in window.canvases]
        if any(alone):
            rows = torch.tensor(alone, device=commit.device)[:, None]
            first = torch.arange(commit.shape[1], device=commit.device) == 0
            commit = torch.where(rows, first, commit)
            tokens = torch.where(rows, seen.logits.argmax(-1), tokens)
        if not self.settings.suppress_mask_token:
            commit = commit & (tokens != self.spec.mask_id)
        remask = torch.zeros_like(commit) if decision.remask is None else decision.remask & seen.decoded
        return _Outcome(commit=commit, remask=remask, tokens=tokens)

    def _write(self, outcome: _Outcome, decision: Decision, seen: Observation, window: Window) -> list[StepEvent]:
        """Put the commits on the device's canvas and, with the one host read of the pass, on the host's."""
        commit, remask, before = outcome.commit, outcome.remask, seen.tokens
        after = torch.where(commit, outcome.tokens, before).masked_fill(remask, self.spec.mask_id)
        # Columns outside a narrow block repeat its last position, so changes are added to the canvas, not set.
        self.tokens = self.tokens.scatter_add(1, window.at, torch.where(commit | remask, after - before, 0))
        waits = torch.zeros_like(seen.broken) if decision.wait is None else decision.wait
        flags = torch.stack([waits, seen.broken], dim=1)
        read = torch.cat([after, commit, remask, flags], dim=1).tolist()
        figures = Figures(seen.view, decision, outcome.tokens, self.detail) if self.detail else None
        events = []
        width = commit.shape[1]
        for index, ((start, end), values) in enumerate(zip(window.spans, read, strict=True)):
            columns = range(end - start)
            committed = {start + c: values[c] for c in columns if values[width + c]}
            remasked = tuple(start + c for c in columns if values[2 * width + c])
            waiting, broken = values[-2:]
            self._check(self.live[index], broken=broken, moved=bool(waiting) or len(committed) > len(remasked))
            event = self._record(index, committed, remasked)
            events.append(figures.attach(event, index) if figures else event)
        return events

    def _record(self, index: int, committed: dict[int, int], remasked: tuple[int, ...]) -> StepEvent:
        """Note on the host's canvas what a pass did to one row, and say so."""
        row = self.live[index]
        canvas = self.canvases[row]
        step, block = canvas.passes, canvas.block
        completed = canvas.write(committed, remasked)
        if completed and self.settings.early_stop and self.ended is not None and self.ended(canvas):
            canvas.end_here(self.spec.eos_id)
        commits = tuple(Commit(position=position, token_id=token) for position, token in committed.items())
        return StepEvent(
            row=row, step=step, block=block, committed=commits, remasked=remasked, finished=canvas.finished
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
        rows = torch.tensor(staying, dtype=torch.long, device=self.tokens.device)
        self.tokens, self.holes = self.tokens[rows], self.holes[rows]
        self.forward.keep(rows)
        if self.state is not None:
            values = {item.name: getattr(self.state, item.name) for item in fields(self.state)}
            kept = {name: value[rows] for name, value in values.items() if isinstance(value, Tensor)}
            self.state = replace(self.state, **kept)


def check_compatible(policy: Policy, model: MaskedLM, settings: Settings) -> None:
    """Refuse, in one line, a combination that has no meaning."""
    name, needs = name_of(policy), needs_of(policy)
    beyond = ", ".join(sorted(needs & {"sequence_logits", "attention", "shadow"}))
    if settings.cache != "none" and beyond:
        raise UnmaskError(f"the policy {name} needs {beyond} and cannot run with cache={settings.cache!r}")
    if "shadow" in needs and model.spec.shifted:
        raise UnmaskError(f"the policy {name} is not defined for {model.spec.family} models, whose head is shifted")
