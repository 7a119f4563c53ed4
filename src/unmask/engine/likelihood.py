"""Log-likelihood of a continuation under a masked diffusion model, by Monte Carlo (LLaDA's estimator).

A sample masks l of the continuation's L tokens and adds up the log-probabilities of the masked ones, times L / l. The
numbers l are spread evenly over 1..L from a random start, which leaves the estimate unbiased and its variance small.
"""

from __future__ import annotations

import torch

from unmask.errors import UnmaskError
from unmask.models.base import MaskedLM


@torch.inference_mode()
def loglikelihood(
    model: MaskedLM, prompt: list[int], continuation: list[int], *, samples: int, seed: int, batch_size: int
) -> float:
    """Estimate of ln p(continuation | prompt); the batch size does not change it."""
    if samples < 1 or batch_size < 1:
        raise UnmaskError(f"samples and batch_size must be at least 1, got {samples} and {batch_size}")
    if not continuation:
        return 0.0
    length = len(continuation)
    # On the host, so that a seed means the same masks on every device.
    draws = torch.Generator().manual_seed(seed)
    first = int(torch.randint(length, (1,), generator=draws))
    masked_counts = (first + torch.arange(samples, dtype=torch.float64) * length / samples).floor().long() % length + 1
    ranks = torch.rand(samples, length, generator=draws).argsort(-1).argsort(-1)
    masked = (ranks < masked_counts[:, None]).to(model.device)
    whole = torch.tensor(prompt + continuation, device=model.device)
    at = torch.arange(len(prompt), len(whole), device=model.device)
    answer = whole[at]
    total = 0.0
    for part in masked.split(batch_size):
        tokens = whole.repeat(len(part), 1)
        tokens[:, at] = torch.where(part, model.spec.mask_id, answer)
        logits = model.predict(tokens, at=at.expand(len(part), -1)).logits.float()
        found = logits.log_softmax(-1).gather(-1, answer.expand(len(part), -1)[..., None]).squeeze(-1)
        weight = length / part.sum(-1)
        total += float((torch.where(part, found, 0.0).sum(-1) * weight).sum())
    return total / samples
