"""The lines of a batch, answered by replicas on a Ray cluster (`unmask batch --backend ray`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from unmask.batch.complete import Line, Result, complete
from unmask.engine.generator import Generator
from unmask.policies import Policy
from unmask.remote.config import ClusterConfig
from unmask.remote.replicas import Pool


class Worker:
    """A model on one node, which answers a part of the lines at a time."""

    def __init__(self, open_model: Callable[[], tuple[Generator, Policy]], options: dict[str, Any]) -> None:
        self.llm, self.policy = open_model()
        self.options = options

    def answer(self, lines: list[Line]) -> list[Result]:
        return list(complete(self.llm, lines, policy=self.policy, **self.options))


def complete_on(
    cluster: ClusterConfig,
    open_model: Callable[[], tuple[Generator, Policy]],
    lines: Iterator[Line],
    *,
    count: int,
    rows: int,
    **options: Any,
) -> Iterator[Result]:
    """As `complete`, for `count` lines, on every replica of the cluster; `open_model` loads the model there."""
    replicas = Pool(partial(Worker, open_model, {"rows": rows, **options}), cluster)
    size = replicas.part_size(count, rows)
    try:
        for results in replicas.map("answer", ((part,) for part in iter(lambda: list(islice(lines, size)), []))):
            yield from results
    finally:
        replicas.close()
