"""Passes that predict a row and guesses of its coming states at once, and keep what comes true. Tokens stay the same.

A state is the tokens of a canvas. Without a cache and at temperature 0, what a pass does depends on the state and the
step alone. So one model call predicts the state of a row and its guesses, and the policy decides in turns: it decides
on the state that it has reached, and if this gives one of the guessed states, that state's prediction is known, and
the next turn follows. The block of a row and the blocks after it are predicted, so turns may go on in the next block.

Guesses are made from the last prediction used, by letting the policy decide on it again and again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.cache.base import PassPlan, Span
from unmask.device import on_device
from unmask.engine.batch import Call
from unmask.engine.canvas import Canvas
from unmask.engine.commit import BROKEN, FLAGS, FOREIGN
from unmask.engine.detail import TraceNumbers, TurnNumbers
from unmask.engine.forward import Pass
from unmask.engine.rows import Group
from unmask.engine.window import columns_of
from unmask.models.base import MaskedLM, Prediction

BLOCKS = 3  # predicted of each state: one to decide in, one to go on to, and one to guess what comes behind it
Decide = Callable[[Group, Pass], tuple[Tensor, TraceNumbers | None]]  # as the runner's decide_and_commit


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where the turns of each row have come to."""

    state: Int[Tensor, " b"]  # the number of the state whose prediction is used: 0 is the row's own, then the guesses
    block: Int[Tensor, " b"]  # how many blocks it has left behind in this pass
    step: Int[Tensor, " b"]  # decisions already made in its block


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessedPass(Pass):
    """A pass over rows and their guesses; window, plan and prediction are those of the rows."""

    at: Int[Tensor, "b blocks k"]  # the positions of each row's block, and of the blocks after it
    inside: Bool[Tensor, "b blocks k"]  # columns that belong to these blocks
    guessed: Float[Tensor, "b s blocks k v"]  # the logits of every state
    most_open: int  # no block of any row has more open positions

    @property
    def spans(self) -> tuple[Span, ...]:
        return tuple(self.plan.spans)  # the whole canvas: turns may go on in the next block

    def _part(self, group: Group, first: int, end: int) -> GuessedPass:
        part, rows = Pass._part(self, group, first, end), slice(first, end)
        of_pass = {"window": part.window, "plan": part.plan, "prediction": part.prediction}
        return replace(self, **of_pass, at=self.at[rows], inside=self.inside[rows], guessed=self.guessed[rows])

    def turn(self, now: Standing) -> Pass:
        """The pass as it would be over the rows in the states that they have reached."""
        here = torch.arange(len(now.block), device=now.block.device), now.block
        window = replace(self.window, at=self.at[here], inside=self.inside[here], step=now.step)
        prediction = Prediction(logits=self.guessed[here[0], now.state, now.block])
        return Pass(window=window, plan=self.plan, prediction=prediction, drifted=None)

    def moved_on(self, now: Standing, masked: Bool[Tensor, "b n"]) -> tuple[Standing, Bool[Tensor, " b"]]:
        """Where rows whose block is full stand in the next one, if it was predicted; and which blocks are full then."""
        full = self._is_full(now.block, masked)
        after = (now.block + 1).clamp(max=BLOCKS - 1)
        enters = full & ~self._is_full(after, masked)
        block, step = after.where(enters, now.block), now.step.where(~enters, 0)
        return replace(now, block=block, step=step), full & ~enters

    def _is_full(self, block: Int[Tensor, " b"], masked: Bool[Tensor, "b n"]) -> Bool[Tensor, " b"]:
        here = torch.arange(len(block), device=block.device), block
        return ~(masked.gather(1, self.at[here]) & self.inside[here]).any(-1)


def forward_with_guesses(model: MaskedLM, call: Call) -> GuessedPass:
    """Predict the rows of the call and their guesses in one model call."""
    plan, window = call.plan(shifted=model.spec.shifted), call.window()
    states = torch.cat([call.tokens()[:, None], call.guesses()], dim=1)
    blocks = [_blocks(row.canvas) for row in call.rows]
    at, inside = columns_of(np.array(blocks), max(end - start for row in blocks for start, end in row))
    at, inside = on_device(torch.from_numpy(np.stack([at, inside])), call.device)
    repeated = PassPlan(tuple(row for row in plan.rows for _ in range(states.shape[1])), plan.device)
    places = at.flatten(1).repeat_interleave(states.shape[1], dim=0)
    found = model.predict(states.flatten(0, 1), plan=repeated, at=places, block_size=call.kind.block_size)
    guessed = found.logits.unflatten(1, at.shape[1:]).unflatten(0, states.shape[:2])
    counts = [row.canvas.open_in(span) for row, spans in zip(call.rows, blocks, strict=True) for span in spans]
    return GuessedPass(
        window=window,
        plan=plan,
        prediction=Prediction(logits=guessed[:, 0, 0]),
        drifted=None,
        at=at,
        inside=inside.bool(),
        guessed=guessed,
        most_open=max(counts),
    )


def _blocks(canvas: Canvas) -> list[Span]:
    """The row's block, and those after it; behind the last they are empty."""
    found = canvas.blocks[canvas.block_index :][:BLOCKS]
    return found + [(found[0][0], found[0][0])] * (BLOCKS - len(found))


def verified(group: Group, done: GuessedPass, decide: Decide) -> tuple[Int[Tensor, "b results"], TurnNumbers | None]:
    """Decide in turns, as far as guesses come true; the group gets its new tokens and guesses."""
    before, mask_id, step = group.tokens, group.observer.spec.mask_id, done.window.step
    states = torch.cat([before[:, None], group.guesses], dim=1)
    now = Standing(state=torch.zeros_like(step), block=torch.zeros_like(step), step=step)
    going, flags, turns = torch.ones_like(step).bool(), step.new_zeros(len(step), FLAGS), []
    for _ in range(states.shape[1]):
        held = group.tokens
        table, trace = decide(group, done.turn(now))
        group.tokens = group.tokens.where(going[:, None], held)
        flags = table[:, -FLAGS:].where(going[:, None], flags)
        if trace is not None:
            turns.append((going.tolist(), trace))
        now, full = done.moved_on(replace(now, step=now.step + going), group.tokens == mask_id)
        same = (group.tokens[:, None] == states).all(-1)
        going = going & same.any(-1) & ~full & (flags[:, [BROKEN, FOREIGN]] == 0).all(-1)
        now = replace(now, state=same.int().argmax(-1).where(going, now.state))
        if not going.any():  # a read by the host takes less time than a turn in vain
            break
    group.guesses = _guesses(group, done, now, decide)
    whole = slice(None), slice(0, group.length)
    after, committed = group.tokens[whole], group.tokens[whole] != before[whole]
    step = now.step.where(~full, 0)
    table = torch.cat([after, committed, torch.zeros_like(committed), flags, step[:, None]], dim=1)
    return table, TurnNumbers(turns=turns) if turns else None


def _guesses(group: Group, done: GuessedPass, now: Standing, decide: Decide) -> Int[Tensor, "b g n"]:
    """What the policy would do next if predictions stayed as they are; last, that the block is filled at once."""
    tokens, made, number = group.tokens, [], group.guesses.shape[1]
    for _ in range(max(1, number - 1)):
        decide(group, done.turn(now))
        made.append(group.tokens)
        now, _ = done.moved_on(replace(now, step=now.step + 1), group.tokens == group.observer.spec.mask_id)
    if number > 1:
        last = done.turn(now)
        view = group.observer(last.prediction, last.window, made[-1], group.holes, [], None).view
        change = (view.proposed - made[-1].gather(1, last.window.at)).where(view.masked, 0)
        made.append(made[-1].scatter_add(1, last.window.at, change))
    group.tokens = tokens
    return torch.stack(made, dim=1)
