"""One model call over the rows of a batch that share it: what the plan computes, guidance, and drift."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from unmask.cache.base import PassPlan, Span
from unmask.cache.refresh import DriftStates
from unmask.device import on_device
from unmask.engine.batch import Call
from unmask.engine.rows import Group
from unmask.engine.window import Window
from unmask.models.base import MaskedLM, Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A forward pass over the rows of a call; the device may still be at work on it."""

    window: Window
    plan: PassPlan
    prediction: Prediction
    drifted: Bool[Tensor, " b"] | None  # rows whose cache the next pass must refresh; None: no cache drifts

    @property
    def spans(self) -> tuple[Span, ...]:
        """The positions of each row that the results tell of."""
        return self.window.blocks

    def first_only(self) -> Bool[Tensor, " b"] | None:
        return self._flags([row.first_only for row in self.plan.rows])

    def pin_first(self) -> Bool[Tensor, " b"] | None:
        return self._flags([row.pin_first for row in self.plan.rows])

    def _flags(self, values: list[bool]) -> Bool[Tensor, " b"] | None:
        return on_device(values, self.plan.device) if any(values) else None

    def split(self, groups: list[Group]) -> Iterator[tuple[Group, Pass]]:
        """Each group of the call, and the part of the pass that concerns it."""
        first = 0
        for group in groups:
            end = first + len(group.rows)
            yield group, self if len(groups) == 1 else self._part(group, first, end)
            first = end

    def _part(self, group: Group, first: int, end: int) -> Pass:
        """The rows of one group, no wider than the group needs."""
        rows, window, found = slice(first, end), self.window.rows(first, end), self.prediction
        width, length, shadow, attention = window.at.shape[1], group.length, found.shadow_logits, found.attention
        prediction = Prediction(
            logits=found.logits[rows, : length if "sequence_logits" in group.observer.needs else width],
            attention=None if attention is None else attention[rows, :length, :length],
            shadow_logits=None if shadow is None else shadow[rows, :width],
        )
        drifted = None if self.drifted is None else self.drifted[rows]
        plan = PassPlan(self.plan.rows[rows], self.plan.device)
        return Pass(window=window, plan=plan, prediction=prediction, drifted=drifted)


def forward(model: MaskedLM, call: Call) -> Pass:
    """Ask the model for the logits of every row's block, or of every position where a policy needs them."""
    plan, window, tokens = call.plan(shifted=model.spec.shifted), call.window(), call.tokens()
    kind, (cache, *others) = call.kind, call.caches
    at = None if kind.whole else positions_to_predict(plan, window)
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
        drifted = drifted_rows(call.drift, plan, cache.index, prediction.states, window.at, masked)
        prediction = replace(prediction, states=None)  # large, and of no use any more
    if kind.guided:
        without_prompt = tokens.masked_fill(~call.holes(), model.spec.mask_id)
        unguided = model.predict(without_prompt, plan=plan, at=at, cache=others[0], block_size=kind.block_size).logits
        scale = _scales(call, unguided)
        prediction = replace(prediction, logits=unguided + (scale + 1.0) * (prediction.logits - unguided))
    if kind.whole or prediction.attention is not None:
        prediction = _widened(prediction, call.length, whole=kind.whole)
    return Pass(window=window, plan=plan, prediction=prediction, drifted=drifted)


def positions_to_predict(plan: PassPlan, window: Window) -> Int[Tensor, "b k"] | None:
    """The positions of the window; None where the plan computes exactly these."""
    return None if plan.spans == list(window.blocks) else window.at


def drifted_rows(
    drift: DriftStates,
    plan: PassPlan,
    slots: Int[Tensor, " b"],
    states: Float[Tensor, "b q w"],
    at: Int[Tensor, "b k"],
    masked: Bool[Tensor, "b k"],
) -> Bool[Tensor, " b"]:
    """Which rows have drifted too far since their last refresh; the states of refreshed rows are noted anew."""
    drifted = torch.zeros_like(masked[:, 0])
    for refresh in (True, False):
        rows = [number for number, row in enumerate(plan.rows) if row.refresh is refresh]
        if not rows:
            continue
        index = slice(None) if len(rows) == len(plan.rows) else on_device(rows, plan.device)
        if refresh:
            drift.renew(slots[index], states[index])
        else:
            column = (at - plan.positions[:, :1])[index]
            now = states[index].gather(1, column[:, :, None].expand(-1, -1, states.shape[2]))
            drifted[index] = drift.exceeded(slots[index], now, at[index], masked[index])
    return drifted


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
