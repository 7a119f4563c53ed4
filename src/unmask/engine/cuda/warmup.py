"""What is decoded before the first request, so that it need not wait for what that sets up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from unmask.engine.canvas import Canvas
from unmask.engine.decode import decode
from unmask.engine.plan import Plan
from unmask.engine.runner import Runner
from unmask.engine.scheduler import Request, Scheduler
from unmask.models.kernels.graphs import padded_rows
from unmask.models.kernels.passes import CAPTURED, STEP, announce
from unmask.policies import Fixed, Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """A batch to decode: how long its prompts are, and by which policy."""

    lengths: list[int]
    policy: Policy
    joining: int | None = None  # length of a prompt that comes when the others have begun
    announced: bool = False  # prompts of just this length will come often


def warm_up(runner: Runner, plan: Plan, *, prompt_tokens: int, rows: int) -> None:
    """Decode batches that need, between them, all that requests of up to these sizes need."""
    for rehearsal in rehearsals(prompt_tokens, plan, rows):
        rehearse(runner, rehearsal, plan)


def rehearse(runner: Runner, rehearsal: Rehearsal, plan: Plan) -> None:
    """Decode one batch."""
    # No text ends early, since requests without an ending have none: a block that is never reached would be captured by
    # the first request that does.
    requests = [_request(length, replace(plan, policy=rehearsal.policy)) for length in rehearsal.lengths]
    if rehearsal.announced:
        announce(runner.model, len(requests), requests[0].canvas.length)
    scheduler = Scheduler(requests, rows=len(requests) + (rehearsal.joining is not None))
    late = [] if rehearsal.joining is None else [_request(rehearsal.joining, replace(plan, policy=rehearsal.policy))]
    for _ in decode(scheduler, runner):
        scheduler.line.extend(late)
        late = []


def rehearsals(prompt_tokens: int, plan: Plan, rows: int) -> Iterator[Rehearsal]:
    """The batches, in an order in which each finds the storage that it needs.

    Batches of every size that is captured come first, the largest before the others, which fit into its storage. Three
    passes a block, and three times, because passes are captured when they come for the second or third time; one of
    these by the policy itself, for whatever that compiles. Then rows of different lengths, and, with a cache, one that
    joins others: they have kernels of their own, which serve here if they serve any batch of such sizes, since no other
    has more padding. Last, single prompts that are shorter: passes over a canvas of a length that was not announced
    are captured in steps.
    """
    sizes = sorted({padded_rows(count) for count in range(1, rows + 1)}, reverse=True)
    batches = [[prompt_tokens] * min(size, rows) for size in sizes]
    different = [prompt_tokens, *[1] * (rows - 1)]
    shorter = [*range(prompt_tokens - 1, 1, -STEP), 1] if prompt_tokens > 1 else []
    captured = [length for length in shorter if length == shorter[0] or length + plan.max_tokens <= CAPTURED]
    three = Fixed(passes=3)
    for lengths in [*batches, *([different] if rows > 1 else []), *([length] for length in captured)]:
        for policy in (three, plan.policy, three):
            yield Rehearsal(lengths=lengths, policy=policy, announced=lengths in batches)
    if plan.settings.cache != "none" and rows > 1:
        yield Rehearsal(lengths=different[:-1], policy=three, joining=prompt_tokens)


def _request(prompt_tokens: int, plan: Plan) -> Request:
    spec = plan.spec
    tokens = [spec.eos_id] * prompt_tokens + [spec.mask_id] * plan.max_tokens
    canvas = Canvas(tokens=tokens, mask_id=spec.mask_id, block_size=plan.block_size, aligned=spec.causal)
    return Request(canvas=canvas, plan=plan)
