"""From what a policy decides to what a pass does: the guarantees, the canvas after the commits, and the results.

The guarantees: only open positions are committed; a row with open positions commits at least one, unless the policy
lets it wait or every token to commit is the mask token; where blocks slide, it commits one in the first open block; the
mask token is never committed; only positions that this generation filled are opened again. Two more hold for a shifted
head with a cache (`first_only` and `pin_first`; docs/engine.md says why).

The host reads nothing of a pass but its table of results, and for traces the numbers behind a decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.cache.base import Span
from unmask.engine.plan import Detail, Plan
from unmask.engine.rows import Group, PassResult, RowNumbers
from unmask.engine.window import Pass
from unmask.policies import with_progress
from unmask.rules.marginals import probability_of, top2_margin
from unmask.types import Decision, Open, StepView

# A row of the table of results: the k tokens after the pass, then for each of the k columns whether it was committed,
# then for each whether it was opened again, then a number for each flag, in this order.
PARTS = 3
FLAGS = ("waiting", "drifted", "broken", "foreign", "goes_on")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What came of a decision about some rows, on the device."""

    tokens: Int[Tensor, "b n"]  # after the commits
    table: Int[Tensor, "b results"]
    blocks: tuple[Span, ...]
    refreshed: tuple[bool, ...]
    state: Any = None  # of the policy
    numbers: list[RowNumbers] | None = None  # for a trace

    def read(self, table: list[int]) -> list[PassResult]:
        """The result of each row, from the numbers of the table, row by row."""
        size, results = self.table.shape[1], []
        width = (size - len(FLAGS)) // PARTS
        for number, (start, end) in enumerate(self.blocks):
            row, columns = table[number * size : (number + 1) * size], range(end - start)
            flags: dict[str, Any] = dict(zip(FLAGS, map(bool, row[PARTS * width :]), strict=True))
            result = PassResult(
                committed={start + c: row[c] for c in columns if row[width + c]},
                remasked=tuple(start + c for c in columns if row[2 * width + c]),
                refreshed=self.refreshed[number],
                numbers=None if self.numbers is None else self.numbers[number],
                **flags,
            )
            results.append(result)
        return results


def commit(
    group: Group, done: Pass, view: StepView, logits: Float[Tensor, "b k v"], decision: Decision, state: Any = None
) -> Decided:
    """Carry out a decision within the guarantees. `view` and `logits` come from `observe`; the group stays as it is."""
    mask_id, before, drifted = group.plan.spec.mask_id, view.tokens, done.drifted
    assert before is not None
    committed, written, foreign = _committed(group.plan, done, view, logits, decision)
    remasked = _remasked(done, view, decision)
    after = torch.where(committed, written, before)
    if remasked is not None:
        after = after.masked_fill(remasked, mask_id)
    # In a block narrower than the window, surplus columns repeat its last position: they add 0 to it.
    tokens = group.tokens.scatter_add(1, done.window.at, after - before)
    goes_on = (after == mask_id).any(-1)
    goes_on = goes_on if drifted is None else goes_on & ~drifted
    broken = _broken(group.plan, view, logits)
    flags = (decision.wait, drifted, broken, foreign, goes_on)  # in the order of FLAGS
    return Decided(
        tokens=tokens,
        table=_table(after, committed, remasked, flags),
        blocks=done.window.blocks,
        refreshed=done.refreshed,
        state=state,
        numbers=None if group.detail is None else _row_numbers(view, decision, written, group.detail),
    )


def _committed(
    plan: Plan, done: Pass, view: StepView, logits: Float[Tensor, "b k v"], decision: Decision
) -> tuple[Bool[Tensor, "b k"], Int[Tensor, "b k"], Bool[Tensor, " b"] | None]:
    """The columns to commit, what is written there, and which rows would commit a token outside the vocabulary."""
    committed = with_progress(decision, view.masked, done.window.first)
    written = view.proposed if decision.tokens is None else decision.tokens
    if done.first_only is not None:
        alone = done.first_only[:, None]
        committed = torch.where(alone, _first_column(committed), committed)
        written = torch.where(alone, logits.argmax(-1), written)
    foreign = None
    if decision.tokens is not None:  # they are the policy's own, and an index outside would ruin a CUDA device
        known = (written >= 0) & (written < logits.shape[-1])
        foreign, committed = (committed & ~known).any(-1), committed & known
        written = written.where(known, view.proposed)
    if decision.tokens is not None or not plan.settings.suppress_mask_token:
        committed = committed & (written != plan.spec.mask_id)  # such a position stays open
    return committed, written, foreign


def _remasked(done: Pass, view: StepView, decision: Decision) -> Bool[Tensor, "b k"] | None:
    """The columns to open again; None: the policy opens none."""
    if decision.remask is None:
        return None
    assert view.decoded is not None
    remasked = decision.remask & view.decoded
    if done.pin_first is not None:
        remasked = remasked & ~(done.pin_first[:, None] & _first_column(remasked))
    return remasked


def _first_column(like: Bool[Tensor, "b k"]) -> Bool[Tensor, " k"]:
    return torch.arange(like.shape[1], device=like.device) == 0


def _broken(plan: Plan, view: StepView, logits: Float[Tensor, "b k v"]) -> Bool[Tensor, " b"]:
    """Rows with an open position whose logits hold NaN or +inf, or are all -inf."""
    # The largest logit, or NaN if a logit is NaN. A greedy proposal has it; a drawn token may have another.
    greedy = plan.settings.temperature == 0.0
    largest = logits.gather(-1, view.proposed[..., None]).squeeze(-1) if greedy else logits.amax(-1)
    usable = largest.abs() < torch.inf  # as isfinite says, in fewer launches
    return (view.masked & ~usable).any(-1)


def _table(
    after: Int[Tensor, "b k"],
    committed: Bool[Tensor, "b k"],
    remasked: Bool[Tensor, "b k"] | None,
    flags: tuple[Bool[Tensor, " b"] | None, ...],
) -> Int[Tensor, "b results"]:
    """The table of a decision; what is None is False in every row."""
    no = torch.zeros_like(committed[:, 0])
    remasked = no[:, None].expand_as(committed) if remasked is None else remasked
    columns = [(no if flag is None else flag)[:, None] for flag in flags]
    return torch.cat([after, torch.cat([committed, remasked, *columns], dim=1)], dim=1)


def _row_numbers(view: StepView, decision: Decision, written: Int[Tensor, "b k"], detail: Detail) -> list[RowNumbers]:
    """The numbers of every row; `written`: the token of each column, if it is committed.

    Gathering them makes the host wait several times, so it is done for traces only.
    """
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
            one.position: {"probability": probability[row][column], "margin": one.margin, "intensity": one.intensity}
            for column, one in zip(columns, opened, strict=True)
        }
        between = None if overlap is None else [[overlap[row][a][b] for b in columns] for a in columns]
        found.append(RowNumbers(open=opened, committed=committed, overlap=between))
    return found
