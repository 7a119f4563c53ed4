"""The network of `tiny`: LLaDA's architecture, with LLaDA's names for its parts, so that weights are saved as they are.

Bidirectional, RMSNorm before attention and before the gated MLP, rotary positions, no biases, no time step. Sequences
come packed end to end, which wastes nothing on padding, or as an ordinary batch of equal lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
Rotation = tuple[Tensor, Tensor]


class Norm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (scaled * self.weight).to(x.dtype)


class Block(nn.Module):
    def __init__(self, width: int, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attn_norm, self.ff_norm = Norm(width), Norm(width)
        for name in ("q_proj", "k_proj", "v_proj", "attn_out"):
            setattr(self, name, nn.Linear(width, width, bias=False))
        self.ff_proj = nn.Linear(width, hidden, bias=False)
        self.up_proj = nn.Linear(width, hidden, bias=False)
        self.ff_out = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, rotation: Rotation, attend: Attention) -> Tensor:
        h = self.attn_norm(x)
        q, k, v = (part(h).unflatten(-1, (self.heads, -1)) for part in (self.q_proj, self.k_proj, self.v_proj))
        x = x + self.attn_out(attend(rotate(q, rotation), rotate(k, rotation), v).flatten(-2))
        h = self.ff_norm(x)
        return x + self.ff_out(F.silu(self.ff_proj(h)) * self.up_proj(h))


class Network(nn.Module):
    """Token ids to logits for every position, or for chosen ones."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, layers = config["d_model"], config["n_layers"]
        self.head_width = width // config["n_heads"]
        self.theta = config["rope_theta"]
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config["vocab_size"], width),
                "blocks": nn.ModuleList(
                    Block(width, config["mlp_hidden_size"], config["n_heads"]) for _ in range(layers)
                ),
                "ln_f": Norm(width),
                "ff_out": nn.Linear(width, config["vocab_size"], bias=False),
            }
        )
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                # What is added to the residual stream starts small, so that depth does not blow it up.
                scale = (2 * layers) ** -0.5 if name.endswith(("attn_out.weight", "ff_out.weight")) else 1.0
                nn.init.normal_(weight, std=0.02 * scale if "blocks" in name else 0.02)

    def forward(self, tokens: Tensor, positions: Tensor, attend: Attention, places: Tensor | None = None) -> Tensor:
        x = self.transformer.wte(tokens)
        rotation = rotations(positions, self.head_width, self.theta)
        for block in self.transformer.blocks:
            x = block(x, rotation, attend)
        x = x if places is None else x[places]
        return self.transformer.ff_out(self.transformer.ln_f(x))

    def predict(self, tokens: Tensor) -> Tensor:
        """Logits `(b, n, v)` of an ordinary batch `(b, n)`."""
        return self(tokens, torch.arange(tokens.shape[1], device=tokens.device), attend_rows)


def rotations(positions: Tensor, width: int, theta: float) -> Rotation:
    """Cosine and sine of every angle, shaped to multiply `(..., heads, width)`."""
    steps = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / width
    angles = positions.float()[..., None] * theta**-steps
    angles = torch.cat([angles, angles], dim=-1)[..., None, :]
    return angles.cos(), angles.sin()


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    cos, sin = rotation
    wide = x.float()
    first, second = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat([-second, first], dim=-1) * sin).to(x.dtype)


def attend_rows(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention inside each row; all `(b, n, heads, width)`."""
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def attend_packed(bounds: Tensor, longest: int) -> Attention:
    """Attention inside each of the sequences that lie end to end; all `(tokens, heads, width)`."""
    if bounds.is_cuda:
        from torch.nn.attention.varlen import varlen_attn

        return lambda q, k, v: varlen_attn(q, k, v, bounds, bounds, longest, longest)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        owner = torch.bucketize(torch.arange(len(q)), bounds[1:].long(), right=True)
        same = owner[:, None] == owner[None, :]
        q, k, v = (part.transpose(0, 1) for part in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=same).transpose(0, 1)

    return attend
