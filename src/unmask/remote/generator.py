"""What `unmask.remote.pool` gives: prompts in, outputs out, decoded by as many replicas as a cluster has room for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any, Unpack

from unmask.engine.generator import Generator, Keywords
from unmask.errors import UnmaskError
from unmask.remote.replicas import Pool
from unmask.types import Output

BATCH = 32


class RemoteGenerator:
    """A generator whose batches are decoded on a cluster. Prompts may be many: they are read as replicas get free."""

    def __init__(self, replicas: Pool) -> None:
        self.replicas = replicas

    def generate(self, prompts: Iterable[Any], **options: Unpack[Keywords]) -> Iterator[Output]:
        """The outputs in the order of the prompts; options as in `Generator.generate`."""
        return self._in_order("generate", prompts, options)

    def chat(self, conversations: Iterable[list[dict[str, str]]], **options: Unpack[Keywords]) -> Iterator[Output]:
        """The answers in the order of the conversations; options as in `Generator.chat`."""
        return self._in_order("chat", conversations, options)

    def _in_order(self, method: str, prompts: Iterable[Any], options: Keywords) -> Iterator[Output]:
        rows = options.get("batch_size", BATCH)
        if rows < 1:
            raise UnmaskError(f"batch_size must be a whole number of at least 1, got {rows}")
        if isinstance(prompts, str) or (
            isinstance(prompts, list) and isinstance(next(iter(prompts), None), dict | int)
        ):
            raise UnmaskError("a pool decodes many prompts or conversations: give a list of them")
        parts = enumerate(self.replicas.parts(prompts, len(prompts) if isinstance(prompts, Sized) else 0, rows))
        early: dict[int, list[Output]] = {}
        following = 0
        for number, outputs in self.replicas.map(_decode, ((at, method, part, options) for at, part in parts)):
            early[number] = outputs
            while following in early:
                yield from early.pop(following)
                following += 1

    def close(self) -> None:
        """End the replicas."""
        self.replicas.close()

    def __enter__(self) -> RemoteGenerator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _decode(
    llm: Generator, number: int, method: str, prompts: list[Any], options: Mapping[str, Any]
) -> tuple[int, list[Output]]:
    return number, getattr(llm, method)(prompts, **options)
