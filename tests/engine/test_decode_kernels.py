"""Whole generations with the kernels of the rules, in Triton's interpreter."""

import os

import pytest
import torch
from doubles import Scripted, continuing, fill

from unmask import policies
from unmask.settings import Settings

MASK = 7


def decoded(policy, settings, *, by_kernels=False):
    """Every event of a batch whose blocks differ in width, from logits in half precision."""
    rows = 2.0 * torch.randn(24, 8, generator=torch.Generator().manual_seed(1))
    canvases = [continuing([0] * size, 6, mask_id=MASK, block_size=4) for size in (3, 9)]
    os.environ["UNMASK_KERNELS"] = "interpret" if by_kernels else "0"
    try:
        return fill(Scripted(rows.bfloat16()), canvases, policy, settings)
    finally:
        del os.environ["UNMASK_KERNELS"]


@pytest.mark.slow
@pytest.mark.parametrize("policy", [name for name in policies.names() if not policies.needs_of(policies.get(name))])
def test_a_generation_by_kernels_is_the_one_without(interpreted, policy):
    settings = Settings(confidence_eos_eot_inf=policy == "fixed")
    assert interpreted(decoded, policy, settings, by_kernels=True) == decoded(policy, settings)
