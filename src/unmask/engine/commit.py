"""From what a policy decides to what a pass does: the guarantees, the canvas after the commits, and the results.

The guarantees: only open positions are committed; a row with open positions commits at least one, unless the policy
lets it wait or every token to commit is the mask token; where blocks slide, it commits one in the first open block; the
mask token is never committed; only positions that this
generation filled are opened again. Two more hold for a shifted head with a cache (`first_only` and `pin_first`;
docs/engine.md says why).

The host reads nothing of a pass but the results, and for traces the numbers of detail.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from unmask.cache.base import Span
from unmask.engine.observe import Observed
from unmask.errors import UnmaskError
from unmask.policies import with_progress
from unmask.types import Decision

# A row of results (b, PARTS k + FLAGS) has, for each of k columns, the token after the pass, whether it was committed
# and whether it was opened again; then a number for each flag, in this order. A pass that verifies adds its `step`.
PARTS = 3
WAITING, DRIFTED, BROKEN, FOREIGN, GOES_ON = range(5)
FLAGS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PassResult:
    """What a pass did to one row."""

    committed: dict[int, int]  # position -> token
    remasked: tuple[int, ...]
    waiting: bool  # the policy let the row idle on purpose
    drifted: bool  # the next pass must refresh the row's cache
    broken: bool  # an open position had no usable logits
    foreign: bool  # the policy gave a token outside the vocabulary
    goes_on: bool  # the block stays open and needs no refresh, so `Cache.plan_next` has the plan of the next pass
    # Of a pass that verifies: how often the policy has decided in the block that is open after it.
    step: int | None = None
    error: UnmaskError | None = None  # why the policy could not decide

    @classmethod
    def failed(cls, error: UnmaskError) -> PassResult:
        """A pass that did nothing, because the policy could not decide."""
        nothing = dict.fromkeys(("waiting", "drifted", "broken", "foreign", "goes_on"), False)
        return cls(committed={}, remasked=(), error=error, **nothing)

    @classmethod
    def read(cls, numbers: list[int], block: Span) -> PassResult:
        width, start = (len(numbers) - FLAGS) // PARTS, block[0]
        columns, told = range(block[1] - start), numbers[PARTS * width :]
        flags, step = [bool(number) for number in told[:FLAGS]], told[FLAGS:]
        return cls(
            committed={start + c: numbers[c] for c in columns if numbers[width + c]},
            remasked=tuple(start + c for c in columns if numbers[2 * width + c]),
            waiting=flags[WAITING],
            drifted=flags[DRIFTED],
            broken=flags[BROKEN],
            foreign=flags[FOREIGN],
            goes_on=flags[GOES_ON],
            step=step[0] if step else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitInputs:
    """A policy's decision, and the window to which it applies."""

    decision: Decision
    observed: Observed
    at: Int[Tensor, "b k"]  # absolute position of every column
    drifted: Bool[Tensor, " b"] | None  # rows whose cache the next pass must refresh; None: no cache drifts
    first: Bool[Tensor, "b k"] | None  # columns in which each row must commit a position; None: all
    first_only: Bool[Tensor, " b"] | None  # rows that commit their block's first position alone, by arg max
    pin_first: Bool[Tensor, " b"] | None  # rows whose block's first position must not be opened again
    mask_id: int
    mask_allowed: bool  # the mask token may be proposed; such a position stays open, even if the row then commits none


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The decision within the guarantees."""

    commit: Bool[Tensor, "b k"]
    remask: Bool[Tensor, "b k"] | None
    tokens: Int[Tensor, "b k"]
    foreign: Bool[Tensor, " b"] | None  # rows with a commit outside the vocabulary; None: the policy gave no tokens


def outcome_of(inputs: CommitInputs) -> Outcome:
    """What a pass does to the window."""
    decision, observed = inputs.decision, inputs.observed
    commit = with_progress(decision, observed.view.masked, inputs.first)
    tokens = observed.view.proposed if decision.tokens is None else decision.tokens
    if inputs.first_only is not None:
        alone = inputs.first_only[:, None]
        commit = torch.where(alone, _first_column(commit), commit)
        tokens = torch.where(alone, observed.logits.argmax(-1), tokens)
    foreign = None
    if decision.tokens is not None:  # they are the policy's own, and an index outside would ruin a CUDA device
        known = (tokens >= 0) & (tokens < observed.logits.shape[-1])
        foreign, commit = (commit & ~known).any(-1), commit & known
        tokens = tokens.where(known, observed.view.proposed)
    if inputs.mask_allowed or decision.tokens is not None:
        commit = commit & (tokens != inputs.mask_id)
    remask = None if decision.remask is None else decision.remask & observed.state.decoded
    if remask is not None and inputs.pin_first is not None:
        remask = remask & ~(inputs.pin_first[:, None] & _first_column(remask))
    return Outcome(commit=commit, remask=remask, tokens=tokens, foreign=foreign)


def _first_column(like: Bool[Tensor, "b k"]) -> Bool[Tensor, " k"]:
    return torch.arange(like.shape[1], device=like.device) == 0


def apply(tokens: Int[Tensor, "b n"], inputs: CommitInputs) -> tuple[Int[Tensor, "b n"], Int[Tensor, "b results"]]:
    """The group's tokens after the commits, and the table of results."""
    outcome, before, drifted = outcome_of(inputs), inputs.observed.state.tokens, inputs.drifted
    commit, remask = outcome.commit, outcome.remask
    after = torch.where(commit, outcome.tokens, before)
    if remask is not None:
        after = after.masked_fill(remask, inputs.mask_id)
    # In a block narrower than the window, surplus columns repeat its last position: they add 0 to it.
    tokens = tokens.scatter_add(1, inputs.at, after - before)
    goes_on = (after == inputs.mask_id).any(-1)
    goes_on = goes_on if drifted is None else goes_on & ~drifted
    no = torch.zeros_like(goes_on)
    told = (inputs.decision.wait, drifted, inputs.observed.broken(), outcome.foreign)
    flags = [no if flag is None else flag for flag in told]
    remasked = no[:, None].expand_as(commit) if remask is None else remask
    marks = torch.cat([commit, remasked, *(flag[:, None] for flag in (*flags, goes_on))], dim=1)
    return tokens, torch.cat([after, marks], dim=1)
