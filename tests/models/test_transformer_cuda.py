"""The transformer on a CUDA device: the CPU's answers, and no waiting for the device inside a pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cuda_inputs import never_waiting

from unmask.cache.base import PassPlan, RowPlan
from unmask.cache.storage import KVCache
from unmask.models.checkpoint.loading import load_model
from unmask.models.transformer import Transformer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.usefixtures("no_grad"),
]
TOKENS = torch.arange(40).reshape(2, 20)
CUDA = torch.device("cuda")


def whole(*lengths: int, device: torch.device = CUDA) -> PassPlan:
    """Of rows of these lengths."""
    return PassPlan.whole(list(lengths), device)


def part(*rows: tuple[int, int, int]) -> PassPlan:
    """Of rows (first position, end, keys seen)."""
    return PassPlan(tuple(RowPlan(span=(first, end), visible=seen) for first, end, seen in rows), CUDA)


def loaded(folder: Path, **options: Any) -> Transformer:
    model = load_model(folder, **options).model
    assert isinstance(model, Transformer)
    return model


def shapes_computed(model: Transformer) -> list[tuple[int, ...]]:
    """The rows and columns of the first layer, in every pass from now on that is not replayed."""
    found: list[tuple[int, ...]] = []
    model.blocks[0].down.register_forward_hook(lambda module, given, result: found.append(tuple(result.shape[:-1])))
    return found


@pytest.fixture(params=["llada_folder", "dream_folder"])
def folder(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("lengths", [(20, 20), (20, 13)], ids=["equal", "ragged"])
def test_a_cuda_device_gives_the_logits_and_maps_of_the_cpu(folder: Path, lengths: tuple[int, ...]) -> None:
    here, there = (loaded(folder, device=device, dtype="float32") for device in ("cpu", "cuda"))
    expected = here.predict(TOKENS, plan=whole(*lengths, device=torch.device("cpu")), attention_layers=range(2))
    found = there.predict(TOKENS.cuda(), plan=whole(*lengths), attention_layers=range(2))
    torch.testing.assert_close(found.logits[0].cpu(), expected.logits[0], atol=2e-3, rtol=0.0)
    torch.testing.assert_close(found.logits[1, :13].cpu(), expected.logits[1, :13], atol=2e-3, rtol=0.0)
    torch.testing.assert_close(found.attention.cpu(), expected.attention, atol=2e-3, rtol=0.0)


def test_the_checkpoints_dtype_is_the_default(folder: Path) -> None:
    assert load_model(folder, device="cuda").model.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_pass_never_waits_for_the_device(folder: Path, dtype: str) -> None:
    model = loaded(folder, device="cuda", dtype=dtype)
    tokens, cache = TOKENS.cuda(), KVCache.new(2, 20, "cuda")
    block = torch.arange(4, 8, device="cuda").expand(2, -1)
    shadow = None if model.spec.shifted else block
    model.predict(tokens)  # the rotary table is made here
    with never_waiting():
        model.predict(tokens, plan=whole(20, 13), at=block, attention_layers=range(2), shadow=shadow)
        model.predict(tokens, plan=whole(20, 13), cache=cache)
        model.predict(tokens, plan=part((4, 8, 20), (4, 8, 13)), cache=cache, at=block)


HEADS = pytest.mark.parametrize("heads", [2, 4], ids=["by kernels", "heads for which there are none"])


@pytest.mark.parametrize("options", [{"at": True}, {"states": True}, {}], ids=["chosen", "states", "all"])
@pytest.mark.parametrize("cached", [False, True])
@HEADS
def test_a_pass_that_computes_no_padding_never_waits(
    make_llada: Any, options: dict[str, Any], cached: bool, heads: int
) -> None:
    model = loaded(make_llada(n_heads=heads, n_kv_heads=heads), device="cuda", dtype="bfloat16")
    tokens, computed = torch.zeros(3, 64, dtype=torch.long, device="cuda"), shapes_computed(model)
    if "at" in options:
        options = {"at": torch.arange(4, device="cuda").expand(3, -1)}
    if cached:
        options = options | {"cache": KVCache.new(3, 64, "cuda")}
    model.predict(tokens, plan=whole(64, 5, 9), **options)  # compiles, and makes the rotary table
    with never_waiting():
        model.predict(tokens, plan=whole(64, 5, 9), **options)
    assert computed == [(128 if heads == 2 else 78, 1)] * 2


@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("rows", [2, 9], ids=["padded", "packed"])
@HEADS
def test_a_pass_over_more_of_one_row_than_of_another_never_waits(
    make_llada: Any, states: bool, rows: int, heads: int
) -> None:
    model = loaded(make_llada(n_heads=heads, n_kv_heads=heads), device="cuda", dtype="bfloat16")
    tokens, cache = torch.zeros(rows, 64, dtype=torch.long, device="cuda"), KVCache.new(rows, 64, "cuda")
    model.predict(tokens, cache=cache)
    other = (1, 64, 64) if rows == 2 else (8, 12, 64)
    at, computed = torch.full((rows, 1), 9, device="cuda"), shapes_computed(model)
    plans = [part((0, 64, 64), *[other] * (rows - 1)) for _ in range(2)]
    model.predict(tokens, cache=cache, plan=plans[0], at=at, states=states)  # compiles
    with never_waiting():
        model.predict(tokens, cache=cache, plan=plans[1], at=at, states=states)
    assert computed[0] == ((2, 64) if rows == 2 else (128 if heads == 2 else 96, 1))


@pytest.mark.parametrize("cached", [False, True])
def test_whole_canvases_are_packed_unless_their_shape_was_announced(make_llada: Any, cached: bool) -> None:
    passes = pytest.importorskip("unmask.models.kernels.passes")
    model = loaded(make_llada(n_heads=2, n_kv_heads=2), device="cuda", dtype="bfloat16")
    tokens, at = torch.arange(66, device="cuda").reshape(2, 33), torch.arange(4, 9, device="cuda").expand(2, -1)
    caches = [KVCache.new(2, 64, "cuda") if cached else None for _ in range(2)]
    found = []
    for cache in caches:
        found.append([model.predict(tokens, at=at, cache=cache).logits for _ in range(4)])
        passes.announce(model, 2, 33)
    graphs = passes.graphs_of(model)
    kinds = [kind for cache in caches for kind, *_ in graphs.over(cache).whole.captured]
    assert {"whole" if kind == "whole" else "packed" for kind in kinds} == {"whole", "packed"}
    for same in found:
        assert all(torch.equal(same[0], other) for other in same[1:])
    torch.testing.assert_close(found[0][0], found[1][0], atol=2e-2, rtol=0.0)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ragged_rows_that_are_replayed_see_as_far_as_they_reach(make_llada: Any, dtype: str, cached: bool) -> None:
    passes = pytest.importorskip("unmask.models.kernels.passes")
    folder = make_llada(n_heads=2, n_kv_heads=2)
    here, there = loaded(folder, device="cpu", dtype=dtype), loaded(folder, device="cuda", dtype=dtype)
    passes.announce(there, 2, 40)
    cache = KVCache.new(2, 64, "cuda") if cached else None
    for turn in range(8):
        lengths = (40, 37) if turn % 2 else (38, 40)
        tokens = torch.randint(0, 270, (2, 40), generator=torch.Generator().manual_seed(turn))
        at = torch.tensor([[length - 1] for length in lengths])
        found = there.predict(tokens.cuda(), plan=whole(*lengths), at=at.cuda(), cache=cache).logits
        scratch = [torch.full((size,), 10**9, device="cuda") for size in (2, 40, 64, 80)]  # takes what was given back
        expected = here.predict(tokens, plan=whole(*lengths, device=torch.device("cpu")), at=at).logits
        atol = 2e-3 if dtype == "float32" else 0.25
        torch.testing.assert_close(found.cpu(), expected, atol=atol, rtol=0.0)
        del scratch
    assert [kind for kind, *_ in passes.graphs_of(there).over(cache).whole.captured] == ["whole"]


@pytest.mark.parametrize("make", ["make_llada", "make_dream"])
def test_logits_are_not_overwritten_by_later_passes(request: pytest.FixtureRequest, make: str) -> None:
    model = loaded(request.getfixturevalue(make)(), device="cuda", dtype="bfloat16")
    tokens, cache = TOKENS.cuda(), KVCache.new(2, 20, "cuda")
    model.predict(tokens, cache=cache)
    plan, at = part((4, 8, 20), (6, 10, 20)), torch.tensor([[4, 5, 6, 7], [6, 7, 8, 9]], device="cuda")
    found = []
    for turn in range(5):
        logits = model.predict((tokens + turn) % 50, plan=plan, at=at, cache=cache).logits
        found.append((logits, logits.clone()))
    assert all(torch.equal(later, at_once) for later, at_once in found)
