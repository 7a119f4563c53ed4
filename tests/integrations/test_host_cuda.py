"""The core of the adapters on a CUDA device, where SGLang runs it."""

import pytest
import torch
from cuda_inputs import never_waiting

from unmask import policies
from unmask.integrations.host import Block, advance

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
MASK = 4000


def block(device, dtype):
    generator = torch.Generator().manual_seed(0)
    logits = (torch.randn(6, 32, 4100, generator=generator) * 4).to(dtype)
    masked = torch.rand(6, 32, generator=generator) < 0.7
    masked[0] = False
    tokens = torch.randint(0, MASK, (6, 32), generator=generator).masked_fill(masked, MASK)
    return Block(logits=logits.to(device), tokens=tokens.to(device), masked=masked.to(device), mask_id=MASK)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["mean_field", "eb", "threshold", "cumulative"])
def test_the_device_decides_as_a_cpu_does_and_is_asked_nothing(name, dtype):
    policy, there = policies.get(name), block("cuda", dtype)
    advance(policy, there)  # compiles kernels
    with never_waiting():
        found = advance(policy, there)
    assert torch.equal(found.tokens.cpu(), advance(policy, block("cpu", dtype)).tokens)
