"""Passes that predict a row and guesses of its coming states at once, and keep what comes true. Tokens stay the same.

A state is the tokens of a canvas. Without a cache and at temperature 0, what a pass does depends on the state and the
step alone. So one model call predicts the state of a row and its guesses, and the policy decides in turns: it decides
on the state that it has reached, and if this gives one of the guessed states, that state's prediction is known, and
the next turn follows. The block of a row and the blocks after it are predicted, so turns may go on in the next block.

A turn is an ordinary decision about some rows, with copies of their canvases that run ahead. Guesses are made in the
same way from the last prediction used: the policy decides on it again and again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.cache.base import PassPlan, Span, columns_of
from unmask.device import on_device
from unmask.engine.batch import Call
from unmask.engine.canvas import Canvas
from unmask.engine.commit import Decided
from unmask.engine.rows import Group, PassResult, Row, padded
from unmask.engine.window import Pass, Window
from unmask.models.base import MaskedLM, Prediction
from unmask.policies import Fixed

BLOCKS = 3  # predicted of each state: one to decide in, one to go on to, and one to guess what comes behind it
Decide = Callable[[Group, Pass], Decided]  # the runner's `decide_once`
FILL = Fixed(tokens_per_pass=2**31)  # a policy that commits the whole block


def predicted_with_guesses(model: MaskedLM, call: Call) -> Pass:
    """Predict the rows of the call and their guesses in one model call."""
    rows, count = call.rows, 1 + call.kind.verify
    blocks = [_blocks(row.canvas) for row in rows]
    at = on_device(torch.from_numpy(columns_of(blocks)[0]), call.device)
    plan = call.plan()
    repeated = PassPlan(tuple(row for row in plan.rows for _ in range(count)), plan.device)
    tokens = padded([state for row in rows for state in _states(row)], call.length, model.spec.eos_id, call.device)
    places = at.flatten(1).repeat_interleave(count, dim=0)
    found = model.predict(tokens, plan=repeated, at=places, block_size=call.kind.block_size)
    guessed = found.logits.unflatten(1, at.shape[1:]).unflatten(0, (len(rows), count))
    window = Window.over([row.canvas for row in rows], call.device)
    return replace(Pass.of(plan, window, Prediction(logits=guessed[:, 0, 0])), guessed=guessed)


def _blocks(canvas: Canvas) -> list[Span]:
    """The row's block, and those after it; behind the last they are empty."""
    found = canvas.blocks[canvas.block_index :][:BLOCKS]
    return found + [(found[0][0], found[0][0])] * (BLOCKS - len(found))


def _states(row: Row) -> list[list[int]]:
    """The row's own state and its guesses; a row that has just joined has none, and its own is repeated."""
    own = row.canvas.tokens
    return [own, *(row.guesses or [own] * row.plan.settings.verify)]


class _Ahead:
    """A row of a group, and a copy of it that runs ahead."""

    def __init__(self, number: int, row: Row) -> None:
        self.number, self.row = number, row
        self.copy = replace(row, canvas=row.canvas.copy())
        self.state = 0  # the state whose prediction was used last
        self.turns: list[PassResult] = []

    @property
    def block(self) -> int:
        """How many blocks the copy has left behind."""
        return self.copy.canvas.block_index - self.row.canvas.block_index

    @property
    def is_predicted(self) -> bool:
        """Whether the block that the copy has come to was predicted."""
        return not self.copy.canvas.finished and self.block < BLOCKS

    def note(self, turn: PassResult) -> bool:
        """Note a turn; true if the state that it gave was predicted, so that another turn may follow."""
        self.turns.append(turn)
        states, reached = _states(self.row), self.copy.canvas.tokens
        if turn.broken or turn.foreign or not self.is_predicted or reached not in states:
            return False
        self.state = states.index(reached)
        return True


def verified(group: Group, done: Pass, decide: Decide) -> list[list[PassResult]]:
    """The turns of every row, as far as guesses come true. The group gets its new tokens, and its rows new guesses."""
    rows, count = [_Ahead(number, row) for number, row in enumerate(group.rows)], group.plan.settings.verify
    going = rows
    for _ in range(1 + count):
        group.tokens, turns = _turn(going, group, done, decide)
        going = [row for row, turn in zip(going, turns, strict=True) if row.note(turn)]
        if not going:
            break
    guessing = replace(group, detail=None)
    for row in group.rows:
        row.guesses = []
    for number in range(count):
        # The policy goes on as if predictions stayed as they are. The last guess is that the block is filled at once.
        if 0 < number == count - 1:
            guessing.plan = replace(group.plan, policy=FILL)
        if open_ := [row for row in rows if row.is_predicted]:
            guessing.tokens, _ = _turn(open_, guessing, done, decide)
        for ahead in rows:
            ahead.row.guesses.append(ahead.copy.canvas.tokens.copy())
    return [row.turns for row in rows]


def _turn(rows: list[_Ahead], group: Group, done: Pass, decide: Decide) -> tuple[Int[Tensor, "b n"], list[PassResult]]:
    """Decide about some rows of a group, whose copies follow; the tokens of the group then, and these rows' results."""
    assert done.guessed is not None
    copies, device = [row.copy for row in rows], group.tokens.device
    window = Window.over([row.canvas for row in copies], device)
    number, state, block = on_device([[row.number, row.state, row.block] for row in rows], device).unbind(1)
    prediction = Prediction(logits=done.guessed[number, state, block, : window.at.shape[1]])
    part = replace(group, rows=copies, tokens=group.tokens[number], holes=group.holes[number])
    decided = decide(part, Pass(window=window, prediction=prediction, refreshed=(False,) * len(rows)))
    results = decided.read(decided.table.flatten().tolist())
    for row, result in zip(copies, results, strict=True):
        row.canvas.write(result.committed)
    return group.tokens.index_copy(0, number, decided.tokens), results
