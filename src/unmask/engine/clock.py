"""Where the time of a batch goes: in the model, in the policy, in everything else.

A pass is shared equally by the rows that were in it, so the rows' times add up to the time of the batch. The device is
waited for before the clock is read, which costs a little: decoding is timed only when somebody asks.
"""

from __future__ import annotations

import time

import torch

from unmask.types import Timing


class Clock:
    """Time spent on each row of one batch; runs from when it is made until `stop`."""

    def __init__(self, device: torch.device, rows: int) -> None:
        self.device = device
        self.model = [0.0] * rows
        self.policy = [0.0] * rows
        self.began = self._now()
        self.mark = self.began

    def start(self) -> None:
        """Begin a lap."""
        self.mark = self._now()

    def lap(self, spent: list[float], live: list[int]) -> None:
        """End a lap, and begin the next; its time goes to the live rows in equal shares."""
        now = self._now()
        for row in live:
            spent[row] += (now - self.mark) / len(live)
        self.mark = now

    def stop(self) -> list[Timing]:
        """What each row took; the rest is what neither model nor policy account for."""
        total, rows = self._now() - self.began, len(self.model)
        rest = max(0.0, total - sum(self.model) - sum(self.policy)) / rows
        pairs = zip(self.model, self.policy, strict=True)
        return [Timing(model_s=model, policy_s=policy, rest_s=rest) for model, policy in pairs]

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()
        return time.perf_counter()
