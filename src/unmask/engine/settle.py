"""From what a policy wants to what a pass does: the commits within the loop's guarantees, the canvas after them, and
what the host must know of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.engine.facts import PLACES, columns_together
from unmask.engine.observe import Observation
from unmask.policies import with_progress
from unmask.rules.kernels import kernels_run
from unmask.rules.selection import bits
from unmask.types import Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A decision, and all else that bears on what comes of it."""

    decision: Decision
    seen: Observation
    at: Int[Tensor, "b k"]  # absolute position of every column
    drifted: Bool[Tensor, " b"] | None  # rows whose cache the next pass must refresh; None: nobody asked
    alone: Bool[Tensor, "b 1"] | None  # rows that must commit the first position of their block, and no other
    mask_id: int
    mask_allowed: bool  # the mask token may be proposed; then the position stays open


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a pass really does to the window: the policy's wish within the guarantees of the loop."""

    commit: Bool[Tensor, "b k"]
    remask: Bool[Tensor, "b k"] | None
    tokens: Int[Tensor, "b k"]


def settle(case: Case, tokens: Int[Tensor, "b n"]) -> tuple[Int[Tensor, "b n"], Int[Tensor, "b facts"]]:
    """The canvas after the commits; and what the host must know of each row, the one read of the pass.

    That is, of every column, the token after the pass, whether it was committed and whether it was opened again; and of
    the row, whether it waits, has drifted, is broken, and goes on in its block in the next pass.
    """
    if case.seen.greedy and kernels_run(tokens.device):
        return settle_by_kernel(case, tokens)
    return plainly_settled(case, tokens)


def outcome_of(case: Case) -> Outcome:
    """What becomes of the decision."""
    decision, view = case.decision, case.seen.view
    commit = with_progress(decision, view.masked)
    tokens = view.proposed if decision.tokens is None else decision.tokens
    if case.alone is not None:
        first = torch.arange(commit.shape[1], device=commit.device) == 0
        commit = torch.where(case.alone, first, commit)
        tokens = torch.where(case.alone, case.seen.logits.argmax(-1), tokens)
    if case.mask_allowed:
        commit = commit & (tokens != case.mask_id)
    remask = None if decision.remask is None else decision.remask & case.seen.decoded
    return Outcome(commit=commit, remask=remask, tokens=tokens)


def plainly_settled(case: Case, tokens: Int[Tensor, "b n"]) -> tuple[Int[Tensor, "b n"], Int[Tensor, "b facts"]]:
    """`settle` in plain torch."""
    outcome, before, drifted = outcome_of(case), case.seen.tokens, case.drifted
    commit, remask = outcome.commit, outcome.remask
    after = torch.where(commit, outcome.tokens, before)
    if remask is not None:
        after = after.masked_fill(remask, case.mask_id)
    # Columns outside a narrow block repeat its last position, so changes are added to the canvas, not set.
    tokens = tokens.scatter_add(1, case.at, after - before)
    goes_on = (after == case.mask_id).any(-1)
    goes_on = goes_on if drifted is None else goes_on & ~drifted
    none = torch.zeros_like(goes_on)
    flags = [none if flag is None else flag for flag in (case.decision.wait, drifted, case.seen.broken(), goes_on)]
    remasked = none[:, None].expand_as(commit) if remask is None else remask
    return tokens, torch.cat([after, commit, remasked, *(flag[:, None] for flag in flags)], dim=1)


def settle_by_kernel(case: Case, tokens: Int[Tensor, "b n"]) -> tuple[Int[Tensor, "b n"], Int[Tensor, "b facts"]]:
    """`settle` in one launch, for proposals that are the likeliest tokens: so a row that commits alone has them too."""
    from unmask.engine import decision_kernels

    kernels: Any = decision_kernels  # a launch is no call that a type checker understands
    decision, seen = case.decision, case.seen
    masked, (b, k), n = bits(seen.view.masked), case.at.shape, tokens.shape[1]
    wanted = seen.view.proposed if decision.tokens is None else decision.tokens
    score = decision.score if decision.score.is_floating_point() else decision.score.float()
    ends = torch.finfo(score.dtype)
    logits = seen.logits if seen.logits.stride(-1) == 1 else seen.logits.contiguous()

    def rows(values: Tensor) -> Tensor:
        return values.expand(b, k).contiguous()

    def flags(values: Tensor | None, *shape: int) -> Tensor:
        """What is not there is not read."""
        return masked if values is None else bits(values.expand(shape))

    canvas, told = tokens.new_empty((b, n)), tokens.new_empty((b, 3 * k + 4))
    # A launch goes to the current device.
    with torch.cuda.device_of(tokens):
        kernels.settle_rows[(b,)](
            *(bits(rows(decision.commit)), rows(score.detach()), masked),
            *(rows(seen.view.proposed), rows(wanted), rows(seen.tokens)),
            *(flags(decision.remask, b, k), bits(seen.decoded), flags(decision.wait, b)),
            *(flags(case.drifted, b), flags(case.alone, b, 1)),
            *(logits.detach(), tokens.contiguous(), case.at.contiguous(), canvas, told),
            *(logits.stride(0), logits.stride(1), n, k, case.mask_id),
            LOWEST=ends.min,
            HIGHEST=ends.max,
            MASK_ALLOWED=case.mask_allowed,
            REMASKS=decision.remask is not None,
            WAITS=decision.wait is not None,
            DRIFTS=case.drifted is not None,
            ALONE=case.alone is not None,
            N=PLACES,
            K=columns_together(k),
            num_warps=4,
        )
    return canvas, told
