"""What the rule may not do: wait for the device, or hold a tensor of m x m x v."""

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from unmask.rules import mean_field_commit, overlap, pairwise_jsd


class LargestTensor(TorchDispatchMode):
    """Remembers the size of the largest memory that any operation was given or returned, apart from the input."""

    def __init__(self, logits):
        super().__init__()
        self.given = logits.untyped_storage().data_ptr()
        self.nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        memory = [leaf.untyped_storage() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.nbytes = max([self.nbytes, *(storage.nbytes() for storage in memory if storage.data_ptr() != self.given)])
        return result


OPTIONS = [
    {},
    {"vocabulary": 4},
    {"interaction": "uniform"},
    {"interaction": "none", "fallback": "confidence"},
    {"normalize": "none", "diagnostics": True},
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_validation_nothing_depends_on_values_that_only_the_device_knows(options, dtype):
    with FakeTensorMode():  # tensors without contents: asking for one is an error
        logits, masked = torch.empty(2, 6, 40, dtype=dtype), torch.empty(2, 6, dtype=torch.bool)
        assert mean_field_commit(logits, masked, validate=False, **options).overlap.shape == (2, 6, 6)
        with pytest.raises(DataDependentOutputException):
            mean_field_commit(logits, masked, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_tensor_is_larger_than_the_logits_in_float32(dtype):
    logits = torch.randn(32, 126_464, generator=torch.Generator().manual_seed(0)).to(dtype)
    with LargestTensor(logits) as seen:
        pairwise_jsd(logits)
    assert seen.nbytes <= logits.numel() * 4


def test_a_batch_needs_no_larger_tensors_than_a_row():
    logits = torch.randn(3, 8, 100_000, generator=torch.Generator().manual_seed(1))
    sizes = []
    for rows in (logits[:1], logits):
        with LargestTensor(logits) as seen:
            pairwise_jsd(rows)
        sizes.append(seen.nbytes)
    assert sizes[0] == sizes[1]


def test_many_long_rows_keep_to_the_scratch_memory(monkeypatch):
    monkeypatch.setattr(overlap, "_SCRATCH_CPU", 2**18)
    logits = torch.randn(40, 16_384, generator=torch.Generator().manual_seed(2))
    with LargestTensor(logits) as seen:
        pairwise_jsd(logits)
    assert seen.nbytes <= 3 * 2**18 * 4
