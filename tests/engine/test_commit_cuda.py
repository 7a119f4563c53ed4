"""The kernels around a decision on a CUDA device, against plain torch on the same device."""

import pytest
import torch
from decision_cases import FLAGS, case, check_case, check_state, window

from unmask.device import kernels_on
from unmask.engine.commit import apply

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SHAPES = [(1, 9, 1), (8, 1500, 32), (5, 700, 96), (3, 2500, 2300)]


@pytest.fixture(autouse=True)
def kernels():
    pytest.importorskip("triton")


def drawn(seed):
    return torch.Generator("cuda").manual_seed(seed)


@pytest.mark.parametrize(("b", "n", "k"), SHAPES)
def test_the_state_is_that_of_plain_torch(b, n, k):
    assert kernels_on(torch.device("cuda"))
    for seed in range(5):
        check_state(*window(drawn(seed), b, n, k))


@pytest.mark.parametrize(
    "given", [(), *((flag,) for flag in FLAGS), FLAGS], ids=lambda given: "+".join(given) or "none"
)
def test_every_flag_is_applied_as_plain_torch_does(given):
    for seed in range(5):
        check_case(*case(drawn(seed), 4, 300, 32, given=given))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize(("b", "n", "k"), SHAPES)
def test_every_shape_and_dtype_is_applied_as_plain_torch_does(b, n, k, dtype):
    for seed in range(6):
        given = () if seed % 2 else FLAGS
        check_case(*case(drawn(seed), b, n, k, given=given, dtype=dtype, score_dtype=dtype))


def test_a_graph_replays_it_on_another_canvas():
    made, tokens = case(drawn(0), 3, 200, 32)
    apply(tokens, made)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = apply(tokens, made)
    made.decision.commit.copy_(~made.decision.commit)
    made.decision.score.neg_()
    graph.replay()
    assert all(map(torch.equal, captured, apply.__wrapped__(tokens, made)))
