"""The batches that are decoded once before the first request, so that it need not wait for what they set up."""

from __future__ import annotations

from collections.abc import Iterator

from unmask.models.graphs import padded_rows


def rehearsed(prompt_tokens: int, batch_size: int) -> Iterator[list[int]]:
    """The lengths of the prompts of each: of every size that is captured, then of different lengths.

    Largest first: smaller ones fit into its storage. Rows of different lengths have a kernel of their own; it serves
    these if it serves any batch of such sizes, since no other has more padding.
    """
    for rows in sorted({padded_rows(rows) for rows in range(1, batch_size + 1)}, reverse=True):
        yield [prompt_tokens] * min(rows, batch_size)
    if batch_size > 1:
        yield [prompt_tokens, *[1] * (batch_size - 1)]
