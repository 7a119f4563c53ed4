"""Attention by kernels, which read from tensors where rows begin and how many keys they see.

Results are rounded where plain attention rounds. A result depends on its own row of the batch only. The host chooses
how keys are cut into splits; splits are merged in their order.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

from unmask.models.kernels import launch
from unmask.models.layers import Store

_SPLITS = tl.constexpr(8)  # that are merged at a time


@triton.jit
def _found(
    query, keys, values, first, last, length, scale,
    D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, STRIDE: tl.constexpr,
):  # fmt: skip
    """What ROWS queries find among the keys from `first` to before `last`. Keys from `length` on are not seen.

    Gives the largest score, the sum of the weights and the values mixed by them, all in float32. Positions are STRIDE
    numbers apart.
    """
    features = tl.arange(0, D)
    best = tl.full([ROWS], -float("inf"), dtype=tl.float32)
    total = tl.zeros([ROWS], dtype=tl.float32)
    mixture = tl.zeros([ROWS, D], dtype=tl.float32)
    for begin in range(first, last, KEYS):
        position = begin + tl.arange(0, KEYS)
        at = position[:, None] * STRIDE + features[None, :]
        seen = position < length
        key = tl.load(keys + at, mask=seen[:, None], other=0.0)
        value = tl.load(values + at, mask=seen[:, None], other=0.0)
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        score = tl.where(seen[None, :], score, -float("inf"))
        better = tl.maximum(best, tl.max(score, axis=1))
        weight = tl.exp2(score - better[:, None])
        fade = tl.exp2(best - better)
        total = total * fade + tl.sum(weight, axis=1)
        mixture = tl.dot(weight.to(value.dtype), value, mixture * fade[:, None], input_precision="ieee")
        best = better
    return best, total, mixture


@triton.jit(do_not_specialize=["q", "capacity", "split_size"])
def attend_split(
    qkv, keys, values, slots, lengths, out, mixtures, figures, q, capacity, split_size, scale,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """What ROWS queries of the heads that share a key head find in one split of its keys, KEYS keys at a time.

    Grid (splits * G * tiles of queries, b), neighbours with the same keys. The result goes to `out` if a row has one
    split, else, for `merge_splits`, to `mixtures` (splits, b * q * H, D) and `figures` (splits, b * q * H, 2), the
    largest score and the sum of the weights, float32. A row without keys gets zeros.
    """
    shared = H // G
    tiles = tl.cdiv(shared * q, ROWS)
    which, row = tl.program_id(0), tl.program_id(1)
    tile, key_head, split = which % tiles, which // tiles % G, which // (tiles * G)
    # Queries are loaded first, because the rest depends on them.
    asking = tile * ROWS + tl.arange(0, ROWS)
    there = (asking < shared * q)[:, None]
    head = key_head * shared + asking // q
    token = row.to(tl.int64) * q + asking % q
    features = tl.arange(0, D)
    query = tl.load(qkv + (token * (H + 2 * G) + head)[:, None] * D + features[None, :], mask=there, other=0.0)
    first = (tl.load(slots + row) * G + key_head) * capacity * D
    length = tl.minimum(tl.load(lengths + row).to(tl.int32), tl.num_programs(0) // (tiles * G) * split_size)
    if (split * split_size < length) | (split == 0):
        keys += first
        values += first
        last = tl.minimum((split + 1) * split_size, length)
        best, total, mixture = _found(query, keys, values, split * split_size, last, length, scale, D, ROWS, KEYS, D)
        number = token * H + head
        if length <= split_size:
            result = tl.div_rn(mixture, tl.where(total == 0.0, 1.0, total)[:, None])
            tl.store(out + number[:, None] * D + features[None, :], result.to(out.dtype.element_ty), mask=there)
        else:
            number += split.to(tl.int64) * tl.num_programs(1) * q * H
            tl.store(mixtures + number[:, None] * D + features[None, :], mixture, mask=there)
            tl.store(figures + number * 2, best, mask=asking < shared * q)
            tl.store(figures + number * 2 + 1, total, mask=asking < shared * q)


# The alignment of these pointers depends on the number of rows, which must not be a reason to compile.
_OF_ROWS = ["starts", "lengths", "slots", "seen"]


@triton.jit(do_not_specialize=["n", "capacity"], do_not_specialize_on_alignment=_OF_ROWS)
def attend_rows(
    qkv, starts, lengths, keys, values, slots, seen, out, n, capacity, scale,
    H: tl.constexpr, G: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, STORED: tl.constexpr,
):  # fmt: skip
    """What ROWS queries of one head find among all keys of their row of the batch, KEYS keys at a time.

    Rows lie one behind the other: `lengths[i]` positions from `starts[i]` on, at most `n`. `qkv` (positions, H + 2 G
    heads, D), `out` (positions, H, D). Grid (tiles of n queries * H, b), neighbours with the same keys. STORED: the
    keys are the first `seen[i]` of the place `slots[i]` in a store; a row without keys gets zeros.
    """
    width: tl.constexpr = (H + 2 * G) * D
    tiles = tl.cdiv(n, ROWS)
    which, row = tl.program_id(0), tl.program_id(1)
    tile, head = which % tiles, which // tiles
    length = tl.load(lengths + row).to(tl.int32)
    if tile * ROWS < length:
        start = tl.load(starts + row).to(tl.int64)
        qkv += start * width
        features = tl.arange(0, D)
        asking = tile * ROWS + tl.arange(0, ROWS)
        there = (asking < length)[:, None]
        query = tl.load(qkv + asking[:, None] * width + head * D + features[None, :], mask=there, other=0.0)
        key_head = head // (H // G)
        if STORED:
            first = (tl.load(slots + row) * G + key_head) * capacity * D
            known = tl.minimum(tl.load(seen + row).to(tl.int32), capacity)
            _, total, mixture = _found(query, keys + first, values + first, 0, known, known, scale, D, ROWS, KEYS, D)
        else:
            keys = qkv + (H + key_head) * D
            _, total, mixture = _found(query, keys, keys + G * D, 0, length, length, scale, D, ROWS, KEYS, width)
        result = tl.div_rn(mixture, tl.where(total == 0.0, 1.0, total)[:, None]).to(out.dtype.element_ty)
        tl.store(out + ((start + asking)[:, None] * H + head) * D + features[None, :], result, mask=there)


@triton.jit(do_not_specialize=["q", "splits", "split_size"])
def merge_splits(mixtures, figures, lengths, out, q, splits, split_size, H: tl.constexpr, D: tl.constexpr):
    """The attention of one query of one head from the splits of its row, if it has several. Grid (b * q * H,)."""
    number = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + number // (q * H)).to(tl.int32)
    found = tl.minimum(tl.cdiv(length, split_size), splits)
    if found > 1:
        features = tl.arange(0, D)
        best = -float("inf")
        total = 0.0
        mixture = tl.zeros([D], dtype=tl.float32)
        for begin in range(0, found, _SPLITS):
            split = begin + tl.arange(0, _SPLITS)
            at = split.to(tl.int64) * tl.num_programs(0) + number
            bests = tl.load(figures + at * 2, mask=split < found, other=-float("inf"))
            totals = tl.load(figures + at * 2 + 1, mask=split < found, other=0.0)
            pieces = tl.load(mixtures + at[:, None] * D + features[None, :], mask=(split < found)[:, None], other=0.0)
            better = tl.maximum(best, tl.max(bests, axis=0))
            weight = tl.exp2(bests - better)
            fade = tl.exp2(best - better)
            total = total * fade + tl.sum(totals * weight, axis=0)
            mixture = mixture * fade + tl.sum(pieces * weight[:, None], axis=0)
            best = better
        tl.store(out + number * D + features, tl.div_rn(mixture, total).to(out.dtype.element_ty))


def block_attention(
    qkv: Float[Tensor, "b q heads"],
    keys: Float[Tensor, "s g c d"],
    values: Float[Tensor, "s g c d"],
    slots: Int[Tensor, " b"],
    lengths: Int[Tensor, " b"],
    n_heads: int,
    longest: int,
    *,
    split: int | None = None,
    tiles: dict[str, int] | None = None,
) -> Float[Tensor, "b q queries"]:
    """Attention of the turned queries in `qkv` to the first `lengths` keys and values in the rows' slots of a store.

    No length is above `longest`, which changes no bit of the result. A row without keys gets zeros. The number of rows
    decides how sums are cut in half precision, but not in float32. `split` is how many keys one program sees, a
    multiple of those that it reads at a time.
    """
    b, q, _ = qkv.shape
    _, g, capacity, d = keys.shape
    out = qkv.new_empty(b, q, n_heads * d)
    tiles = tiles or _tiles(qkv.dtype, d)
    programs = g * -(-(n_heads // g * q) // tiles["ROWS"])  # of a row and a split
    split = split or keys_of_a_split(qkv.dtype, b * programs) or max(1, longest)
    splits = max(1, -(-longest // split))
    mixtures = figures = out
    if splits > 1:
        mixtures = out.new_empty((splits, b * q * n_heads, d), dtype=torch.float32)
        figures = out.new_empty((splits, b * q * n_heads, 2), dtype=torch.float32)
    scale = math.log2(math.e) / math.sqrt(d)  # weights are powers of two
    tensors = qkv, keys, values, slots, lengths, out, mixtures, figures
    sizes = {"H": n_heads, "G": g, "D": d}
    launch(attend_split, (splits * programs, b), *tensors, q, capacity, split, scale, **sizes, **tiles)
    if splits > 1:
        merged = mixtures, figures, lengths, out, q, splits, split
        launch(merge_splits, (b * q * n_heads,), *merged, H=n_heads, D=d, num_warps=1)
    return out


def ragged_attention(
    qkv: Float[Tensor, "positions 1 heads"],
    starts: Int[Tensor, " b"],
    lengths: Int[Tensor, " b"],
    n_heads: int,
    n_kv_heads: int,
    longest: int,
    stored: tuple[*Store, Int[Tensor, " b"]] | None = None,
) -> Float[Tensor, "positions 1 queries"]:
    """Attention of the turned queries in `qkv`, each to the keys of its own row.

    Rows lie one behind the other, `lengths` positions from `starts` on, none longer than `longest`. Positions that
    belong to no row are not filled in. `stored` is a store and the number of keys that each row sees there; without
    it, a row sees the keys in `qkv`.
    """
    keys, values, slots, seen = (qkv, qkv, starts, lengths) if stored is None else stored
    count, _, heads = qkv.shape
    d = heads // (n_heads + 2 * n_kv_heads)
    out = qkv.new_empty(count, 1, n_heads * d)
    tiles = _tiles(qkv.dtype, d)
    grid = -(-longest // tiles["ROWS"]) * n_heads, lengths.shape[0]
    scale = math.log2(math.e) / math.sqrt(d)
    tensors = qkv, starts, lengths, keys, values, slots, seen, out
    capacity = 0 if stored is None else keys.shape[2]
    constants = {"H": n_heads, "G": n_kv_heads, "D": d, "STORED": stored is not None}
    launch(attend_rows, grid, *tensors, longest, capacity, scale, **constants, **tiles)
    return out


def _tiles(dtype: torch.dtype, d: int) -> dict[str, int]:
    """How many queries a program has, counting every head that shares the keys, and how it reads keys."""
    if dtype == torch.float32:  # no tensor cores: operands live in registers
        return {"ROWS": 16, "KEYS": 32, "num_warps": 4, "num_stages": 2}
    keys, stages = (64, 3) if d <= 128 else (32, 2)
    return {"ROWS": 64, "KEYS": keys, "num_warps": 4, "num_stages": stages}


def keys_of_a_split(dtype: torch.dtype, programs: int) -> int | None:
    """Keys that one program sees (None: all), given the programs of one split of every row.

    Splits give idle multiprocessors work, and cost a launch. They decide how sums are rounded.
    """
    if dtype == torch.float32:
        return 256
    if programs >= 96:
        return None
    return 512 if programs > 40 else 320
