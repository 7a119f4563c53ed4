"""Whole passes by kernels in Triton's interpreter (see kernel_inputs.py), against the plain passes of the same model.

A function that is called again stands for a CUDA graph, so what is copied for a replay is tested too.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
import torch
from doubles import tiny_config
from recalled import Recalled
from torch import Tensor

from unmask.cache.base import PassPlan, RowPlan
from unmask.cache.storage import KVCache, Storage
from unmask.models.base import PassInputs
from unmask.models.random_weights import random_model
from unmask.models.transformer import Transformer

pytest.importorskip("triton")

from unmask.models.kernels.passes import ModelGraphs, announce, forget, graphs_of, predict, prepare

pytestmark = pytest.mark.slow  # whole passes in an interpreter

CPU = torch.device("cpu")
SLOTS = [3, 0, 2, 1]
CLOSE = {torch.float32: {"rtol": 1e-4, "atol": 1e-4}, torch.float16: {"rtol": 0.0, "atol": 0.05}}
# Heads as wide as a kernel takes at least, and little else.
SIZES = {
    "llada": {"d_model": 32, "n_heads": 2, "n_kv_heads": 2, "mlp_hidden_size": 16},
    "dream": {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16},
}
WIDTH = 44  # three such rows are more positions than the 128 that packed ones are rounded up to


@dataclass(frozen=True, kw_only=True)
class Call:
    """What one pass is asked for: rows (first position, end, keys seen)."""

    rows: list[tuple[int, int, int]]
    at: list[list[int]] | None = None
    cached: bool = True
    states: bool = False
    block_size: int | None = None
    seed: int = 0

    @property
    def plan(self) -> PassPlan:
        return PassPlan(tuple(RowPlan(span=(first, end), visible=seen) for first, end, seen in self.rows), CPU)

    @property
    def tokens(self) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randint(0, 58, (len(self.rows), WIDTH), generator=generator)


@dataclass(frozen=True, kw_only=True)
class Told:
    """What the passes gave, and how many of them were replayed."""

    logits: list[Tensor] = field(default_factory=list)
    states: list[Tensor | None] = field(default_factory=list)
    stored: list[Tensor] = field(default_factory=list)  # keys and values of all layers after each pass
    kinds: list[str] = field(default_factory=list)  # the passes that were recorded


def model_of(
    family: str, dtype: torch.dtype, *, layers: int = 1, qk_norm: bool = False, causal: bool = False
) -> Transformer:
    sizes = SIZES[family] | {"n_layers" if family == "llada" else "num_hidden_layers": layers}
    model = random_model(tiny_config(family, **sizes), std=0.2, dtype=dtype)
    assert isinstance(model, Transformer)
    if qk_norm:
        torch.manual_seed(0)
        model = Transformer(replace(model.shape, qk_norm=True), model.spec).eval().requires_grad_(False).to(dtype)
        for name, parameter in model.named_parameters():
            parameter.normal_(mean=1.0 if "norm" in name else 0.0, std=0.2)
    model.spec = replace(model.spec, causal=causal)
    return model


@torch.inference_mode()
def run(calls: list[Call], family: str, dtype: torch.dtype, announced: list[tuple[int, int]], options: dict) -> list:
    """What plain passes and passes by kernels give, one call after the other, each with a cache of its own.

    Plain passes have filled both caches.
    """
    model = model_of(family, dtype, **options)
    captured = model.fast["passes"] = ModelGraphs(Recalled)
    captured.announced.update(announced)
    told = []
    for run_pass in (model.predict_plainly, partial(predict, model)):
        storage, found = Storage(rows=4, length=64), Told()
        model.predict(
            Call(rows=FULL, seed=99).tokens, cache=KVCache(storage, SLOTS[:3]), block_size=calls[0].block_size
        )
        for call in calls:
            cache = KVCache(storage, SLOTS[: len(call.rows)]) if call.cached else None
            at = None if call.at is None else torch.tensor(call.at)
            asked = {"plan": call.plan, "at": at, "cache": cache, "block_size": call.block_size, "states": call.states}
            prediction = run_pass(PassInputs(tokens=call.tokens, **asked))
            assert not prediction.fleeting
            assert (prediction.states is not None) == call.states
            found.logits.append(prediction.logits)
            found.states.append(prediction.states.clone() if call.states else None)
            found.stored.append(torch.stack([torch.stack(layer) for layer in storage.layers]))
        told.append(found)
    for graphs in (captured.uncached, *captured.cached.values()):
        told[1].kinds.extend("packed" if isinstance(kind, tuple) else "whole" for kind, *_ in graphs.whole.captured)
        told[1].kinds.extend("part" for _ in graphs.part.captured)
    return told


@pytest.fixture
def check(interpreted):
    """Compare what both kinds of passes give; returns which passes were recorded."""

    def compare(*calls, family="llada", dtype=torch.float32, announced=(), **options):
        plain, fast = interpreted(run, list(calls), family, dtype, list(announced), options)
        for number, call in enumerate(calls):
            for row, (first, end, seen) in enumerate(call.rows):
                width = end - first if call.at is None else len(call.at[row])
                one, other = (found.logits[number][row, :width] for found in (fast, plain))
                assert one.dtype == dtype
                torch.testing.assert_close(one, other, **CLOSE[dtype])
                if call.states:
                    one, other = (found.states[number][row, : end - first] for found in (fast, plain))
                    torch.testing.assert_close(one, other, **CLOSE[dtype])
                if call.cached:
                    one, other = (found.stored[number][:, :, SLOTS[row], :, :seen] for found in (fast, plain))
                    torch.testing.assert_close(one, other, **CLOSE[dtype])
        return fast.kinds

    return compare


FULL = [(0, 44, 44)] * 3
ALIKE = [(0, 44, 44), (0, 43, 43), (0, 42, 42)]  # not worth packing
RAGGED = [(0, 44, 44), (0, 20, 20), (0, 1, 1)]
BLOCK = [(8, 12, 44), (20, 24, 44), (40, 44, 44)]
PARTS = [(8, 14, 44), (20, 24, 40), (0, 1, 20)]
MIXED = [(0, 44, 44), (20, 24, 40), (0, 9, 20)]
AT = {
    "block": [[8, 9, 10, 11], [20, 21, 22, 23], [40, 41, 42, 43]],
    "parts": [[10, 13], [21, 23], [0, 0]],
    "mixed": [[3, 40], [21, 23], [4, 8]],
    "ragged": [[3, 40], [19, 7], [0, 0]],
    "alike": [[3, 43], [19, 42], [0, 41]],
}


@pytest.mark.parametrize(
    ("rows", "at", "cached", "family"),
    [
        (FULL, None, True, "dream"),
        (FULL, "alike", False, "llada"),
        (ALIKE, "alike", True, "llada"),
        (ALIKE, None, False, "dream"),
        (RAGGED, None, True, "llada"),
        (RAGGED, "ragged", True, "dream"),
        (RAGGED, "ragged", False, "llada"),
    ],
)
def test_passes_over_whole_rows(check, rows, at, cached, family):
    call = Call(rows=rows, at=at and AT[at], cached=cached)
    check(call, replace(call, states=True, seed=1), family=family)


@pytest.mark.parametrize(
    ("rows", "at", "dtype", "family"),
    [
        (BLOCK, None, torch.float32, "dream"),
        (BLOCK, "block", torch.float32, "llada"),
        (PARTS, "parts", torch.float32, "dream"),
        (MIXED, "mixed", torch.float32, "llada"),
        (MIXED, "mixed", torch.float32, "dream"),
        (BLOCK, None, torch.float16, "llada"),
        (BLOCK, "block", torch.float16, "dream"),
        (PARTS, "parts", torch.float16, "llada"),
    ],
)
def test_passes_over_parts_of_rows(check, rows, at, dtype, family):
    call = Call(rows=rows, at=at and AT[at])
    check(call, replace(call, states=True, seed=1), family=family, dtype=dtype, layers=1 if rows is MIXED else 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_queries_and_keys_that_are_normalised_head_by_head(check, dtype):
    check(Call(rows=BLOCK, at=AT["block"]), Call(rows=MIXED, at=AT["mixed"], seed=1), dtype=dtype, qk_norm=True)


def test_a_pass_that_comes_again_is_recorded_and_replayed_on_other_tokens(check):
    whole = [Call(rows=FULL, at=AT["alike"], seed=seed) for seed in range(3)]
    blocks = [Call(rows=BLOCK, at=AT["block"], seed=seed) for seed in range(4)]
    assert check(*whole, *blocks) == ["whole", "part"]


def test_a_replay_is_told_which_keys_are_visible_and_where_rows_lie(check):
    first = [Call(rows=BLOCK, at=AT["block"], seed=seed) for seed in range(2)]
    moved = [(9, 13, 43), (20, 24, 38), (38, 42, 44)]
    at = [[9, 10, 11, 12], [20, 21, 22, 23], [38, 39, 40, 41]]
    assert check(*first, *[Call(rows=moved, at=at, seed=seed) for seed in (2, 3)]) == ["part"]


@pytest.mark.parametrize("cached", [False, True])
def test_ragged_rows_that_are_recorded_see_as_far_as_they_reach(check, cached):
    lengths = [(44, 42, 43), (44, 42, 43), (44, 42, 43), (44, 44, 42), (43, 44, 42)]
    calls = [
        Call(rows=[(0, n, n) for n in those], at=[[n - 1] for n in those], cached=cached, seed=seed)
        for seed, those in enumerate(lengths)
    ]
    assert check(*calls) == ["whole"]


@pytest.mark.parametrize("announced", [False, True])
def test_in_half_precision_whole_canvases_are_packed_unless_their_shape_was_announced(check, announced):
    calls = [Call(rows=FULL, at=AT["alike"], seed=seed) for seed in range(3)]
    kinds = check(*calls, dtype=torch.float16, announced=[(3, 44)] if announced else [(3, 43), (2, 44)])
    assert kinds == (["whole"] if announced else ["packed"])


def test_packed_passes_over_different_rows_share_a_recording(check):
    rows = [RAGGED, RAGGED, [(0, 11, 11), (0, 44, 44), (0, 33, 33)]]
    calls = [Call(rows=those, at=[[0], [3], [0]], seed=seed) for seed, those in enumerate(rows)]
    assert check(*calls, Call(rows=[(0, 9, 9), (0, 30, 30), (0, 44, 44)], at=[[8], [29], [43]])) == ["packed"]


def test_a_row_that_leaves_a_batch_needs_no_other_recording(check):
    rows, at = [*BLOCK, (30, 34, 44)], [*AT["block"], [30, 31, 32, 33]]
    calls = [Call(rows=rows, at=at, seed=seed) for seed in range(2)]
    assert check(*calls, Call(rows=rows[:3], at=at[:3], seed=2), Call(rows=rows[1:], at=at[1:], seed=3)) == ["part"]


@pytest.mark.parametrize(
    "rows",
    [
        [(0, 8, 8)] * 3,
        [(8, 12, 12), (20, 24, 24), (40, 44, 44)],  # one block each
        [(4, 12, 12), (16, 24, 24), (36, 44, 44)],  # two: the positions of a row see different keys
        [(8, 12, 44), (20, 24, 44), (40, 44, 44)],  # more is visible than a block may see
    ],
)
def test_block_causal_passes(check, rows):
    call = Call(rows=rows, block_size=4)
    check(call, replace(call, seed=1), replace(call, seed=2), causal=True)


@torch.inference_mode()
def prepared(family: str) -> tuple[list[bool], list[Tensor], list[Tensor]]:
    """Of a pass prepared four times: if its logits are fleeting, these when they came, and what plain passes give."""
    model = model_of(family, torch.float32)
    cache, plain = (KVCache.new(3, 64) for _ in range(2))
    model.fast["passes"] = ModelGraphs(Recalled)
    for held in (cache, plain):
        model.predict(Call(rows=FULL).tokens, cache=held)
    fleeting, found, expected = [], [], []
    for seed in range(4):
        call = Call(rows=BLOCK, at=AT["block"], seed=seed)
        at = torch.tensor(call.at)
        prediction = prepare(model, PassInputs(tokens=call.tokens, plan=call.plan, at=at, cache=cache))()
        fleeting.append(prediction.fleeting)
        found.append((prediction.logits, prediction.logits.clone()))
        expected.append(model.predict(call.tokens, plan=call.plan, at=at, cache=plain).logits)
    assert [torch.equal(later, at_once) for later, at_once in found] == [True, True, False, True]
    return fleeting, [at_once for _, at_once in found], expected


def test_a_replayed_pass_leaves_its_logits_where_the_next_puts_its_own_and_says_so(interpreted):
    fleeting, found, expected = interpreted(prepared, "llada")
    assert fleeting == [False, False, True, True]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, **CLOSE[torch.float32])


def test_announced_shapes_outlive_the_graphs_that_are_let_go_of():
    model = model_of("llada", torch.float32)
    forget(model)
    announce(model, 3, 60)
    captured, cache = graphs_of(model), KVCache.new(1, 8)
    graphs = captured.over(cache), captured.over(None)
    assert captured.over(cache) is graphs[0]
    forget(model)
    assert graphs_of(model) is captured
    assert captured.announced == {(3, 60)}
    assert captured.over(cache) is not graphs[0]
    assert captured.over(None) is not graphs[1]


def test_graphs_go_with_the_storage_that_they_work_on():
    captured, cache = ModelGraphs(Recalled), KVCache.new(1, 8)
    captured.over(cache)
    assert len(captured.cached) == 1
    del cache
    assert len(captured.cached) == 0


def test_weights_that_move_and_copies_of_a_model_have_no_graphs():
    model = model_of("llada", torch.float32)
    captured = graphs_of(model)
    assert graphs_of(deepcopy(model)) is not captured
    assert graphs_of(model) is captured
    model.half()
    assert graphs_of(model) is not captured
