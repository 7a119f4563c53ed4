"""Keys and values of whole canvases, kept between forward passes.

Knows nothing of blocks or policies: the engine says which positions to recompute (engine/reuse.py). Keys are stored
after the rotary embedding, which is the same as before it, since a position never moves, and spares a rotation per
pass.
"""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor


class KVCache:
    """One layer after another: keys and values (b, heads, n, d) of every position of every row."""

    def __init__(self) -> None:
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []
        self._rows: Tensor | None = None

    def only(self, rows: Int[Tensor, " r"] | None) -> KVCache:
        """The same storage, seen through some of its rows; None: all of them."""
        view = KVCache()
        view._keys, view._values, view._rows = self._keys, self._values, rows
        return view

    def fill(self, layer: int, keys: Float[Tensor, "b h n d"], values: Float[Tensor, "b h n d"]) -> None:
        """Keep what a full pass computed."""
        if layer == len(self._keys):
            self._keys.append(keys)
            self._values.append(values)
        elif self._rows is None:
            self._keys[layer], self._values[layer] = keys, values
        else:
            self._keys[layer][self._rows], self._values[layer][self._rows] = keys, values

    def splice(
        self,
        layer: int,
        keys: Float[Tensor, "b h q d"],
        values: Float[Tensor, "b h q d"],
        positions: Int[Tensor, "b q"],
    ) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b h n d"]]:
        """Write fresh keys and values over `positions` and return those of the whole canvas."""
        index = positions[:, None, :, None].expand(-1, keys.shape[1], -1, keys.shape[3])
        if self._rows is None:
            self._keys[layer].scatter_(2, index, keys)
            self._values[layer].scatter_(2, index, values)
            return self._keys[layer], self._values[layer]
        whole_keys = self._keys[layer][self._rows].scatter(2, index, keys)
        whole_values = self._values[layer][self._rows].scatter(2, index, values)
        self._keys[layer][self._rows], self._values[layer][self._rows] = whole_keys, whole_values
        return whole_keys, whole_values

    def keep(self, rows: Int[Tensor, " r"]) -> None:
        """Drop every row but these."""
        self._keys[:] = [keys[rows] for keys in self._keys]
        self._values[:] = [values[rows] for values in self._values]
