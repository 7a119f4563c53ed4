"""The numbers behind a decision, for traces: probabilities, margins, intensities, scores, candidates, overlap.

Reading them costs several host reads, so they are gathered only when a trace is recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxtyping import Int
from torch import Tensor

from unmask.options import check_bounds, parameter
from unmask.rules.marginals import probability_of, top2_margin
from unmask.types import Decision, Open, StepView


@dataclass(frozen=True, slots=True, kw_only=True)
class Detail:
    """What events should tell beyond the commits; each costs time.

    Attributes:
        candidates: Likeliest tokens of every open position.
        overlap: Whether the overlap matrix is told, for policies that have one.
    """

    candidates: int = parameter(5, least=0)
    overlap: bool = False

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowNumbers:
    """The numbers behind a decision about one row."""

    open: tuple[Open, ...]
    committed: dict[int, dict[str, Any]]  # by open position: fields of a Commit, if the position is committed
    overlap: list[list[float]] | None  # of the open positions


def row_numbers(view: StepView, decision: Decision, written: Int[Tensor, "b k"], detail: Detail) -> list[RowNumbers]:
    """The numbers of every row, read from the device; `written`: the token of each column, if it is committed."""
    logits = view.working(view.logits)
    probability, margin = probability_of(written, logits).tolist(), top2_margin(logits).tolist()
    best = logits.softmax(-1).topk(min(detail.candidates, logits.shape[-1]), dim=-1)
    candidates, shares = best.indices.tolist(), best.values.tolist()
    score = decision.score.tolist()
    intensity = None if decision.intensity is None else decision.intensity.tolist()
    overlap = decision.overlap.tolist() if detail.overlap and decision.overlap is not None else None
    found = []
    for row, (start, masked) in enumerate(zip(view.start.tolist(), view.masked.tolist(), strict=True)):
        columns = [column for column, open_ in enumerate(masked) if open_]
        opened = tuple(
            Open(
                position=start + column,
                candidates=tuple(zip(candidates[row][column], shares[row][column], strict=True)),
                score=score[row][column],
                margin=margin[row][column],
                intensity=None if intensity is None else intensity[row][column],
            )
            for column in columns
        )
        committed = {
            one.position: {"probability": chance, "margin": one.margin, "intensity": one.intensity}
            for one, chance in zip(opened, (probability[row][column] for column in columns), strict=True)
        }
        between = None if overlap is None else [[overlap[row][a][b] for b in columns] for a in columns]
        found.append(RowNumbers(open=opened, committed=committed, overlap=between))
    return found
