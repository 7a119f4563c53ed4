"""Inputs for kernels in Triton's interpreter.

Triton decides when it is imported whether it interprets, and a run of tests may have imported it already. So the
kernels run in a process of their own: see the fixture `interpreted`. The interpreter truncates bfloat16 where devices
round, and multiplies its bits in products, so this dtype is left to the tests on a device. float16 shows where results
are rounded.
"""

import torch
from torch import nn

from unmask.models import layers

DTYPES = (torch.float32, torch.float16)
EXACT = {"rtol": 2e-6, "atol": 2e-6}


def draw(*shape, seed=0, dtype=torch.float32, spread=1.0):
    return (spread * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def rotary_table(d, length):
    return layers.rotary_table(d, 10_000.0, length, torch.device("cpu"))


def norm_of(weight, eps=1e-5):
    norm = layers.RMSNorm(len(weight), eps)
    norm.weight = nn.Parameter(weight, requires_grad=False)
    return norm


def linear_of(weight, bias=None):
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    linear.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
    return linear


def attention_of(weight, bias, h, g, d):
    """Attention that projects with this weight; nothing else of it is used."""
    sizes = {"width": 1, "hidden": 1, "n_layers": 1, "vocab_size": 1, "rope_theta": 1.0, "norm_eps": 1.0}
    attention = layers.Attention(layers.TransformerShape(n_heads=h, n_kv_heads=g, head_width=d, **sizes))
    attention.qkv = linear_of(weight, bias)
    return attention
