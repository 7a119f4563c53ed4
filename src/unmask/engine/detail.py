"""The numbers behind a forward pass, for traces: probabilities, margins, intensities, scores, candidates, overlap.

Reading them costs several host reads, so they are gathered only when a trace is recorded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from jaxtyping import Int
from torch import Tensor

from unmask.options import check_flag, check_whole
from unmask.rules.marginals import probability_of, top2_margin
from unmask.types import Decision, Open, StepEvent, StepView


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """What events should tell beyond the commits; each costs time.

    Attributes:
        candidates: Likeliest tokens of every open position.
        overlap: Whether the overlap matrix is told, for policies that have one.
    """

    candidates: int = 5
    overlap: bool = False

    def __post_init__(self) -> None:
        check_whole(self, "candidates", least=0)
        check_flag(self, "overlap")


class TraceNumbers:
    """The numbers behind one pass over a group of rows, read from the device."""

    def __init__(self, view: StepView, decision: Decision, tokens: Int[Tensor, "b k"], detail: Detail) -> None:
        logits = view.working(view.logits)
        self.start = view.start.tolist()
        self.masked = view.masked.tolist()
        self.probability = probability_of(tokens, logits).tolist()
        self.margin = top2_margin(logits).tolist()
        self.score = decision.score.tolist()
        self.intensity = None if decision.intensity is None else decision.intensity.tolist()
        best = logits.softmax(-1).topk(min(detail.candidates, logits.shape[-1]), dim=-1)
        self.candidate_ids, self.candidate_probabilities = best.indices.tolist(), best.values.tolist()
        self.overlap = decision.overlap.tolist() if detail.overlap and decision.overlap is not None else None

    def attach(self, event: StepEvent, row: int) -> StepEvent:
        """The event of that row of the group, with what is known about its positions."""
        start = self.start[row]
        columns = [column for column, open_ in enumerate(self.masked[row]) if open_]
        commits = tuple(
            replace(commit, probability=self.probability[row][column], **self._figures(row, column))
            for commit, column in ((commit, commit.position - start) for commit in event.committed)
        )
        opened = tuple(
            Open(
                position=start + column,
                candidates=tuple(
                    zip(self.candidate_ids[row][column], self.candidate_probabilities[row][column], strict=True)
                ),
                score=self.score[row][column],
                **self._figures(row, column),
            )
            for column in columns
        )
        overlap = None if self.overlap is None else [[self.overlap[row][a][b] for b in columns] for a in columns]
        return replace(event, committed=commits, open=opened, overlap=overlap)

    def saw(self, row: int, position: int) -> bool:
        """Whether the position was open."""
        column = position - self.start[row]
        return 0 <= column < len(self.masked[row]) and self.masked[row][column]

    def _figures(self, row: int, column: int) -> dict[str, Any]:
        intensity = None if self.intensity is None else self.intensity[row][column]
        return {"margin": self.margin[row][column], "intensity": intensity}


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnNumbers:
    """The numbers behind a pass in which a policy decided several times."""

    turns: list[tuple[list[bool], TraceNumbers]]  # of each turn: which rows took part, and its numbers

    def attach(self, event: StepEvent, row: int) -> StepEvent:
        """The event, with what was known of each commit in its turn, and of open positions in the first turn."""
        found = {}
        for took_part, numbers in self.turns:
            if took_part[row]:
                open_then = replace(event, committed=tuple(c for c in event.committed if numbers.saw(row, c.position)))
                found |= {commit.position: commit for commit in numbers.attach(open_then, row).committed}
        first = self.turns[0][1].attach(replace(event, committed=()), row)
        return replace(first, committed=tuple(found[commit.position] for commit in event.committed))
