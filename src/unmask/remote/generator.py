"""Prompts in, outputs out, decoded by as many replicas as a cluster has room for.

Nothing heavy is imported at the top: flags show without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from unmask.errors import UnmaskError
from unmask.remote.cluster import ClusterConfig
from unmask.remote.replicas import Pool

if TYPE_CHECKING:
    from unmask.engine.generator import Generator, Keywords
    from unmask.types import Output

BATCH = 32


def pool(
    path_or_name: str,
    *,
    address: str | None = None,
    replicas: int | None = None,
    cpus_per_replica: float = 1.0,
    gpus_per_replica: float | None = None,
    **how: Any,
) -> RemoteGenerator:
    """Replicas of a model on a Ray cluster, to be used in a `with` block; `how` is what `unmask.load` takes.

    address:  HOST:PORT of the head node, or 'auto'; default a cluster on this machine that ends with the block.
    replicas: copies of the model; default as many as have room.
    """
    from unmask.engine.load import load

    shares = {"cpus_per_replica": cpus_per_replica, "gpus_per_replica": gpus_per_replica}
    cluster = ClusterConfig(address=address, replicas=replicas, **shares)
    return RemoteGenerator(Pool(partial(load, path_or_name, **how), cluster))


class RemoteGenerator(AbstractContextManager["RemoteGenerator"]):
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
        one = isinstance(prompts, list) and isinstance(next(iter(prompts), None), dict | int)
        if one or isinstance(prompts, str):
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

    def __exit__(self, *_: object) -> None:
        self.close()


def _decode(
    llm: Generator, number: int, method: str, prompts: list[Any], options: Mapping[str, Any]
) -> tuple[int, list[Output]]:
    return number, getattr(llm, method)(prompts, **options)
