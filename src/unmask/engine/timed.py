"""Where the time of each row goes: in the model, in the policy, in everything else.

The time of a pass is shared equally by its rows, so the rows' times add up to the time of the batch. The host waits for
the device before it reads the clock, which costs a little, so decoding is not timed by default.
"""

from __future__ import annotations

import time
from typing import Any

from unmask.cache.storage import StoragePool
from unmask.device import wait_for
from unmask.engine.batch import Batch, Call
from unmask.engine.rows import Group, PassResult, Row
from unmask.engine.runner import GroupResult, Runner
from unmask.engine.window import Pass
from unmask.models.base import MaskedLM
from unmask.types import Decision, StepView, Timing


class TimedRunner(Runner):
    """A plain runner that looks at the clock."""

    def __init__(self, model: MaskedLM, pool: StoragePool) -> None:
        super().__init__(model, pool)
        self.spent: dict[int, Timing] = {}  # by the number of the row
        self.last: Timing | None = None  # of the last pass, all rows together
        self._pass_began = self._now()
        self._model_s = self._policy_s = 0.0

    def forward(self, call: Call) -> Pass:
        began = self._now()
        done = super().forward(call)
        self._model_s += self._now() - began
        return done

    def select(self, group: Group, view: StepView) -> tuple[Decision, Any]:
        began = self._now()
        answer = super().select(group, view)
        self._policy_s += self._now() - began
        return answer

    def read(self, batch: Batch, results: list[GroupResult]) -> list[tuple[Row, list[PassResult]]]:
        found = super().read(batch, results)
        now, rows = self._now(), batch.rows
        rest_s = max(0.0, now - self._pass_began - self._model_s - self._policy_s)
        self.last = Timing(model_s=self._model_s, policy_s=self._policy_s, rest_s=rest_s)
        for row in rows:
            before = self.spent.get(row.number, Timing(model_s=0.0, policy_s=0.0, rest_s=0.0))
            self.spent[row.number] = Timing(
                model_s=before.model_s + self._model_s / len(rows),
                policy_s=before.policy_s + self._policy_s / len(rows),
                rest_s=before.rest_s + rest_s / len(rows),
            )
        self._pass_began, self._model_s, self._policy_s = now, 0.0, 0.0
        return found

    def _now(self) -> float:
        wait_for(self.model.device)
        return time.perf_counter()
