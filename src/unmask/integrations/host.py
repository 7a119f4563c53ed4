"""One pass over the active blocks of another engine, its host: the core that every adapter wraps.

An adapter hands over what its host has, and writes the result where the host wants it. The core knows no host, changes
none of its inputs and asks the device nothing. The guarantees are those of engine/commit.py, and one more: with a
`limit`, a block is full after that many passes, whatever the policy answers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask import policies
from unmask.engine.observe import propose
from unmask.errors import UnmaskError
from unmask.policies import Policy
from unmask.settings import Settings
from unmask.types import Decision, StepView

GREEDY = Settings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The active blocks of a batch, before a pass."""

    logits: Float[Tensor, "b k v"]
    tokens: Int[Tensor, "b k"]
    masked: Bool[Tensor, "b k"]  # open
    mask_id: int
    given: Bool[Tensor, "b k"] | None = None  # never to be opened again; None: all that is not open
    start: Int[Tensor, " b"] | None = None  # absolute position of the first column; None: 0
    step: Int[Tensor, " b"] | None = None  # passes already spent on the block; None: 0
    limit: int | None = None  # passes that the host spends on a block, at least k; None: as many as it takes

    def rows(self, index: Int[Tensor, " rows"]) -> Block:
        """Some rows only."""
        names = ("logits", "tokens", "masked", "given", "start", "step")
        values = {name: getattr(self, name) for name in names}
        return replace(self, **{name: value if value is None else value[index] for name, value in values.items()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Advance:
    """What a pass does to the blocks."""

    tokens: Int[Tensor, "b k"]  # the blocks after the pass
    commit: Bool[Tensor, "b k"]
    remask: Bool[Tensor, "b k"]  # opened again
    proposed: Int[Tensor, "b k"]  # what is written at a commit
    score: Float[Tensor, "b k"]
    state: Any


def allowed(policy: Policy, host: str, *, gives: frozenset[str] = frozenset()) -> Policy:
    """The same policy, if it needs nothing beyond the logits of its block that the host does not give."""
    beyond = policies.needs_of(policy) - gives
    if beyond:
        name, needs = policies.name_of(policy), ", ".join(sorted(beyond))
        raise UnmaskError(f"the policy {name} needs {needs}, which {host} does not give; `unmask serve` runs it")
    return policy


def advance(
    policy: Policy,
    block: Block,
    state: Any = None,
    *,
    settings: Settings = GREEDY,
    generator: torch.Generator | None = None,
    sees_drawn: bool = False,
) -> Advance:
    """Propose, decide and commit once.

    settings:   temperature, top_p and top_k of the proposals, with noise from the generator, or else from torch's own.
    sees_drawn: the policy sees the distribution that tokens were drawn from, instead of the plain one.
    """
    rows, width = block.masked.shape
    logits = block.logits.to(torch.float32, copy=True)
    if 0 <= block.mask_id < logits.shape[-1]:
        logits[..., block.mask_id] = -torch.inf
    proposed, drawn_from = propose(logits, settings, [width] * rows, [generator] * rows)
    known = {name: value for name in ("start", "step") if (value := getattr(block, name)) is not None}
    random = "uniform" in policies.needs_of(policy)
    view = StepView(
        logits=drawn_from if sees_drawn else logits,
        masked=block.masked,
        proposed=proposed,
        tokens=block.tokens.long(),
        decoded=torch.zeros_like(block.masked) if block.given is None else ~(block.masked | block.given),
        uniform=torch.rand((rows, width), generator=generator, device=logits.device) if random else None,
        model_dtype=block.logits.dtype,
        **known,
    )
    decision, state = policies.decide(policy, view, state)
    commit, remask = _within_limit(decision, view, block.limit)
    proposed = view.proposed if decision.tokens is None else decision.tokens
    tokens = torch.where(commit, proposed.to(block.tokens.dtype), block.tokens).masked_fill(remask, block.mask_id)
    return Advance(tokens=tokens, commit=commit, remask=remask, proposed=proposed, score=decision.score, state=state)


def _within_limit(
    decision: Decision, view: StepView, limit: int | None
) -> tuple[Bool[Tensor, "b k"], Bool[Tensor, "b k"]]:
    """What is committed and what is opened again, so that a later pass is left for every position still open then."""
    assert view.decoded is not None
    open_now = view.masked.sum(-1)
    left = torch.full_like(open_now, view.masked.numel()) if limit is None else limit - 1 - view.step
    if decision.wait is not None:
        decision = replace(decision, wait=decision.wait & (open_now <= left))
    commit = policies.with_progress(decision, view.masked)
    if decision.remask is None:
        return commit, torch.zeros_like(commit)
    # A full block is finished: nothing of it is opened again.
    remask = decision.remask & view.decoded & view.masked.any(-1, keepdim=True)
    fits = open_now - commit.sum(-1) + remask.sum(-1) <= left
    return commit, remask & fits[:, None]
