"""From a prediction to what a policy sees: logits in the right dtype, proposals, and whatever else it needs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.device import kernels_on, widest_float
from unmask.engine.forward import Pass
from unmask.engine.plan import Plan
from unmask.engine.sampling import propose
from unmask.engine.window import Window
from unmask.types import StepView

_HALF = (torch.bfloat16, torch.float16)


def observe(
    plan: Plan,
    done: Pass,
    tokens: Int[Tensor, "b n"],
    holes: Bool[Tensor, "b n"],
    generators: Sequence[torch.Generator] = (),
    most_open: int | None = None,
    *,
    own: bool = False,
) -> tuple[StepView, Float[Tensor, "b k v"]]:
    """The policy's view of a pass, and its logits before temperature and before `confidence_eos_eot_inf`.

    `most_open`: no row has more open positions, if the host knows. `own`: the logits of the pass may be written to.
    """
    window, prediction, spec, settings = done.window, done.prediction, plan.spec, plan.settings
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
        decoded=window.columns(holes) & (window.inside ^ masked),  # masked positions lie inside
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
        open_at_most=most_open,
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


def _uniform(window: Window, generators: Sequence[torch.Generator]) -> Float[Tensor, "b k"]:
    drawn = torch.zeros(window.at.shape, device=window.at.device)
    for row, (width, generator) in enumerate(zip(window.widths, generators, strict=True)):
        drawn[row, :width] = torch.rand(width, generator=generator, device=generator.device)
    return drawn
