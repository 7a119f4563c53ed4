"""What is decoded before the first request, so that it need not wait for what that sets up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from unmask.engine.canvas import Canvas
from unmask.models.graphs import padded_rows
from unmask.models.packing import CAPTURED, STEP
from unmask.policies import Fixed, Policy
from unmask.types import StepEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """A batch to decode: how long its prompts are, and by which policy."""

    lengths: list[int]
    policy: Policy
    joining: int | None = None  # length of a prompt that comes when the others have begun
    expected: bool = False  # prompts of just this length will come often

    @property
    def prompts(self) -> list[int]:
        """The lengths of all, those who join last."""
        return self.lengths if self.joining is None else [*self.lengths, self.joining]

    def play(self, canvases: list[Canvas], decode: Callable[..., Iterator[StepEvent]]) -> None:
        """Decode the canvases of its prompts."""
        late = canvases[len(self.lengths) :]

        def arrivals(room: int, longest: int | None) -> list[Canvas]:
            come, late[:] = list(late), []
            return come

        for _ in decode(canvases[: len(self.lengths)], arrivals=arrivals, rows=len(canvases)):
            pass


def rehearsals(
    prompt_tokens: int, max_tokens: int, batch_size: int, policy: Policy, *, cached: bool
) -> Iterator[Rehearsal]:
    """Batches that need, between them, all that requests of up to these sizes need.

    Batches of every size that is captured come first, the largest before the others, which fit into its storage. Three
    passes a block, and three times, because passes are captured when they come for the second or third time; one of
    these by the policy itself, for whatever that compiles. Then rows of different lengths, and, if they are `cached`,
    one that joins others: they have kernels of their own, which serve here if they serve any batch of such sizes, since
    no other has more padding. Last, single prompts that are shorter: the passes over a canvas whose length nobody
    expects are captured in steps.
    """
    sizes = sorted({padded_rows(rows) for rows in range(1, batch_size + 1)}, reverse=True)
    batches = [[prompt_tokens] * min(rows, batch_size) for rows in sizes]
    different = [prompt_tokens, *[1] * (batch_size - 1)]
    shorter = [*range(prompt_tokens - 1, 1, -STEP), 1] if prompt_tokens > 1 else []
    captured = [length for length in shorter if length == shorter[0] or length + max_tokens <= CAPTURED]
    three = Fixed(passes=3)
    for lengths in [*batches, *([different] if batch_size > 1 else []), *([length] for length in captured)]:
        for chosen in (three, policy, three):
            yield Rehearsal(lengths=lengths, policy=chosen, expected=lengths in batches)
    if cached and batch_size > 1:
        yield Rehearsal(lengths=different[:-1], policy=three, joining=prompt_tokens)
