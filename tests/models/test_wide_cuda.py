"""The gated product of many rows on a Hopper device, at the sizes of real models, against the product and its gate.

Needs nothing but the package and pytest: `pytest -m gpu tests/models/test_wide_cuda.py`.
"""

import pytest
import torch
import torch.nn.functional as F
from cuda_inputs import never_waiting
from torch import nn

pytest.importorskip("triton")

from unmask.models.kernels import wide
from unmask.models.kernels.ops import KernelOps, gate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
HALF = (torch.bfloat16, torch.float16)
LLADA, DREAM = (4096, 12_288), (3584, 18_944)  # width and feed-forward width


@pytest.fixture(autouse=True)
def hopper():
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("needs a device of capability 9")
    with torch.inference_mode():
        yield


def draw(*shape, seed=0, dtype=torch.bfloat16, spread=1.0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return (spread * torch.randn(*shape, generator=generator, device="cuda")).to(dtype)


def gated(x, weight):
    """Nothing that the kernel leaves out is a number."""
    torch.use_deterministic_algorithms(True)  # fills what is allocated
    try:
        return wide.gated(x, weight)
    finally:
        torch.use_deterministic_algorithms(False)


def error(found, expected):
    return ((found.double() - expected).norm() / expected.norm()).item()


def check(x, weight):
    first, up = F.linear(x.double(), weight.double()).chunk(2, -1)
    expected = F.silu(first) * up
    found, apart = gated(x, weight), gate(F.linear(x, weight))
    assert found.dtype == x.dtype
    assert torch.isfinite(found).all()
    assert error(found, expected) <= 1.02 * error(apart, expected)
    # A norm does not show a few figures.
    eps = torch.finfo(x.dtype).eps
    torch.testing.assert_close(found, apart, rtol=4 * eps, atol=2 * eps * apart.abs().max().item())


def test_a_batch_of_blocks_is_enough_where_its_tiles_fill_the_device():
    w, f = LLADA
    x, weight = draw(8, 32, w), draw(2 * f, w, seed=1, spread=w**-0.5)
    programs = torch.cuda.get_device_properties(0).multi_processor_count
    assert wide.serves(x, weight) == wide.pays(8 * 32, f, programs)
    check(x, weight)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("sizes", [LLADA, DREAM])
@pytest.mark.parametrize(("b", "n"), [(1, 512), (1, 650), (1, 1280), (2, 650)])
def test_it_is_as_exact_as_the_product_and_its_gate(dtype, sizes, b, n):
    w, f = sizes
    x, weight = draw(b, n, w, dtype=dtype), draw(2 * f, w, seed=1, dtype=dtype, spread=w**-0.5)
    assert wide.serves(x, weight)
    check(x, weight)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize(("n", "w", "f"), [(513, 1000, 5000), (700, 72, 4104), (130, 40, 24)])
def test_sizes_that_fill_no_tile(dtype, n, w, f):
    check(draw(1, n, w, dtype=dtype), draw(2 * f, w, seed=1, dtype=dtype, spread=w**-0.5))


@pytest.mark.parametrize("dtype", HALF)
def test_every_silu_is_rounded_to_the_nearest_number_or_the_next(dtype):
    x = torch.arange(-(2**15), 2**15).short().view(dtype).double()
    x = x[(x.abs() < 88.0) & (x.abs() > 1e-30)]
    rows, weight = torch.zeros(1, len(x), 64, dtype=torch.double), torch.zeros(256, 64)
    rows[0, :, 0], rows[0, :, 1], weight[:128, 0], weight[128:, 1] = x, 1.0, 1.0, 1.0
    found = gated(rows.to("cuda", dtype), weight.to("cuda", dtype)).cpu()
    expected = F.silu(x).to(dtype)
    assert torch.equal(found[0], found[0, :, :1].expand(-1, 128))
    assert torch.equal(torch.nextafter(found[0, :, 0], expected), expected)
    assert (found[0, :, 0] != expected).sum() <= {torch.bfloat16: 224, torch.float16: 50}[dtype]


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("sizes", [LLADA, DREAM])
def test_a_row_is_the_same_whatever_the_others(dtype, sizes):
    w, f = sizes
    x, weight = draw(1, 1280, w, dtype=dtype), draw(2 * f, w, seed=1, dtype=dtype, spread=w**-0.5)
    among = gated(x, weight)
    for first in (0, 77, 768):
        few = slice(first, first + 512)
        assert torch.equal(gated(x[:, few], weight), among[:, few])


@pytest.mark.parametrize("sizes", [LLADA, DREAM])
@pytest.mark.parametrize(("b", "n"), [(1, 512), (2, 650)])
def test_a_graph_replays_it_without_waiting(sizes, b, n):
    w, f = sizes
    linear, ops = nn.Linear(w, 2 * f, bias=False, device="cuda", dtype=torch.bfloat16), KernelOps()
    held = draw(b, n, w)
    ops.gated(linear, held)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = ops.gated(linear, held)
    for seed in (1, 2, 3):
        fresh = draw(b, n, w, seed=seed)
        expected = wide.gated(fresh, linear.weight)
        captured.fill_(torch.nan)
        held.copy_(fresh)
        with never_waiting():
            graph.replay()
            again = ops.gated(linear, fresh)
        assert torch.equal(captured, expected)
        assert torch.equal(again, expected)


class Other(nn.Linear):
    """A layer of another class."""


@pytest.mark.parametrize(
    ("kind", "bias", "rows", "by_weight"),
    [
        (nn.Linear, False, 512, True),
        (nn.Linear, True, 512, False),
        (Other, False, 512, False),
        (nn.Linear, False, 255, False),
    ],
)
def test_it_takes_the_weight_of_a_layer_without_a_bias_where_it_serves(kind, bias, rows, by_weight):
    w, f = LLADA
    linear, x = kind(w, 2 * f, bias=bias, device="cuda", dtype=torch.bfloat16), draw(1, rows, w)
    called = []
    linear.register_forward_hook(lambda module, given, result: called.append(module))
    found = KernelOps().gated(linear, x)
    assert bool(called) != by_weight
    if by_weight:
        assert torch.equal(found, wide.gated(x, linear.weight))
    else:
        assert torch.equal(found, gate(linear(x)))
