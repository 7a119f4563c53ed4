"""What `unmask.remote.pool` gives: prompts in, outputs out, decoded by as many replicas as a cluster has room for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sized
from itertools import islice
from typing import Any

from unmask.engine.load import load
from unmask.errors import UnmaskError
from unmask.policies import Policy
from unmask.remote.replicas import Pool
from unmask.settings import Settings
from unmask.types import Output

BATCH = 32


class RemoteGenerator:
    """A generator whose batches are decoded on a cluster. Prompts may be many: they are read as replicas get free."""

    def __init__(self, replicas: Pool) -> None:
        self.replicas = replicas

    def generate(
        self,
        prompts: Iterable[Any],
        *,
        policy: str | Policy | None = None,
        settings: Settings | None = None,
        batch_size: int = BATCH,
        **options: Any,
    ) -> Iterator[Output]:
        """The outputs in the order of the prompts; options as in `Generator.generate`."""
        given = {"policy": policy, "settings": settings, "batch_size": batch_size, **options}
        return self._in_order("generate", prompts, given)

    def chat(
        self,
        conversations: Iterable[list[dict[str, str]]],
        *,
        policy: str | Policy | None = None,
        settings: Settings | None = None,
        batch_size: int = BATCH,
        **options: Any,
    ) -> Iterator[Output]:
        """The answers in the order of the conversations; options as in `Generator.chat`."""
        given = {"policy": policy, "settings": settings, "batch_size": batch_size, **options}
        return self._in_order("chat", conversations, given)

    def _in_order(self, method: str, prompts: Iterable[Any], options: Mapping[str, Any]) -> Iterator[Output]:
        if options["batch_size"] < 1:
            raise UnmaskError(f"batch_size must be a whole number of at least 1, got {options['batch_size']}")
        if isinstance(prompts, str) or (
            isinstance(prompts, list) and isinstance(next(iter(prompts), None), dict | int)
        ):
            raise UnmaskError("a pool decodes many prompts or conversations: give a list of them")
        count = len(prompts) if isinstance(prompts, Sized) else 0
        parts = enumerate(_parts(prompts, self.replicas.part_size(count, options["batch_size"])))
        early: dict[int, list[Output]] = {}
        following = 0
        for number, outputs in self.replicas.map("decode", ((at, method, part, options) for at, part in parts)):
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


class Worker:
    """A model on one node."""

    def __init__(self, path_or_name: str, how: Mapping[str, Any]) -> None:
        self.llm = load(path_or_name, **how)

    def decode(
        self, number: int, method: str, prompts: list[Any], options: Mapping[str, Any]
    ) -> tuple[int, list[Output]]:
        return number, getattr(self.llm, method)(prompts, **options)


def _parts(prompts: Iterable[Any], size: int) -> Iterator[list[Any]]:
    left = iter(prompts)
    while part := list(islice(left, size)):
        yield part
