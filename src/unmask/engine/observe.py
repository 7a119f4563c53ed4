"""From a prediction to what a policy sees: logits in the right dtype, proposals, and whatever else it needs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.device import kernels_on, widest_float
from unmask.engine.sampling import propose
from unmask.engine.window import Window
from unmask.models.base import ModelSpec, Prediction
from unmask.settings import Settings
from unmask.types import StepView

_HALF = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowState:
    """What stands in a window before a pass, and how much of each row is open."""

    masked: Bool[Tensor, "b k"]  # open
    tokens: Int[Tensor, "b k"]  # -1 in columns outside the row's block
    decoded: Bool[Tensor, "b k"]  # filled earlier in this generation
    remaining: Int[Tensor, " b"]  # masks left in the row


def window_state(
    tokens: Int[Tensor, "b n"],
    holes: Bool[Tensor, "b n"],
    at: Int[Tensor, "b k"],
    inside: Bool[Tensor, "b k"],
    *,
    mask_id: int,
) -> WindowState:
    """The state of the columns `at`, of which those `inside` belong to the row's block."""
    here = tokens.gather(1, at).where(inside, -1)
    masked = here == mask_id
    return WindowState(
        masked=masked,
        tokens=here,
        decoded=holes.gather(1, at) & (inside ^ masked),  # masked positions lie inside
        remaining=(tokens == mask_id).sum(-1),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """The policy's view, and what committing needs beside it."""

    view: StepView
    state: WindowState
    logits: Float[Tensor, "b k v"]  # before temperature, and before `confidence_eos_eot_inf`
    greedy: bool  # the proposed tokens are the likeliest

    def broken(self) -> Bool[Tensor, " b"]:
        """Rows with an open position whose logits are NaN, or all -inf."""
        # The largest logit, or NaN if a logit is NaN. A greedy proposal has it; a drawn token may have another.
        proposed = self.view.proposed[..., None]
        largest = self.logits.gather(-1, proposed).squeeze(-1) if self.greedy else self.logits.amax(-1)
        usable = largest.abs() < torch.inf  # as isfinite says, in fewer launches
        return (self.view.masked & ~usable).any(-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observer:
    """Turns predictions into views, the same way in every pass of a group."""

    spec: ModelSpec
    settings: Settings
    needs: frozenset[str]

    def __call__(
        self,
        prediction: Prediction,
        window: Window,
        tokens: Int[Tensor, "b n"],
        holes: Bool[Tensor, "b n"],
        generators: list[torch.Generator],
        open_at_most: int | None,
        *,
        own: bool = False,
    ) -> Observed:
        """`own`: the logits of the prediction may be written to."""
        logits = self._scored(prediction.logits, own=own)
        sequence_logits = logits if "sequence_logits" in self.needs else None
        if sequence_logits is not None:
            logits = window.columns(sequence_logits)
        state = window_state(tokens, holes, window.at, window.inside, mask_id=self.spec.mask_id)
        proposed, drawn_from = propose(logits, self.settings, window.widths, generators)
        seen = drawn_from if self.spec.convention == "dream" else logits
        if self.settings.confidence_eos_eot_inf:
            seen = _without(seen.clone(), sorted(self.spec.end_ids))
        shadow = prediction.shadow_logits
        length = 0 if sequence_logits is None else sequence_logits.shape[1]
        view = StepView(
            logits=seen,
            masked=state.masked,
            proposed=proposed,
            tokens=state.tokens,
            decoded=state.decoded,
            start=window.at[:, 0],
            step=window.step,
            remaining=state.remaining,
            total=window.total,
            uniform=_uniform(window, generators) if "uniform" in self.needs else None,
            sequence_logits=sequence_logits,
            sequence_masked=tokens[:, :length] == self.spec.mask_id if sequence_logits is not None else None,
            length=window.length,
            attention=prediction.attention,
            shadow_logits=None if shadow is None else self._scored(shadow, own=False),
            open_at_most=open_at_most,
            model_dtype=prediction.logits.dtype,
            exact_dtype=self.settings.reference_dtype,
        )
        return Observed(view=view, state=state, logits=logits, greedy=self.settings.temperature == 0.0)

    def _scored(self, logits: Float[Tensor, "b k v"], *, own: bool) -> Float[Tensor, "b k v"]:
        """Logits in a dtype that rules score exactly, without the tokens that must not be proposed."""
        barred = [self.spec.mask_id] if self.settings.suppress_mask_token else []
        barred = [*barred, self.spec.eos_id] if self.settings.logits_eos_inf else barred
        return _without(logits.to(self._dtype(logits), copy=not own), barred)

    def _dtype(self, logits: Float[Tensor, "b k v"]) -> torch.dtype:
        if self.settings.reference_dtype:
            return widest_float(logits.device) if self.spec.convention == "llada" else logits.dtype
        # Kernels widen half precision as they read it, which is exact. Logits to draw from must not be rounded to it.
        as_it_comes = self.settings.temperature == 0.0 and logits.dtype in _HALF and kernels_on(logits.device)
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
