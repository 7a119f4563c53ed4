"""Floors against arithmetic done by hand, and against the speed budget of the published shapes on one large GPU."""

import pytest
import torch
from doubles import call_of

from unmask.bench.measure import Ceilings, floor, lasting_ms, measure_ceilings, operations
from unmask.bench.subject import PUBLISHED
from unmask.models.checkpoint.config import Config
from unmask.models.checkpoint.tokenizer import TextCodec
from unmask.models.families import family_of
from unmask.models.layers import TransformerShape

GPU = Ceilings(bytes_per_s=4.3e12, flops_per_s=790e12)
BF16 = 2

SMALL = TransformerShape(
    width=8,
    hidden=20,
    n_layers=3,
    n_heads=4,
    n_kv_heads=2,
    head_width=2,
    vocab_size=50,
    rope_theta=10000.0,
    norm_eps=1e-5,
    qkv_bias=False,
    tied=False,
)


def published(name: str) -> TransformerShape:
    config = Config(PUBLISHED[name], name)
    return family_of(config).shape(config)


def floor_ms(shape, prompt, *, positions=None, predicted=32, batch=1):
    keys = prompt + 256
    call = call_of(rows=batch, positions=positions or keys, keys=keys, predicted=predicted)
    return 1000 * floor(shape, [call], BF16, GPU).seconds


@pytest.mark.parametrize(("name", "billions"), [("llada-8b", 8.016), ("dream-7b", 7.616)])
def test_the_published_shapes_have_the_published_number_of_parameters(name, billions):
    from tokenizers import Tokenizer
    from tokenizers.models import BPE

    config = Config(PUBLISHED[name], name)
    family = family_of(config)
    with torch.device("meta"):
        model = family.build(config, family.spec(config, TextCodec(Tokenizer(BPE())), name))
    assert sum(parameter.numel() for parameter in model.parameters()) / 1e9 == pytest.approx(billions, abs=5e-4)


def test_every_operation_moves_its_weights_inputs_and_outputs_once():
    found = operations(SMALL, call_of(rows=2, positions=5, keys=7, predicted=3), itemsize=4)
    # 10 tokens; queries 8 wide, keys and values 8 together
    assert found["queries, keys and values"].n_bytes == 3 * 4 * (8 * 16 + 10 * (8 + 16))
    assert found["queries, keys and values"].flops == 3 * 2 * 10 * 8 * 16
    assert found["attention"].n_bytes == 3 * 4 * (2 * 7 * 8 + 10 * (8 + 8))
    assert found["attention"].flops == 3 * 2 * (10 * 7 * 8) * 2
    assert found["attention output"].n_bytes == 3 * 4 * (8 * 8 + 10 * (8 + 8))
    assert found["feed-forward in"].n_bytes == 3 * 4 * (8 * 40 + 10 * (8 + 20))
    assert found["feed-forward in"].flops == 3 * 2 * 10 * 8 * 40
    assert found["feed-forward out"].n_bytes == 3 * 4 * (20 * 8 + 10 * (20 + 8))
    assert found["head"].n_bytes == 4 * (8 * 50 + 6 * (8 + 50))
    assert found["head"].flops == 2 * 6 * 8 * 50


@pytest.mark.parametrize("itemsize", [2, 4])
def test_quantised_layers_read_a_byte_a_weight_and_a_scale_an_output(itemsize):
    call = call_of(rows=2, positions=5, keys=7, predicted=3)
    plain, found = (operations(SMALL, call, itemsize, quantized=quantized) for quantized in (False, True))
    assert found["queries, keys and values"].n_bytes == 3 * (8 * 16 + 4 * 16 + itemsize * 10 * (8 + 16))
    assert found["attention output"].n_bytes == 3 * (8 * 8 + 4 * 8 + itemsize * 10 * (8 + 8))
    assert found["feed-forward in"].n_bytes == 3 * (8 * 40 + 4 * 40 + itemsize * 10 * (8 + 20))
    assert found["feed-forward out"].n_bytes == 3 * (20 * 8 + 4 * 8 + itemsize * 10 * (20 + 8))
    assert [found[name] for name in ("attention", "head")] == [plain[name] for name in ("attention", "head")]
    assert {name: item.flops for name, item in found.items()} == {name: item.flops for name, item in plain.items()}


def test_the_floor_of_a_quantised_block_of_llada_is_little_more_than_half():
    """By hand: 32 layers of 218,103,808 weights in bytes and 45,056 scales, the head's 517,996,544 in bfloat16."""
    call = call_of(rows=1, positions=32, keys=512, predicted=32)
    shape = published("llada-8b")
    moved = [
        sum(cost.n_bytes for cost in operations(shape, call, BF16, quantized=quantized).values())
        for quantized in (False, True)
    ]
    assert moved[0] - moved[1] == 32 * (218_103_808 - 4 * 45_056)
    found = floor(shape, [call], BF16, GPU, quantized=True)
    assert found.seconds * 1000 == pytest.approx(1.96, abs=0.005)
    assert found.bound_by == "memory"


def test_a_floor_is_the_sum_of_the_slower_of_bytes_and_arithmetic():
    call = call_of(rows=1, positions=4, keys=4, predicted=4)
    found = operations(SMALL, call, itemsize=1).values()
    n_bytes, flops = sum(item.n_bytes for item in found), sum(item.flops for item in found)
    slow_memory = floor(SMALL, [call], 1, Ceilings(bytes_per_s=1.0, flops_per_s=1e9))
    slow_products = floor(SMALL, [call, call], 1, Ceilings(bytes_per_s=1e9, flops_per_s=1.0))
    assert (slow_memory.seconds, slow_memory.bound_by) == (pytest.approx(n_bytes), "memory")
    assert (slow_products.seconds, slow_products.bound_by) == (pytest.approx(2 * flops), "arithmetic")


@pytest.mark.parametrize(
    ("name", "prompt", "all_rows", "block_rows", "with_suffix", "block_only"),
    [
        ("llada-8b", 256, 9.9, 9.5, 3.9, 3.58),
        ("llada-8b", 1024, 25.4, 24.0, 4.0, 3.68),
        ("dream-7b", 256, 9.3, 8.9, 3.7, 3.33),
        ("dream-7b", 1024, 23.7, 22.2, 3.7, 3.35),
    ],
)
def test_the_floors_of_the_speed_budget_come_out(name, prompt, all_rows, block_rows, with_suffix, block_only):
    shape = published(name)
    suffixes = [floor_ms(shape, prompt, positions=32 * blocks) for blocks in range(1, 9)]
    assert floor_ms(shape, prompt, predicted=prompt + 256) == pytest.approx(all_rows, abs=0.06)
    assert floor_ms(shape, prompt) == pytest.approx(block_rows, abs=0.06)
    assert sum(suffixes) / 8 == pytest.approx(with_suffix, abs=0.08)
    assert floor_ms(shape, prompt, positions=32) == pytest.approx(block_only, abs=0.015)


def test_batches_cost_little_until_arithmetic_takes_over():
    llada = published("llada-8b")
    one, four, eight = (floor_ms(llada, 1024, positions=32, batch=batch) for batch in (1, 4, 8))
    assert (one, four) == (pytest.approx(3.7, abs=0.06), pytest.approx(4.2, abs=0.06))
    assert 1000 * 8 * 4.7 / eight == pytest.approx(6200, rel=0.02)
    small, large = (call_of(rows=rows, positions=32, keys=1280, predicted=32) for rows in (1, 8))
    assert floor(llada, [small], BF16, GPU).bound_by == "memory"
    assert floor(llada, [large], BF16, GPU).bound_by == "arithmetic"


def test_ceilings_are_measured_in_the_dtype_asked_for():
    for dtype in (torch.float32, torch.bfloat16):
        found = measure_ceilings(torch.device("cpu"), dtype, copy_bytes=2**22, width=64)
        assert 1e6 < found.bytes_per_s < 1e14
        assert 1e6 < found.flops_per_s < 1e16
        assert found.lasting_flops_per_s is None  # a matter of GPUs


def test_calls_without_a_pause_are_timed_when_they_have_gone_on_for_a_while(monkeypatch):
    clock = iter([0.0, 0.2, 0.4, 0.8, 1.2])  # 20 calls each, and slower from the third time on
    monkeypatch.setattr("unmask.bench.measure.now", lambda device: next(clock))
    calls = []
    assert lasting_ms(lambda: calls.append(1), seconds=1.0, device=torch.device("cpu")) == pytest.approx(20.0)
    assert len(calls) == 80
