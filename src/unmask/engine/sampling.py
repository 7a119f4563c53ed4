"""Which token to propose for each open position. The policy decides which positions to commit.

Both conventions draw from softmax(logits / temperature), narrowed by top-p and top-k. They differ in what the policy
then sees: with LLaDA's the plain distribution, with Dream's the distribution that the token was drawn from.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from unmask.device import widest_float
from unmask.rules.marginals import best_token
from unmask.settings import Settings


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
    drawn_from = narrow(logits.to(widest_float(logits.device)), settings)
    noised = drawn_from.clone()
    for row, (width, generator) in enumerate(zip(widths, generators, strict=True)):
        noised[row, :width] += gumbel_noise((width, logits.shape[-1]), generator, logits.device)
    return noised.argmax(-1), drawn_from.to(logits.dtype)


def gumbel_noise(shape: tuple[int, ...], generator: torch.Generator | None, device: torch.device) -> Tensor:
    """Standard Gumbel noise; without a generator, from torch's global one."""
    uniform = torch.rand(shape, generator=generator, device=device, dtype=widest_float(device))
    return -(-uniform.log()).log()
