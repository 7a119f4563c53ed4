"""What a policy gets to see of a forward pass: logits in the right dtype, proposals, and whatever else it needs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.engine.sampling import noise_dtype, propose
from unmask.engine.window import Window
from unmask.models.base import ModelSpec, Prediction
from unmask.settings import Settings
from unmask.types import StepView


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The policy's view, and what the loop itself must know."""

    view: StepView
    tokens: Int[Tensor, "b k"]  # what stands in the window
    decoded: Bool[Tensor, "b k"]  # positions of the window that were filled earlier
    logits: Float[Tensor, "b k v"]  # before temperature, with end-of-text wherever the settings allow it
    broken: Bool[Tensor, " b"]  # rows with an open position whose logits are NaN, or all -inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Observer:
    """Turns predictions into views, the same way in every pass of a generation."""

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
    ) -> Observation:
        logits = self._scored(prediction.logits)
        sequence_logits = logits if "sequence_logits" in self.needs else None
        if sequence_logits is not None:
            logits = window.columns(sequence_logits)
        is_mask = tokens == self.spec.mask_id
        masked = window.columns(is_mask) & window.inside
        proposed, drawn_from = propose(logits, self.settings, window.widths, generators)
        seen = drawn_from if self.spec.convention == "dream" else logits
        if self.settings.confidence_eos_eot_inf:
            seen = _without(seen, sorted(self.spec.end_ids), seen.dtype)
        shadow = prediction.shadow_logits
        standing = window.columns(tokens).masked_fill(~window.inside, -1)
        decoded = window.columns(holes & ~is_mask) & window.inside
        view = StepView(
            logits=seen,
            masked=masked,
            proposed=proposed,
            tokens=standing,
            decoded=decoded,
            start=window.at[:, 0],
            step=window.step,
            remaining=is_mask.sum(-1),
            total=holes.sum(-1),
            uniform=_uniform(window, generators) if "uniform" in self.needs else None,
            sequence_logits=sequence_logits,
            sequence_masked=is_mask if sequence_logits is not None else None,
            length=window.length,
            attention=prediction.attention,
            shadow_logits=None if shadow is None else self._scored(shadow),
            open_at_most=open_at_most,
            model_dtype=prediction.logits.dtype,
            exact_dtype=self.settings.reference_dtype,
        )
        # The largest logit, NaN if there is one: that of the proposed token, unless it was drawn.
        greedy = self.settings.temperature == 0.0
        largest = logits.gather(-1, proposed[..., None]).squeeze(-1) if greedy else logits.amax(-1)
        broken = (masked & ~largest.isfinite()).any(-1)
        return Observation(view=view, tokens=standing, decoded=decoded, logits=logits, broken=broken)

    def _scored(self, logits: Float[Tensor, "b k v"]) -> Float[Tensor, "b k v"]:
        """Logits in the dtype that rules compute in, without the tokens that must not be proposed."""
        dtype = torch.float32
        if self.settings.reference_dtype:
            dtype = noise_dtype(logits.device) if self.spec.convention == "llada" else logits.dtype
        barred = [self.spec.mask_id] if self.settings.suppress_mask_token else []
        return _without(logits, [*barred, self.spec.eos_id] if self.settings.logits_eos_inf else barred, dtype)


def _without(logits: Float[Tensor, "b k v"], tokens: list[int], dtype: torch.dtype) -> Float[Tensor, "b k v"]:
    """A copy in which these tokens cannot be proposed."""
    logits = logits.to(dtype, copy=True)
    for token in tokens:
        logits[..., token] = -torch.inf
    return logits


def _uniform(window: Window, generators: list[torch.Generator]) -> Float[Tensor, "b k"]:
    drawn = torch.zeros(window.at.shape, device=window.at.device)
    for row, (width, generator) in enumerate(zip(window.widths, generators, strict=True)):
        drawn[row, :width] = torch.rand(width, generator=generator, device=generator.device)
    return drawn
