"""The transformer on a CUDA device: the CPU's answers, and no waiting for the device inside a pass."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from unmask.cache.kv import KVCache
from unmask.models import fused, plain
from unmask.models.loading import load_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.usefixtures("no_grad"),
]
TOKENS = torch.arange(40).reshape(2, 20)
LENGTHS = torch.tensor([20, 13])


@pytest.fixture(params=["llada_folder", "dream_folder"])
def folder(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


@pytest.fixture
def never_waiting() -> Iterator[Any]:
    def start() -> None:
        # torch warns that this mode is young.
        with warnings.catch_warnings(action="ignore"):
            torch.cuda.set_sync_debug_mode("error")

    yield start
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("ragged", [False, True])
def test_a_cuda_device_gives_the_logits_and_maps_of_the_cpu(folder: Path, ragged: bool) -> None:
    here, there = (load_model(folder, device=device, dtype="float32").model for device in ("cpu", "cuda"))
    lengths = LENGTHS if ragged else None
    expected = here.predict(TOKENS, lengths=lengths, attention_layers=range(2))
    found = there.predict(TOKENS.cuda(), lengths=None if lengths is None else lengths.cuda(), attention_layers=range(2))
    torch.testing.assert_close(found.logits[0].cpu(), expected.logits[0], atol=2e-3, rtol=0.0)
    torch.testing.assert_close(found.logits[1, :13].cpu(), expected.logits[1, :13], atol=2e-3, rtol=0.0)
    torch.testing.assert_close(found.attention.cpu(), expected.attention, atol=2e-3, rtol=0.0)


def test_the_checkpoints_dtype_is_the_default(folder: Path) -> None:
    assert load_model(folder, device="cuda").model.dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_pass_never_waits_for_the_device(folder: Path, never_waiting: Any, dtype: str) -> None:
    model = load_model(folder, device="cuda", dtype=dtype).model
    tokens, lengths, cache = TOKENS.cuda(), LENGTHS.cuda(), KVCache.new(2, 20, "cuda")
    block = torch.arange(4, 8, device="cuda").expand(2, -1)
    shadow = None if model.spec.shifted else block
    model.predict(tokens)  # the rotary table is made here
    never_waiting()
    model.predict(tokens, lengths=lengths, at=block, attention_layers=range(2), shadow=shadow)
    model.predict(tokens, lengths=lengths, cache=cache)
    model.predict(tokens, lengths=lengths, cache=cache, queries=block, at=block)


@pytest.mark.parametrize("options", [{"at": True}, {"states": True}, {}], ids=["chosen", "states", "all"])
@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("heads", [2, 4], ids=["by kernels", "heads for which there are none"])
def test_nor_does_one_that_computes_no_padding(
    make_llada: Any,
    never_waiting: Any,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    cached: bool,
    heads: int,
) -> None:
    model = load_model(make_llada(n_heads=heads, n_kv_heads=heads), device="cuda", dtype="bfloat16").model
    kind, packed = fused if heads == 2 else plain, []
    ragged = kind.ragged_attention
    monkeypatch.setattr(kind, "ragged_attention", lambda *given: packed.append(given) or ragged(*given))
    tokens, lengths = torch.zeros(3, 64, dtype=torch.long, device="cuda"), torch.tensor([64, 5, 9])
    if "at" in options:
        options = {"at": torch.arange(4, device="cuda").expand(3, -1)}
    if cached:
        options = options | {"cache": KVCache.new(3, 64, "cuda")}
    model.predict(tokens, lengths=lengths, **options)  # compiles, and makes the rotary table
    never_waiting()
    model.predict(tokens, lengths=lengths, **options)
    assert packed


@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("rows", [2, 9], ids=["padded", "packed"])
@pytest.mark.parametrize("heads", [2, 4], ids=["by kernels", "heads for which there are none"])
def test_nor_does_one_over_more_of_one_row_than_of_another(
    make_llada: Any, never_waiting: Any, states: bool, rows: int, heads: int
) -> None:
    model = load_model(make_llada(n_heads=heads, n_kv_heads=heads), device="cuda", dtype="bfloat16").model
    tokens, cache = torch.zeros(rows, 64, dtype=torch.long, device="cuda"), KVCache.new(rows, 64, "cuda")
    model.predict(tokens, cache=cache)
    block = torch.arange(64) if rows == 2 else torch.arange(8, 72).clamp(max=11)
    queries = torch.stack([torch.arange(64), *[block] * (rows - 1)])
    options = {"lengths": torch.full((rows,), 64, device="cuda"), "at": torch.full((rows, 1), 9, device="cuda")}
    model.predict(tokens, cache=cache, queries=queries, states=states, **options)  # compiles
    never_waiting()
    model.predict(tokens, cache=cache, queries=queries, states=states, **options)


@pytest.mark.parametrize("cached", [False, True])
def test_canvases_of_a_length_that_nobody_expects_are_packed(make_llada: Any, cached: bool) -> None:
    model = load_model(make_llada(n_heads=2, n_kv_heads=2), device="cuda", dtype="bfloat16").model
    tokens, at = torch.arange(66, device="cuda").reshape(2, 33), torch.arange(4, 9, device="cuda").expand(2, -1)
    caches = [KVCache.new(2, 64, "cuda") if cached else None for _ in range(2)]
    unexpected = [model.predict(tokens, at=at, cache=caches[0]).logits.clone() for _ in range(4)]
    model.expect(2, 33)
    expected = [model.predict(tokens, at=at, cache=caches[1]).logits.clone() for _ in range(4)]
    kinds = [kind for found in caches for kind, *_ in model.graphs_of(found and found.storage).whole._captured]
    assert {isinstance(kind, tuple) and kind[0] == "packed" for kind in kinds} == {True, False}
    for found in (unexpected, expected):
        assert all(torch.equal(found[0], other) for other in found[1:])
    torch.testing.assert_close(unexpected[0], expected[0], atol=2e-2, rtol=0.0)
