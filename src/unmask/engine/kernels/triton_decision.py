"""What the loop itself does to a row around a policy's decision, as two Triton kernels; `observe`, `commit` launch.

Triton compiles these functions from their text. `no_type_check` keeps type checkers from wrapping them in Python.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from unmask.rules.kernels.triton_selection import open_scores


@triton.jit(do_not_specialize=["n", "k", "mask_id"])
@no_type_check
def find_state(
    tokens, holes, at, inside, masked_out, standing_out, decoded_out, remaining_out, total_out,
    n, k, mask_id, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """What stands in the window of one row, and how much of the canvas is open. Grid (b,)."""
    row = tl.program_id(0).to(tl.int64)
    tokens += row * n
    holes += row * n
    remaining, total = tl.zeros([N], dtype=tl.int64), tl.zeros([N], dtype=tl.int64)
    for first in range(0, n, N):
        places = first + tl.arange(0, N)
        there = places < n
        token = tl.load(tokens + places, mask=there, other=0)
        remaining += (there & (token == mask_id)).to(tl.int64)
        total += (tl.load(holes + places, mask=there, other=0) != 0).to(tl.int64)
    tl.store(remaining_out + row, tl.sum(remaining, axis=0))
    tl.store(total_out + row, tl.sum(total, axis=0))
    for first in range(0, k, K):
        columns = first + tl.arange(0, K)
        there = columns < k
        into = row * k + columns
        places = tl.load(at + into, mask=there, other=0)
        belongs = tl.load(inside + into, mask=there, other=0) != 0
        token = tl.load(tokens + places, mask=there, other=0)
        is_hole = tl.load(holes + places, mask=there, other=0) != 0
        tl.store(masked_out + into, (belongs & (token == mask_id)).to(tl.uint8), mask=there)
        tl.store(decoded_out + into, (belongs & is_hole & (token != mask_id)).to(tl.uint8), mask=there)
        tl.store(standing_out + into, tl.where(belongs, token, -1), mask=there)


@triton.jit(do_not_specialize=["stride_b", "stride_k", "n", "k", "mask_id"])
@no_type_check
def apply_rows(
    commit, score, masked, proposed, wanted, standing, remask, decoded, wait, drifted, first_only, pinned,
    logits, canvas, at, canvas_out, results,
    stride_b, stride_k, n, k, mask_id,
    LOWEST: tl.constexpr, HIGHEST: tl.constexpr, MASK_ALLOWED: tl.constexpr,
    REMASKS: tl.constexpr, WAITS: tl.constexpr, DRIFTS: tl.constexpr, FIRST_ONLY: tl.constexpr, PINNED: tl.constexpr,
    PARTS: tl.constexpr, FLAGS: tl.constexpr,
    WAITING: tl.constexpr, DRIFTED: tl.constexpr, BROKEN: tl.constexpr, GOES_ON: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Completes the commits of one row, writes them, and their result. Grid (b,).

    `results` (b, PARTS k + FLAGS) is laid out as engine/commit.py says.
    """
    row = tl.program_id(0).to(tl.int64)
    for first in range(0, n, N):
        places = first + tl.arange(0, N)
        token = tl.load(canvas + row * n + places, mask=places < n, other=0)
        tl.store(canvas_out + row * n + places, token, mask=places < n)

    some_open, some_commit = tl.zeros([K], dtype=tl.int32), tl.zeros([K], dtype=tl.int32)
    broken, best_at = tl.zeros([K], dtype=tl.int32), tl.zeros([K], dtype=tl.int32)
    best = open_scores(tl.zeros([K], dtype=score.dtype.element_ty), best_at > 0, LOWEST, HIGHEST)
    for first in range(0, k, K):
        columns = first + tl.arange(0, K)
        there = columns < k
        is_open = tl.load(masked + row * k + columns, mask=there, other=0) != 0
        asked = tl.load(commit + row * k + columns, mask=there, other=0) != 0
        value = tl.load(score + row * k + columns, mask=there, other=0.0)
        value = open_scores(value, is_open, LOWEST, HIGHEST)
        best_at = tl.where(value > best, columns, best_at)
        best = tl.maximum(value, best)
        token = tl.load(proposed + row * k + columns, mask=is_open, other=0)
        logit = tl.load(logits + row * stride_b + columns.to(tl.int64) * stride_k + token, mask=is_open, other=0.0)
        # Comparing holds neither for infinity nor for what is not a number.
        usable = tl.abs(logit.to(tl.float64)) < float("inf")
        some_open |= is_open.to(tl.int32)
        some_commit |= (is_open & asked).to(tl.int32)
        broken |= (is_open & (usable == 0)).to(tl.int32)
    stuck = (tl.max(some_open, axis=0) > 0) & (tl.max(some_commit, axis=0) == 0)
    waits = tl.full((), 0, dtype=tl.int64)
    if WAITS:
        waits = (tl.load(wait + row) != 0).to(tl.int64)
        stuck = stuck & (waits == 0)
    best_at = tl.min(tl.where(best == tl.max(best, axis=0), best_at, k), axis=0)

    results += row * (PARTS * k + FLAGS)
    still_open = tl.zeros([K], dtype=tl.int32)
    # Before changes are added, the copy must be there.
    tl.debug_barrier()
    for first in range(0, k, K):
        columns = first + tl.arange(0, K)
        there = columns < k
        is_open = tl.load(masked + row * k + columns, mask=there, other=0) != 0
        asked = tl.load(commit + row * k + columns, mask=there, other=0) != 0
        commits = is_open & (asked | (stuck & (columns == best_at)))
        token = tl.load(wanted + row * k + columns, mask=there, other=0).to(tl.int64)
        if FIRST_ONLY:
            alone = tl.load(first_only + row) != 0
            commits = tl.where(alone, columns == 0, commits)
            best_token = tl.load(proposed + row * k + columns, mask=there, other=0).to(tl.int64)
            token = tl.where(alone, best_token, token)
        if MASK_ALLOWED:
            commits = commits & (token != mask_id)
        before = tl.load(standing + row * k + columns, mask=there, other=0)
        after = tl.where(commits, token, before)
        remasks = tl.zeros([K], dtype=tl.int64)
        if REMASKS:
            opens = tl.load(remask + row * k + columns, mask=there, other=0) != 0
            opens = opens & (tl.load(decoded + row * k + columns, mask=there, other=0) != 0)
            if PINNED:
                opens = opens & ((columns != 0) | (tl.load(pinned + row) == 0))
            after = tl.where(opens, mask_id, after)
            remasks = opens.to(tl.int64)
        # Columns outside a narrow block repeat its last position, so changes are added to the canvas, not set.
        places = tl.load(at + row * k + columns, mask=there, other=0)
        changed = there & (after != before)
        tl.atomic_add(canvas_out + row * n + places, after - before, mask=changed, sem="relaxed")
        tl.store(results + columns, after, mask=there)
        tl.store(results + k + columns, commits.to(tl.int64), mask=there)
        tl.store(results + 2 * k + columns, remasks, mask=there)
        still_open |= (there & (after == mask_id)).to(tl.int32)
    goes_on = tl.max(still_open, axis=0).to(tl.int64)
    drifts = tl.full((), 0, dtype=tl.int64)
    if DRIFTS:
        drifts = (tl.load(drifted + row) != 0).to(tl.int64)
        goes_on = goes_on & (1 - drifts)
    results += PARTS * k
    tl.store(results + WAITING, waits)
    tl.store(results + DRIFTED, drifts)
    tl.store(results + BROKEN, tl.max(broken, axis=0).to(tl.int64))
    tl.store(results + GOES_ON, goes_on)
