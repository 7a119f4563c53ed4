"""Test equipment: hand-made inputs, and rows that play model and loop, each drawing its figures from its own seed."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from unmask.policies import Policy, with_progress
from unmask.types import Decision, StepView

VOCABULARY = 12
MASK = VOCABULARY - 1
CANVAS = 16


def peaked(confidences: list[float], *, vocabulary: int = 20, first: int = 0) -> Tensor:
    """Logits (k, v) with the given probability on token 3i + 1 of position i and the rest spread evenly."""
    rows = []
    for position, best in enumerate(confidences, start=first):
        row = torch.full((vocabulary,), (1.0 - best) / (vocabulary - 1), dtype=torch.float64)
        row[(3 * position + 1) % vocabulary] = best
        rows.append(row.log())
    return torch.stack(rows)


def committed(policy: Policy, view: StepView, state: Any = None) -> list[int]:
    """Absolute positions that the first row commits, once progress is guaranteed."""
    decision, _ = policy.select(view, state)
    columns = with_progress(decision, view.masked)[0].nonzero().flatten()
    return (columns + view.start[0]).tolist()


class Row:
    """A canvas of a prompt and some blocks, and a stand-in for the model that is sure of some positions only."""

    def __init__(self, seed: int, *, prompt: int, blocks: list[int]) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        ends = torch.tensor([prompt, *blocks]).cumsum(0).tolist()
        self.spans = list(pairwise(ends))
        self.length = ends[-1]
        self.tokens = [1] * prompt + [MASK] * sum(blocks)
        self.total = sum(blocks)
        self.step = 0
        sharpness = 10.0 * torch.rand(CANVAS, 1, generator=self.generator, dtype=torch.float64)
        self.base = sharpness * self.normal(CANVAS, VOCABULARY)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    @property
    def span(self) -> tuple[int, int]:
        return next(span for span in self.spans if MASK in self.tokens[slice(*span)])

    @property
    def finished(self) -> bool:
        return MASK not in self.tokens

    def forward(self) -> dict[str, Tensor]:
        """The figures of one pass over the whole canvas; padding gets no attention and gives none."""
        real = torch.arange(CANVAS) < self.length
        logits = self.base + 0.02 * self.normal(CANVAS, VOCABULARY)
        attention = (2.0 * self.normal(CANVAS, CANVAS)).exp() * real
        return {
            "logits": logits.index_fill(-1, torch.tensor(MASK), -torch.inf),
            "attention": attention / attention.sum(-1, keepdim=True) * real[:, None],
            "shadow": self.base + 4.0 * self.normal(CANVAS, VOCABULARY),
            "uniform": torch.rand(CANVAS, generator=self.generator),
        }

    def write(self, start: int, commit: list[int], remask: list[int], written: list[int]) -> None:
        span = self.span
        for column in remask:
            assert self.tokens[start + column] != MASK
            self.tokens[start + column] = MASK
        for column in commit:
            assert self.tokens[start + column] == MASK
            self.tokens[start + column] = written[column]
        self.step = self.step + 1 if not self.finished and self.span == span else 0


def view_of(rows: list[Row], *, closed: float | None = torch.nan) -> StepView:
    """What the policy sees of the rows' next pass; the logits of closed columns are `closed`, or the model's (None)."""
    passes = [row.forward() for row in rows]
    figures = {name: torch.stack([one[name] for one in passes]) for name in passes[0]}
    starts = torch.tensor([row.span[0] for row in rows])
    ends = torch.tensor([row.span[1] for row in rows])
    columns = torch.arange(int((ends - starts).max()))
    inside = columns < (ends - starts)[:, None]
    at = torch.minimum(starts[:, None] + columns, ends[:, None] - 1)
    tokens = torch.tensor([row.tokens + [1] * (CANVAS - row.length) for row in rows])
    standing = tokens.gather(1, at)
    masked = (standing == MASK) & inside
    logits = figures["logits"].gather(1, at[..., None].expand(-1, -1, VOCABULARY))
    shadow = figures["shadow"].gather(1, at[..., None].expand(-1, -1, VOCABULARY))
    return StepView(
        logits=logits if closed is None else logits.masked_fill(~masked[..., None], closed),
        masked=masked,
        proposed=logits.argmax(-1),
        tokens=standing.masked_fill(~inside, -1),
        start=starts,
        step=torch.tensor([row.step for row in rows]),
        remaining=torch.tensor([row.tokens.count(MASK) for row in rows]),
        total=torch.tensor([row.total for row in rows]),
        uniform=figures["uniform"].gather(1, at),
        sequence_logits=figures["logits"],
        sequence_masked=tokens == MASK,
        attention=figures["attention"],
        shadow_logits=shadow if closed is None else shadow.masked_fill(masked[..., None], closed),
    )


@dataclass(frozen=True)
class Pass:
    """What one pass did to one row, and the row's part of the state after it."""

    commit: list[int]
    remask: list[int]
    state: dict[str, Tensor]


def drive(policy: Policy, rows: list[Row], *, limit: int = 200) -> list[list[Pass]]:
    """Decode the rows to the end, dropping finished ones from the batch; the passes of each row."""
    history: list[list[Pass]] = [[] for _ in rows]
    live, state = list(range(len(rows))), None
    for _ in range(limit):
        # A policy that takes tokens back looks at what is closed.
        view = view_of([rows[index] for index in live], closed=None if policy.remasks else torch.nan)
        decision, state = policy.select(view, state)
        commit = with_progress(decision, view.masked)
        remask = torch.zeros_like(commit) if decision.remask is None else decision.remask
        written = view.proposed if decision.tokens is None else decision.tokens
        for place, index in enumerate(live):
            start = rows[index].span[0]
            chosen, opened = (part[place].nonzero().flatten().tolist() for part in (commit, remask))
            parts = {} if state is None else _remembered(state, place, rows[index], view.masked.shape[1])
            history[index].append(Pass([start + c for c in chosen], [start + c for c in opened], parts))
            rows[index].write(start, chosen, opened, written[place].tolist())
        staying = [place for place, index in enumerate(live) if not rows[index].finished]
        live = [live[place] for place in staying]
        if not live:
            return history
        if state is not None:
            state = replace(state, **{f.name: getattr(state, f.name)[staying] for f in fields(state)})
    raise AssertionError(f"not finished after {limit} passes")


def _remembered(state: Any, place: int, row: Row, width: int) -> dict[str, Tensor]:
    """A row's part of a state; of each column of the pass, only the columns of the row's own block."""
    start, end = row.span
    parts = {f.name: getattr(state, f.name)[place] for f in fields(state)}
    return {name: part[: end - start] if part.shape[:1] == (width,) else part for name, part in parts.items()}


def make_rows(seed: int) -> list[Row]:
    """Three rows that are in blocks of different widths, and finish at different times."""
    shapes = [(3, [9, 3]), (1, [4, 5]), (6, [5])]
    return [Row(7 * seed + place, prompt=p, blocks=b) for place, (p, b) in enumerate(shapes)]


def assert_same(one: Decision, other: Decision) -> None:
    for field in fields(Decision):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        assert (mine is None) == (theirs is None)
        if mine is not None:
            torch.testing.assert_close(mine, theirs, rtol=0, atol=0, equal_nan=True)
