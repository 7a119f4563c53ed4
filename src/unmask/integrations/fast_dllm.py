"""Our policies inside the block loops of the Fast-dLLM and DAWN scripts: replace one function by one import.

    from unmask.integrations.fast_dllm import get_transfer_index

Their loop calls the function once per forward pass with whole-sequence rows. It has no place for state, attention
maps or logits of other positions, so only policies that look at one pass's logits can be chosen.
"""

from __future__ import annotations

from dataclasses import fields, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask import policies
from unmask.errors import UnmaskError
from unmask.integrations.host import Block, advance, allowed
from unmask.policies import Policy
from unmask.rules.selection import best_scored
from unmask.settings import Settings

_COUNTED = ("fixed", "random")  # policies whose number of commits the caller's schedule decides
_chosen: Policy = policies.get("mean_field")


def configure(policy: str | Policy) -> None:
    """Choose the policy of every later call; a name stands for the policy with its defaults."""
    global _chosen
    policy = policies.get(policy) if isinstance(policy, str) else policy
    allowed(policy, "the loop of Fast-dLLM", gives=frozenset({"uniform"}))
    if getattr(policy, "schedule", None) == "dream" or getattr(policy, "passes", None) is not None:
        raise UnmaskError("a schedule over passes needs to know the pass, which this loop does not tell")
    _chosen = policy


@torch.no_grad()
def get_transfer_index(
    logits: Float[Tensor, "b n v"],
    temperature: float,
    remasking: str,
    mask_index: Bool[Tensor, "b n"],
    x: Int[Tensor, "b n"],
    num_transfer_tokens: Tensor | None,
    threshold: float | None = None,
) -> tuple[Int[Tensor, "b n"], Bool[Tensor, "b n"]]:
    """The token for every position, and which positions to write now; both as those scripts expect them."""
    policy = _policy_for(remasking, threshold)
    x0, transfer = x.clone(), torch.zeros_like(mask_index)
    counts = mask_index.sum(-1)
    if not bool(counts.any()):
        return x0, transfer
    at, masked = _window(mask_index)
    block = Block(
        logits=logits.gather(1, at[..., None].expand(-1, -1, logits.shape[-1])),
        tokens=x.gather(1, at),
        masked=masked,
        mask_id=int(x.reshape(-1)[mask_index.reshape(-1).long().argmax()]),  # stands at every masked position
        start=at[:, 0],
    )
    done = advance(policy, block, settings=Settings(temperature=temperature))
    if done.state is not None:
        raise UnmaskError(f"the policy {policies.name_of(policy)} keeps state, for which this loop has no place")
    commit = done.commit
    if num_transfer_tokens is not None and policies.name_of(policy) in _COUNTED:
        commit = best_scored(done.score, masked, num_transfer_tokens.reshape(-1).expand(len(counts)))
    # Rows with shorter windows repeat a position; their extra columns are not masked and add nothing.
    x0 += torch.zeros_like(x).scatter_add_(1, at, torch.where(masked, done.proposed.to(x.dtype) - block.tokens, 0))
    transfer |= torch.zeros_like(x).scatter_add_(1, at, commit.to(x.dtype)).bool()
    return x0, transfer


def _policy_for(remasking: str, threshold: float | None) -> Policy:
    name = policies.name_of(_chosen)
    if remasking not in ("low_confidence", "random"):
        raise UnmaskError(f"remasking must be 'low_confidence' or 'random', got {remasking!r}")
    if remasking == "random" and name != "random":
        raise UnmaskError(f"remasking='random' needs the policy random, and the policy {name} is configured")
    if threshold is None:
        return _chosen
    if "threshold" not in {field.name for field in fields(_chosen)}:  # ty: ignore[invalid-argument-type]
        raise UnmaskError(f"the policy {name} has no threshold; call with threshold=None")
    return replace(_chosen, threshold=threshold)  # ty: ignore[invalid-argument-type]


def _window(mask_index: Bool[Tensor, "b n"]) -> tuple[Int[Tensor, "b w"], Bool[Tensor, "b w"]]:
    """The positions from each row's first mask to its last, and which of them are masked."""
    position = torch.arange(mask_index.shape[1], device=mask_index.device)
    first = torch.where(mask_index, position, position[-1]).amin(-1, keepdim=True)
    last = torch.where(mask_index, position, 0).amax(-1, keepdim=True)
    column = first + position[: int((last - first).amax()) + 1]
    at = column.clamp(max=position[-1])
    return at, mask_index.gather(1, at) & (column <= last)
