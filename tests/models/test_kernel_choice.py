"""Which models and layers are served by which kernels."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from unmask.models.checkpoint.loading import load_model
from unmask.models.layers import LayerOps
from unmask.models.transformer import Transformer

pytest.importorskip("triton")

from unmask.models.kernels import ops, passes
from unmask.models.kernels.ops import KernelOps
from unmask.models.kernels.products import JointOps, few_rows_ops


def model_of(folder, *, dtype="bfloat16", **options):
    return load_model(folder, device="cpu", dtype=dtype, **options).model


def test_a_few_rows_that_see_a_cache_have_joint_operations(make_llada):
    folder = make_llada(d_model=64)
    model = model_of(folder)
    for positions, joint in ((0, False), (1, True), (32, True), (33, False)):
        assert (type(few_rows_ops(model, positions)) is JointOps) == joint
    assert type(few_rows_ops(model_of(folder, dtype="float16"), 1)) is JointOps
    for others in ({"dtype": "float32"}, {"quantize": "int8"}):
        assert type(few_rows_ops(model_of(folder, **others), 32)) is KernelOps
    assert type(ops.layer_ops(model)) is KernelOps


def test_layers_that_were_replaced_are_called_as_they_are(make_llada):
    class Other(nn.Linear):
        pass

    model = model_of(make_llada(d_model=64))
    model.blocks[1].down = Other(48, 64, bias=False)
    assert type(few_rows_ops(model, 1)) is KernelOps


def test_queries_and_keys_that_are_normalised_are_not_projected_jointly(make_llada):
    model = model_of(make_llada(d_model=64))
    assert type(few_rows_ops(model, 1)) is JointOps
    model.shape = replace(model.shape, qk_norm=True)
    assert type(few_rows_ops(model, 1)) is KernelOps


@pytest.mark.parametrize("width", [8, 24])
def test_heads_whose_width_no_kernel_takes_are_left_to_plain_operations(make_llada, width):
    model = model_of(make_llada(d_model=4 * width))
    assert type(ops.layer_ops(model)) is LayerOps
    assert not passes.runs(model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_dtypes_that_no_kernel_takes_are_left_to_plain_operations(make_llada, dtype):
    model, taken = model_of(make_llada(d_model=64)).to(dtype), dtype != torch.float64
    assert (type(ops.layer_ops(model)) is KernelOps) == taken
    assert passes.runs(model) == taken


def test_a_model_with_its_own_predict_has_no_passes_by_kernels(make_llada):
    model = model_of(make_llada(d_model=64))

    class Own(Transformer):
        def predict(self, tokens, **options):
            return super().predict(tokens, **options)

    class Named(Transformer):
        """Changes nothing."""

    assert passes.runs(model)
    assert passes.runs(Named(model.shape, model.spec))
    assert not passes.runs(Own(model.shape, model.spec))
    assert not passes.runs(load_model("toy", device="cpu").model)
