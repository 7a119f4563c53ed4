"""How far the states of a row have drifted since its last refresh, for caches that are refreshed by drift."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.cache.base import PassPlan
from unmask.device import on_device


class DriftStates:
    """The states of every cache slot at its last refresh.

    Only open positions count. The state of a committed position changes with its token; the state of a mask changes
    only because its context does. Everything stays on the device.
    """

    def __init__(self, tolerated: float, *, slots: int, length: int) -> None:
        self.tolerated, self.slots, self.length = tolerated, slots, length  # tolerated: mean of 1 - cosine
        self._states: Tensor | None = None  # (slots, length, w)

    def drifted(
        self,
        plan: PassPlan,
        slots: Int[Tensor, " b"],
        states: Float[Tensor, "b q w"],
        at: Int[Tensor, "b k"],
        masked: Bool[Tensor, "b k"],
    ) -> Bool[Tensor, " b"]:
        """Which rows of a pass have drifted too far, by its states at the positions `at`; a refresh notes its states.

        states: of the positions that the plan computes.
        """
        if self._states is None:
            self._states = states.new_zeros(self.slots, self.length, states.shape[2])
        drifted = torch.zeros_like(masked[:, 0])
        for refresh in (True, False):
            rows = [number for number, row in enumerate(plan.rows) if row.refresh is refresh]
            if not rows:
                continue
            index = slice(None) if len(rows) == len(plan.rows) else on_device(rows, plan.device)
            if refresh:
                self._states[slots[index], : states.shape[1]] = states[index]
                continue
            column = (at - plan.positions[:, :1])[index]
            now = states[index].gather(1, column[:, :, None].expand(-1, -1, states.shape[2]))
            before = self._states[slots[index][:, None], at[index]]
            moved = 1.0 - F.cosine_similarity(now.float(), before.float(), dim=-1)
            open_ = masked[index]
            drifted[index] = moved.where(open_, 0.0).sum(-1) > self.tolerated * open_.sum(-1)
        return drifted
