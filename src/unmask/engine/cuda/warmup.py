"""Batches decoded before the first request, so that requests do not wait for compilation, memory and captures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

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
    joining: int | None = None  # length of a prompt that joins when the others have begun
    announced: bool = False  # prompts of exactly this length will come often


def warm_up(runner: Runner, plan: Plan, *, prompt_tokens: int, rows: int) -> None:
    """Decode batches that together set up everything that requests of up to these sizes use."""
    for rehearsal in rehearsals(prompt_tokens, plan, rows):
        rehearse(runner, rehearsal, plan)


def rehearse(runner: Runner, rehearsal: Rehearsal, plan: Plan) -> None:
    """Decode one batch."""
    # These requests have no ending, so none stops early: passes over a block that no rehearsal reaches would not be
    # captured before a request reaches it.
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

    First come batches of every size that is captured, the largest first: the others fit into its storage. Then comes a
    batch of different lengths. Packed rows have kernels of their own, and if any batch of such sizes is packed, this
    one is: none has more padding. Then come single, shorter prompts: passes over canvases of lengths that were not
    announced are captured in steps.

    Each of these is decoded three times, because a pass is captured when it comes for the second or third time: twice
    with three passes a block, and once by the policy itself, for the kernels that it compiles. With a cache, a last
    batch has a row that joins the others.
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
    tokens = [plan.spec.eos_id] * prompt_tokens + [plan.spec.mask_id] * plan.max_tokens
    return Request(canvas=plan.canvas(tokens), plan=plan)
