"""From a prediction to what a policy sees: logits in the right dtype, proposals, and whatever else it needs."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.device import kernels_on, widest_float
from unmask.engine.plan import Plan
from unmask.engine.rows import Group
from unmask.engine.sampling import propose
from unmask.engine.window import Pass, Window
from unmask.types import StepView

_HALF = (torch.bfloat16, torch.float16)


def observe(group: Group, done: Pass, *, own: bool = False) -> tuple[StepView, Float[Tensor, "b k v"]]:
    """The policy's view of a pass, and its logits before temperature and before `confidence_eos_eot_inf`.

    `own`: the logits of the pass may be written to.
    """
    plan, tokens, window, prediction = group.plan, group.tokens, done.window, done.prediction
    spec, settings, generators = plan.spec, plan.settings, [row.generator for row in group.rows]
    logits, sequence_logits, sequence_masked = _scored(plan, prediction.logits, own=own), None, None
    if "sequence_logits" in plan.needs:
        sequence_logits, sequence_masked = logits, tokens[:, : logits.shape[1]] == spec.mask_id
        logits = window.columns(sequence_logits)
    here = window.columns(tokens).where(window.inside, -1)
    masked = here == spec.mask_id
    proposed, drawn_from = propose(logits, settings, window.widths, generators)
    seen = drawn_from if spec.convention == "dream" else logits
    if settings.confidence_eos_eot_inf:
        seen = _without(seen.clone(), sorted(spec.end_ids))
    shadow = prediction.shadow_logits
    view = StepView(
        logits=seen,
        masked=masked,
        proposed=proposed,
        tokens=here,
        decoded=window.columns(group.holes) & (window.inside ^ masked),  # masked positions lie inside
        start=window.at[:, 0],
        step=window.step,
        remaining=(tokens == spec.mask_id).sum(-1),
        total=window.total,
        uniform=_uniform(window, generators) if "uniform" in plan.needs else None,
        sequence_logits=sequence_logits,
        sequence_masked=sequence_masked,
        length=window.length,
        attention=prediction.attention,
        shadow_logits=None if shadow is None else _scored(plan, shadow, own=False),
        open_at_most=max((row.canvas.open_in_block() for row in group.rows), default=None),
        model_dtype=prediction.logits.dtype,
        exact_dtype=settings.reference_dtype,
    )
    return view, logits


def _scored(plan: Plan, logits: Float[Tensor, "b k v"], *, own: bool) -> Float[Tensor, "b k v"]:
    """Logits in a dtype that rules score exactly, without the tokens that must not be proposed."""
    barred = [plan.spec.mask_id] if plan.settings.suppress_mask_token else []
    barred = [*barred, plan.spec.eos_id] if plan.settings.logits_eos_inf else barred
    return _without(logits.to(_dtype(plan, logits), copy=not own), barred)


def _dtype(plan: Plan, logits: Float[Tensor, "b k v"]) -> torch.dtype:
    if plan.settings.reference_dtype:
        return widest_float(logits.device) if plan.spec.convention == "llada" else logits.dtype
    # Kernels widen half precision as they read it, which is exact. Logits to draw from must not be rounded to it.
    as_it_comes = plan.settings.temperature == 0.0 and logits.dtype in _HALF and kernels_on(logits.device)
    return logits.dtype if as_it_comes else torch.float32


def _without(logits: Float[Tensor, "b k v"], tokens: list[int]) -> Float[Tensor, "b k v"]:
    """The same tensor, changed in place so that these tokens cannot be proposed."""
    for token in tokens:
        logits[..., token] = -torch.inf
    return logits


def _uniform(window: Window, generators: list[torch.Generator]) -> Float[Tensor, "b k"]:
    drawn = torch.zeros(window.at.shape, device=window.at.device)
    for row, (width, generator) in enumerate(zip(window.widths, generators, strict=True)):
        drawn[row, :width] = torch.rand(width, generator=generator, device=generator.device)
    return drawn
