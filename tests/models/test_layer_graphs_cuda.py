"""Layers and models by kernels, replayed as CUDA graphs, against the same without graphs and without kernels."""

import pytest
import torch
from cuda_inputs import DREAM, LLADA, NEEDS_CUDA, WIDTHS, draw, never_waiting, table
from kernel_inputs import norm_of

from unmask.cache.base import PassPlan, RowPlan
from unmask.cache.storage import KVCache
from unmask.models.checkpoint.loading import load_model
from unmask.models.layers import Block, TransformerShape

pytest.importorskip("triton")

from unmask.models.kernels.attention import block_attention
from unmask.models.kernels.ops import KernelOps, gate
from unmask.models.kernels.products import JointOps

pytestmark = NEEDS_CUDA


@pytest.mark.parametrize("sizes", [LLADA, DREAM])
def test_a_graph_replays_them_without_waiting_at_other_places(sizes):
    h, g, d = sizes
    b, q, longest = 3, 32, 1280

    def inputs(seed):
        lengths = torch.randint(q, longest, (b,), generator=torch.Generator().manual_seed(seed)).cuda()
        slots = torch.randperm(5, generator=torch.Generator().manual_seed(seed))[:b].cuda()
        positions = (lengths - q)[:, None] + torch.arange(q, device="cuda")
        states = draw(b, q, h * d, seed=seed), draw(b, q, h * d, seed=seed + 1)
        return [*states, draw(b, q, (h + 2 * g) * d, seed=seed), positions, slots, lengths]

    norm, keys, values = norm_of(draw(h * d)), draw(5, g, longest, d, seed=7), draw(5, g, longest, d, seed=8)

    turns = table(d, longest)

    def run(x, update, qkv, positions, slots, lengths, kept):
        total, normed = KernelOps().add_norm(x, update, norm)
        turned = qkv.clone()
        KernelOps.turn_and_store(turned, turns, positions, h, g, (*kept, slots))
        return total, gate(normed), block_attention(turned, *kept, slots, lengths, h, longest)

    held, kept = inputs(0), (keys.clone(), values.clone())
    run(*held, kept)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(*held, kept)
    for seed in (1, 2, 3):
        fresh, own = inputs(seed), (keys.clone(), values.clone())
        expected = run(*fresh, own)
        for one, other in zip([*held, *kept], [*fresh, keys, values], strict=True):
            one.copy_(other)
        with never_waiting():
            graph.replay()
            run(*fresh, own)
        assert all(torch.equal(one, other) for one, other in zip(captured, expected, strict=True))
        assert all(torch.equal(one, other) for one, other in zip(kept, own, strict=True))


@pytest.mark.parametrize("sizes", [LLADA, DREAM])
def test_a_graph_replays_a_layer_without_waiting_at_other_places(sizes):
    (h, g, d), (w, f) = sizes, WIDTHS[sizes]
    b, q, longest = 2, 16, 1280
    sizes = {"n_heads": h, "n_kv_heads": g, "head_width": d, "n_layers": 1, "vocab_size": 1}
    shape = TransformerShape(width=w, hidden=f, **sizes, rope_theta=1e4, norm_eps=1e-5, qkv_bias=True)
    layer = Block(shape).to("cuda", torch.bfloat16)
    turns, kept = table(d, longest), [draw(5, g, longest, d, seed=seed) for seed in (7, 8)]

    def inputs(seed):
        lengths = torch.randint(q, longest, (b,), generator=torch.Generator().manual_seed(seed)).cuda()
        slots = torch.randperm(5, generator=torch.Generator().manual_seed(seed))[:b].cuda()
        return [draw(b, q, w, seed=seed), (lengths - q)[:, None] + torch.arange(q, device="cuda"), slots, lengths]

    def run(ops, x, positions, slots, lengths):
        x, normed = ops.add_norm(x, None, layer.attention_norm)
        turned = ops.project(layer.attention, normed, turns, positions, (*kept, slots))
        mixed = block_attention(turned, *kept, slots, lengths, h, longest)
        x, normed = ops.add_norm(x, ops.update(layer.attention.out, mixed), layer.mlp_norm)
        return ops.add_norm(x, ops.update(layer.down, ops.gated(layer.gate_up, normed)), layer.mlp_norm)[0]

    held = inputs(0)
    run(JointOps(), *held)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run(JointOps(), *held)
    for seed in (1, 2, 3):
        fresh = inputs(seed)
        separate, joint = run(KernelOps(), *fresh), run(JointOps(), *fresh)
        torch.testing.assert_close(joint, separate, rtol=3e-2, atol=3e-2)
        for one, other in zip(held, fresh, strict=True):
            one.copy_(other)
        with never_waiting():
            graph.replay()
            run(JointOps(), *fresh)
        assert torch.equal(captured, joint)


@pytest.mark.parametrize("rows", [2, 5], ids=["by joint operations", "by separate ones"])
@pytest.mark.parametrize("make", ["make_llada", "make_dream"])
def test_a_model_says_the_same_by_kernels_replayed_or_not_as_without_them(request, monkeypatch, make, rows):
    names = (
        ("d_model", "n_heads", "n_kv_heads")
        if make == "make_llada"
        else ("hidden_size", "num_attention_heads", "num_key_value_heads")
    )
    folder = request.getfixturevalue(make)(**dict(zip(names, (64, 4, 2), strict=True)))
    tokens, block = torch.arange(20 * rows).reshape(rows, 20).cuda(), torch.arange(4, 12, device="cuda")
    plan = PassPlan((RowPlan(span=(4, 12), visible=20),) * rows, tokens.device)

    def logits():
        model, cache = load_model(folder, device="cuda", dtype="bfloat16").model, KVCache.new(rows, 20, "cuda")
        model.predict(tokens, cache=cache)
        # The first is run as it is, the second captured, the third replayed.
        at = block.expand(rows, -1)
        return [model.predict(tokens, cache=cache, plan=plan, at=at).logits for _ in range(3)]

    found = logits()
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    monkeypatch.setenv("UNMASK_KERNELS", "0")
    torch.testing.assert_close(found[0], logits()[0], rtol=5e-2, atol=2e-1)
