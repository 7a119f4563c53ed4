"""From a prediction to what a policy sees: logits in the right dtype, proposals, and whatever else it needs.

A token is proposed for each open position; the policy decides which positions to commit. Both conventions draw tokens
from softmax(logits / temperature), narrowed by top-p and top-k. They differ in what the policy then sees: with LLaDA's
the plain distribution, with Dream's the distribution that the token was drawn from.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.device import kernels_on, widest_float
from unmask.engine.plan import Plan
from unmask.engine.rows import Group
from unmask.engine.window import Pass, Window
from unmask.rules.marginals import best_token
from unmask.settings import Settings
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
    spec, settings = plan.spec, plan.settings
    if settings.reference_dtype:
        dtype = widest_float(logits.device) if spec.convention == "llada" else logits.dtype
    else:
        # Kernels widen half precision as they read it, which is exact. Logits to draw from must not be rounded to it.
        as_it_comes = settings.temperature == 0.0 and logits.dtype in _HALF and kernels_on(logits.device)
        dtype = logits.dtype if as_it_comes else torch.float32
    barred = [spec.mask_id] if settings.suppress_mask_token else []
    return _without(logits.to(dtype, copy=not own), [*barred, spec.eos_id] if settings.logits_eos_inf else barred)


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


def narrow(logits: Float[Tensor, "*b v"], settings: Settings) -> Float[Tensor, "*b v"]:
    """Logits after temperature, then top-p (the token that crosses the line is kept), then top-k; the rest is -inf."""
    logits = logits / settings.temperature
    if settings.top_p < 1.0:
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        mass = ordered.softmax(-1)
        beyond = mass.cumsum(-1) - mass > settings.top_p
        logits = logits.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), -torch.inf)
    if 0 < settings.top_k < logits.shape[-1]:
        order = logits.argsort(dim=-1, descending=True, stable=True)
        beyond = torch.ones_like(logits, dtype=torch.bool).scatter(-1, order[..., : settings.top_k], False)
        logits = logits.masked_fill(beyond, -torch.inf)
    return logits


def propose(
    logits: Float[Tensor, "b k v"],
    settings: Settings,
    widths: Sequence[int],
    generators: Sequence[torch.Generator | None],
) -> tuple[Int[Tensor, "b k"], Float[Tensor, "b k v"]]:
    """A token for every position, and the logits it was drawn from.

    Noise is drawn row by row for the row's own block, so that a row's tokens do not depend on the other rows.
    """
    if settings.temperature == 0.0:
        return best_token(logits), logits
    dtype, device = widest_float(logits.device), logits.device
    drawn_from = narrow(logits.to(dtype), settings)
    noised = drawn_from.clone()
    for row, (width, generator) in enumerate(zip(widths, generators, strict=True)):
        uniform = torch.rand((width, logits.shape[-1]), generator=generator, device=device, dtype=dtype)
        noised[row, :width] -= (-uniform.log()).log()  # Gumbel noise
    return noised.argmax(-1), drawn_from.to(logits.dtype)
