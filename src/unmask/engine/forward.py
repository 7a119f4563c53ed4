"""One model call over the rows of a batch that share it: what the plan computes, guidance, and drift."""

from __future__ import annotations

from dataclasses import replace

from jaxtyping import Float
from torch import Tensor, tensor
from torch.nn.functional import pad

from unmask.device import on_device
from unmask.engine.batch import Call
from unmask.engine.window import Pass
from unmask.models.base import MaskedLM, Prediction


def forward(model: MaskedLM, call: Call) -> Pass:
    """Ask the model for the logits of every row's block, or of every position where a policy needs them."""
    plan, window, tokens = call.plan(), call.window(), call.tokens()
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
    return on_device(tensor(scales, dtype=logits.dtype), logits.device)[:, None, None]
