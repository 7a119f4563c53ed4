"""Memory for the keys and values of whole canvases, lent to generations and taken back.

Knows nothing of blocks or policies: the kinds of cache say which positions to recompute. Keys are stored after the
rotary embedding: a position never moves, so a stored key needs no second rotation. A row keeps its slot from its first
pass to its last. Later generations use the same storage again, because a captured CUDA graph reads and writes it where
it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.device import on_device, out_of_memory

_POSITIONS = 256  # lengths are multiples of it, so that canvases of similar length fit one storage

Layer: TypeAlias = tuple[Float[Tensor, "slots g length d"], Float[Tensor, "slots g length d"]]


class Storage:
    """Room for the keys and values of some rows of limited length; takes the shape of the model that first uses it."""

    def __init__(self, *, rows: int, length: int, others: StoragePool | None = None) -> None:
        self.rows, self.length = rows, length
        self.layers: list[Layer] = []
        self._others = others  # its free storages are dropped if memory runs out

    @property
    def positions(self) -> int:
        return self.rows * self.length

    def allocate(self, *, n_layers: int, heads: int, width: int, like: Tensor) -> None:
        """Allocate the layers, unless there are layers of this dtype on this device already."""
        if self.layers and (self.layers[0][0].dtype, self.layers[0][0].device) == (like.dtype, like.device):
            return
        self.layers = []
        sizes = (self.rows, heads, self.length, width)
        try:
            self.layers = _zeros(like, sizes, n_layers)
        except (RuntimeError, MemoryError) as error:
            if self._others is None or not out_of_memory(error):
                raise
            self._others.clear()
            self.layers = _zeros(like, sizes, n_layers)


def _zeros(like: Tensor, sizes: tuple[int, ...], n_layers: int) -> list[Layer]:
    # They outlive this call, so they must not be born as inference tensors, which other code may not write to. Zeros:
    # what was never written may be multiplied by a weight of zero, which must give zero.
    with torch.inference_mode(False):
        return [(like.new_zeros(sizes), like.new_zeros(sizes)) for _ in range(n_layers)]


class KVCache:
    """The slots of a storage that hold the rows of one model call."""

    def __init__(self, storage: Storage, slots: Sequence[int], device: torch.device | str = "cpu") -> None:
        self.storage = storage
        self.slots = tuple(slots)  # where each row lies
        self.index: Int[Tensor, " b"] = on_device(list(slots), torch.device(device))  # the same on the device
        self.in_order = self.slots == tuple(range(len(self.slots)))

    @classmethod
    def new(cls, rows: int, length: int, device: torch.device | str = "cpu") -> KVCache:
        """A cache in a storage of its own."""
        return cls(Storage(rows=rows, length=length), range(rows), device)

    def rows(self) -> slice | Int[Tensor, " b"]:
        """How to index a layer so that as little as possible is copied."""
        return slice(len(self.slots)) if self.in_order else self.index


class Lease:
    """A storage on loan and its free slots; with guidance, a second one for predictions without the prompt."""

    def __init__(self, pool: StoragePool, *, rows: int, length: int, guided: bool) -> None:
        self._pool, self.guided = pool, guided
        self.storages = [pool.borrow(rows, length) for _ in range(2 if guided else 1)]
        self.rows, self.length = rows, min(storage.length for storage in self.storages)
        self._free = list(range(rows))

    @property
    def used(self) -> int:
        return self.rows - len(self._free)

    def holds(self, length: int, *, guided: bool) -> bool:
        """Whether there is a slot for a row of this length."""
        return bool(self._free) and self.length >= length and self.guided >= guided

    def take(self) -> int:
        """A slot for a row: the first that is free."""
        return self._free.pop(0)

    def give_back(self, slot: int, *, clean: bool = True) -> None:
        """Free the slot of a row; not `clean`: it may hold NaN, which would spoil the row that gets it next."""
        for storage in () if clean else self.storages:
            for keys, values in storage.layers:
                keys[slot], values[slot] = 0.0, 0.0
        self._free = sorted([*self._free, slot])

    def close(self, *, usable: bool) -> None:
        """Return the storage to the pool, unless a failed pass may have left in it what must not be read again."""
        for storage in self.storages if usable else ():
            self._pool.give_back(storage)
        self.storages = []


class StoragePool:
    """Lends storages, each to one generation at a time.

    Storages that are given back are kept, and with them the graphs captured on them. The oldest are dropped when a new
    storage and the free ones would hold more than twice the positions of the largest: an occasional long canvas must
    not cost the short ones their graphs.
    """

    def __init__(self) -> None:
        self.kept: dict[Any, Any] = {}  # what a runner keeps for later generations, such as captured decisions
        self._free: list[Storage] = []  # the last to be given back comes last
        self._lock = Lock()

    def __reduce__(self) -> tuple[type[StoragePool], tuple[()]]:
        return StoragePool, ()  # a copy begins empty

    def borrow(self, rows: int, length: int) -> Storage:
        """The smallest free storage that is large enough, else a new one."""
        with self._lock:
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
        # Without the lock: a generation may be collected as garbage, and end, while this very thread borrows.
        self._free.append(storage)

    def clear(self) -> None:
        """Drop all free storages."""
        with self._lock:
            self._free.clear()
