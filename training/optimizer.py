"""The optimizer of `tiny`: Muon for the matrices of the blocks, AdamW for embeddings, head and norms.

Muon follows the momentum after making all its singular values equal (Jordan et al., 2024). Matrices of one shape are
handled together, which makes its cost a small part of a step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised by five Newton-Schulz iterations; decoupled weight decay."""

    def __init__(
        self, params: list[nn.Parameter], lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            shapes: dict[torch.Size, list[nn.Parameter]] = {}
            for param in group["params"]:
                shapes.setdefault(param.shape, []).append(param)
            for params in shapes.values():
                self._step_together(params, group)

    def _step_together(self, params: list[nn.Parameter], group: dict[str, Any]) -> None:
        for param in params:
            if "momentum" not in self.state[param]:
                self.state[param]["momentum"] = torch.zeros_like(param)
        grads = [param.grad for param in params]
        momenta = [self.state[param]["momentum"] for param in params]
        torch._foreach_lerp_(momenta, grads, 1 - group["momentum"])
        looking_ahead = torch.stack(torch._foreach_lerp(grads, momenta, group["momentum"]))
        updates = orthogonal(looking_ahead)
        rows, columns = params[0].shape
        rate = group["lr"] * max(1.0, rows / columns) ** 0.5
        torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(params, list(updates.unbind()), alpha=-rate)


@torch.compile(dynamic=False, disable=not torch.cuda.is_available())
def orthogonal(matrices: Tensor, iterations: int = 5) -> Tensor:
    """The nearest matrices with singular values near one; `(count, rows, columns)`."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrices.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).to(matrices.dtype)


def optimizers(network: nn.Module, rules: dict[str, Any]) -> list[torch.optim.Optimizer]:
    """One or two optimizers; each group remembers its full rate as `base_lr`, for the schedule."""
    named = dict(network.named_parameters())
    matrices = [w for name, w in named.items() if "blocks" in name and w.dim() == 2]
    if rules["name"] == "adamw":
        matrices = []
    chosen = {id(weight) for weight in matrices}
    decayed = [w for w in named.values() if id(w) not in chosen and w.dim() == 2]
    norms = [w for w in named.values() if w.dim() < 2]
    groups = [
        {"params": decayed, "weight_decay": rules["weight_decay"] if not matrices else 0.0},
        {"params": norms, "weight_decay": 0.0},
    ]
    fused = torch.cuda.is_available()
    made: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(groups, lr=rules["lr"], betas=tuple(rules["betas"]), eps=1e-8, fused=fused)
    ]
    if matrices:
        made.append(Muon(matrices, lr=rules["muon_lr"], weight_decay=rules["weight_decay"]))
    for optimizer in made:
        for group in optimizer.param_groups:
            group["base_lr"] = group["lr"]
    return made
