"""Keys and values of whole canvases, kept between forward passes.

Knows nothing of blocks or policies: the engine says which positions to recompute (engine/reuse.py). Keys are stored
after the rotary embedding, which is the same as before it, since a position never moves, and spares a rotation per
pass. A row keeps its place from its first pass to its last, and storage is used again by later generations: what was
captured in a CUDA graph must stay where it was.
"""

from __future__ import annotations

from collections import deque
from threading import Lock
from typing import TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

_POSITIONS = 256  # storage grows by so many: one for canvases of like length

Layer: TypeAlias = tuple[Float[Tensor, "places g length d"], Float[Tensor, "places g length d"]]


class Storage:
    """Room for the keys and values of some rows of limited length; takes the shape of the model that first uses it."""

    def __init__(self, *, rows: int, length: int, others: StoragePool | None = None) -> None:
        self.rows, self.length = rows, length
        self.layers: list[Layer] = []
        self._others = others  # let go of where there is no room beside them

    @property
    def positions(self) -> int:
        return self.rows * self.length

    def allocate(self, *, n_layers: int, heads: int, width: int, like: Tensor) -> None:
        """Make room, if that has not been done for a model of this dtype on this device."""
        if self.layers and (self.layers[0][0].dtype, self.layers[0][0].device) == (like.dtype, like.device):
            return
        self.layers = []
        sizes = (self.rows, heads, self.length, width)
        try:
            self.layers = _zeros(like, sizes, n_layers)
        except torch.OutOfMemoryError:
            if self._others is None:
                raise
            self._others.clear()
            self.layers = _zeros(like, sizes, n_layers)


def _zeros(like: Tensor, sizes: tuple[int, ...], n_layers: int) -> list[Layer]:
    # They outlive this call, so they must not be born as inference tensors, which nobody else may write to. Zeros: what
    # nobody has written may be multiplied by a weight of zero, which must give zero.
    with torch.inference_mode(False):
        return [(like.new_zeros(sizes), like.new_zeros(sizes)) for _ in range(n_layers)]


class KVCache:
    """The rows of a batch in a storage."""

    def __init__(self, storage: Storage, places: Int[Tensor, " b"], *, in_order: bool) -> None:
        self.storage = storage
        self.places = places  # where each row of the batch lies
        self.in_order = in_order  # row i lies in place i

    @classmethod
    def over(cls, storage: Storage, rows: int, device: torch.device) -> KVCache:
        """For a new batch of that many rows."""
        return cls(storage, torch.arange(rows, device=device), in_order=True)

    @classmethod
    def new(cls, rows: int, length: int, device: torch.device | str = "cpu") -> KVCache:
        """In a storage of its own."""
        return cls.over(Storage(rows=rows, length=length), rows, torch.device(device))

    def only(self, rows: Int[Tensor, " r"]) -> KVCache:
        """Some of the rows."""
        return KVCache(self.storage, self.places[rows], in_order=False)

    def joined_by(self, places: Int[Tensor, " r"], *, in_order: bool) -> KVCache:
        """These rows, and behind them new ones in those places; `in_order`: row i now lies in place i."""
        return KVCache(self.storage, torch.cat([self.places, places]), in_order=in_order)


class StoragePool:
    """Lends storage to generations, one at a time each.

    What is given back is kept, with all that was captured on it, while it takes no more room than the largest batch
    does once more: a long canvas now and then must not cost the short ones their graphs.
    """

    def __init__(self) -> None:
        self._free: list[Storage] = []  # who was given back last comes last
        self._returned: deque[Storage] = deque()
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[StoragePool], tuple[()]]:
        return StoragePool, ()  # a copy begins empty

    def borrow(self, rows: int, length: int) -> Storage:
        """The smallest that is free and large enough, else a new one."""
        with self._lock:
            while self._returned:
                self._free.append(self._returned.popleft())
            fitting = [found for found in self._free if found.rows >= rows and found.length >= length]
            if fitting:
                chosen = min(fitting, key=lambda found: found.positions)
                self._free.remove(chosen)
                return chosen
            new = Storage(rows=rows, length=-(-length // _POSITIONS) * _POSITIONS, others=self)
            largest = max(found.positions for found in (new, *self._free))
            while new.positions + sum(found.positions for found in self._free) > 2 * largest:
                self._free.pop(0)
            return new

    def give_back(self, storage: Storage) -> None:
        # Without the lock: a generation that nobody holds any more may end while this very thread borrows.
        self._returned.append(storage)

    def clear(self) -> None:
        """Let go of all that is free."""
        with self._lock:
            self._returned.clear()
            self._free.clear()
