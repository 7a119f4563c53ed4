"""A module that keeps its passes as CUDA graphs for as long as its weights stay where they are."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn

from unmask.cache.kv import Storage
from unmask.models.graphs import PassGraphs


class Graphed(nn.Module):
    """Graphs work on the storage of a cache, or on none; what is copied or pickled has none yet."""

    def __init__(self) -> None:
        super().__init__()
        self._begin()

    def _begin(self) -> None:
        self.alone = Lock()  # to be held from a replay until what it left behind has been picked up
        self.forget_graphs()

    def forget_graphs(self) -> None:
        """Let go of captured passes; they are captured again when they come again."""
        self._uncached = PassGraphs()
        self._cached: WeakKeyDictionary[Storage, PassGraphs] = WeakKeyDictionary()

    def graphs_of(self, storage: Storage | None) -> PassGraphs:
        if storage is None:
            return self._uncached
        if storage not in self._cached:
            self._cached[storage] = PassGraphs()
        return self._cached[storage]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Graphed:
        self.forget_graphs()  # they would go on reading the weights from where they were
        return super()._apply(fn, recurse)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_uncached", "_cached", "alone")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._begin()
