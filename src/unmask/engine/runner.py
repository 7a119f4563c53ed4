"""How passes are run: the plain way, on every device.

In every pass the loop calls `forward` for every model call, `decide` for every group, `read` once and `begin` once. The
runner of `engine/cuda` gives the same tokens. Where it can, it begins the next pass before the host has read the
results of this one.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from unmask import policies
from unmask.cache.storage import StoragePool
from unmask.device import fast_module, on_device, wait_for
from unmask.engine.batch import Batch, Call
from unmask.engine.commit import Decided, commit
from unmask.engine.observe import observe
from unmask.engine.rows import Group, PassResult, Row
from unmask.engine.verify import predicted_with_guesses, verified
from unmask.engine.window import Pass
from unmask.errors import UnmaskError
from unmask.models.base import MaskedLM, Prediction
from unmask.types import Decision, StepView, Timing

# What a pass did to a group: on the device, or, as the turns of each row, known to the host already.
GroupResult: TypeAlias = tuple[Group, Decided | list[list[PassResult]]]


class Runner:
    """What the loop asks of a device. This one runs every pass when it is asked for."""

    pending = False  # whether `read` has launched the next pass already, so that no row may join it

    def __init__(self, model: MaskedLM, pool: StoragePool) -> None:
        self.model, self.pool = model, pool

    def forward(self, call: Call) -> Pass:
        """Predict the window of the call's rows."""
        return predicted_with_guesses(self.model, call) if call.kind.verify else predicted(self.model, call)

    def decide(self, group: Group, done: Pass) -> GroupResult:
        """Have the policy decide, and commit within the guarantees; the group's tokens and state are replaced."""
        try:
            if done.guessed is not None:
                return group, verified(group, done, self.decide_once)
            decided = self.decide_group(group, done)
        except UnmaskError as error:  # the rows of this group fail, the other groups go on
            return group, [[PassResult(error=error, refreshed=refreshed)] for refreshed in done.refreshed]
        group.tokens, group.state = decided.tokens, decided.state
        return group, decided

    def decide_group(self, group: Group, done: Pass) -> Decided:
        """The decision of a pass without guesses; the runner of `engine/cuda` replays a captured one."""
        return self.decide_once(group, done)

    def decide_once(self, group: Group, done: Pass, *, own: bool = False) -> Decided:
        """Observe, decide and commit; changes none of its inputs, except logits that are its `own`."""
        view, logits = observe(group, done, own=own)
        decision, state = self.select(group, view)
        return commit(group, done, view, logits, decision, state)

    def select(self, group: Group, view: StepView) -> tuple[Decision, Any]:
        return policies.decide(group.plan.policy, view, group.state)

    def read(self, batch: Batch, results: list[GroupResult]) -> list[tuple[Row, list[PassResult]]]:
        """Bring the results of all rows of all groups to the host in one copy; may launch the next pass."""
        return rows_of(results, joined_tables(results).tolist())

    def begin(self, batch: Batch) -> None:
        """Take over the pass that `read` launched, or launch the next one; the plain runner does neither."""

    def close(self, *, usable: bool) -> None:
        """End the loop; not `usable`: a pass failed, and nothing that it has written may be used again."""


class TimedRunner(Runner):
    """A plain runner that notes where the time of each row goes: in the model, in the policy, in everything else.

    The time of a pass is shared equally by its rows, so the rows' times add up to the time of the batch. The host waits
    for the device before it reads the clock, which costs a little, so decoding is not timed by default.
    """

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


def joined_tables(results: list[GroupResult]) -> Int[Tensor, " numbers"]:
    """The tables of all groups one behind the other, to be read at once."""
    parts = [result.table.flatten() for _, result in results if isinstance(result, Decided)]
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.long)


def rows_of(results: list[GroupResult], numbers: list[int]) -> list[tuple[Row, list[PassResult]]]:
    """Every row of every group and its turns, from the numbers of the joined tables."""
    found, at = [], 0
    for group, outcome in results:
        if isinstance(outcome, Decided):
            end = at + outcome.table.numel()
            turns, at = [[turn] for turn in outcome.read(numbers[at:end])], end
        else:
            turns = outcome
        found += zip(group.rows, turns, strict=True)
    return found


def predicted(model: MaskedLM, call: Call) -> Pass:
    """Ask the model for the logits of every row's block, or of every position where a policy needs them."""
    plan, window, tokens = call.plan(), call.next_window(), call.tokens()
    kind, (cache, *others) = call.kind, call.caches
    at = None if kind.whole else window.predicted(plan)
    prediction = model.predict(
        tokens,
        plan=plan,
        at=at,
        cache=cache,
        block_size=kind.block_size,
        attention_layers=kind.attention_layers,
        shadow=window.at if kind.shadow else None,
        states=kind.drift is not None,
    )
    drifted = None
    if call.drift is not None and cache is not None:
        assert prediction.states is not None
        masked = window.columns(tokens == model.spec.mask_id) & window.inside
        drifted = call.drift.drifted(plan, cache.index, prediction.states, window.at, masked)
        prediction = replace(prediction, states=None)  # large, and of no use any more
    if kind.guided:
        without_prompt = tokens.masked_fill(~call.holes(), model.spec.mask_id)
        unguided = model.predict(without_prompt, plan=plan, at=at, cache=others[0], block_size=kind.block_size).logits
        scale = _scales(call, unguided)
        prediction = replace(prediction, logits=unguided + (scale + 1.0) * (prediction.logits - unguided))
    if kind.whole or prediction.attention is not None:
        prediction = _widened(prediction, call.length, whole=kind.whole)
    return Pass.of(plan, window, prediction, drifted)


def _widened(prediction: Prediction, length: int, *, whole: bool) -> Prediction:
    """Sequence tensors as wide as the call, which stays so when rows leave: a policy's state keeps its shape."""
    logits, attention = prediction.logits, prediction.attention
    if whole and logits.shape[1] < length:
        logits = pad(logits, (0, 0, 0, length - logits.shape[1]))
    if attention is not None and (missing := length - attention.shape[1]):
        attention = pad(attention, (0, missing, 0, missing))
    return replace(prediction, logits=logits, attention=attention)


def _scales(call: Call, logits: Float[Tensor, "b k v"]) -> Float[Tensor, "b 1 1"] | float:
    """How strongly each row is guided; one number if all rows have the same."""
    scales = [row.plan.settings.cfg_scale for row in call.rows]
    if len(set(scales)) == 1:
        return scales[0]
    return on_device(torch.tensor(scales, dtype=logits.dtype), logits.device)[:, None, None]


def runner_for(model: MaskedLM, pool: StoragePool) -> Runner:
    """The fastest way to run passes of this model."""
    cuda = fast_module("unmask.engine.cuda.runner", model.device)
    return Runner(model, pool) if cuda is None else cuda.CudaRunner(model, pool)
