"""The mean-field rule beside the formula as it is printed: time, memory, and how far both are from the truth.

What `unmask bench rule` shows. The logits are made up: positions that are sure, torn or without a clue, not a model's.
On a CUDA device the rule is replayed from a graph, as a decoding loop would, on copies of the logits in turn that do
not fit into the L2 cache together; the printed formula is called: its milliseconds drown what a call costs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from unmask.bench.measure import check_room, copies_beyond_cache, extra_memory_mib, median_ms, replayed_ms
from unmask.bench.naive_rule import NAIVE_TEMPORARIES, naive_commit
from unmask.errors import UnknownName, UnmaskError
from unmask.models.checkpoint.memory import free_memory
from unmask.rules import mean_field_commit

DTYPES = ("float32", "bfloat16", "float16", "float64")
# Starting a graph and waiting for it takes the host some microseconds, which so many calls share.
_LEAST_CALLS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleTiming:
    """One size. Errors are the largest over all pairs, of the overlap before it is normalised, against float64."""

    positions: int
    vocabulary: int
    batch: int
    dtype: str
    device: str
    threads: int
    repeats: int
    seed: int
    copies: int  # of the logits, read in turn
    ours_ms: float
    ours_memory_mib: float | None
    ours_error: float
    naive_ms: float | None = None  # None: not asked for, or it does not fit in memory
    naive_memory_mib: float | None = None
    naive_error: float | None = None
    difference: float | None = None  # largest, between the two overlaps
    same_commits: bool | None = None

    @property
    def speedup(self) -> float | None:
        return None if self.naive_ms is None else self.naive_ms / self.ours_ms

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"speedup": self.speedup}

    def rows(self) -> list[dict[str, Any]]:
        """The timing as two lines of a table: ours, and the formula as printed."""
        size = {"batch": self.batch, "m x V": f"{self.positions} x {self.vocabulary}"}
        faster = "" if self.speedup is None else f"{self.speedup:.1f} x"
        commits = {True: "same", False: "differ", None: ""}[self.same_commits]
        ours = _in_words(self.ours_ms, self.ours_memory_mib, self.ours_error)
        printed = _in_words(self.naive_ms, self.naive_memory_mib, self.naive_error)
        return [
            size | {"form": "ours", **ours, "speed-up": faster, "commits": commits},
            {"batch": "", "m x V": "", "form": "as printed", **printed, "speed-up": "", "commits": ""},
        ]

    def in_words(self) -> str:
        how = f"median of {self.repeats} runs; error of the overlap against float64, before it is normalised"
        if self.copies > 1:
            how += "; ours replayed from a graph, on copies of the logits that do not fit into the L2 cache together"
        return f"mean-field rule: {self.device}, {self.threads} threads, {self.dtype}; {how}"


def _in_words(milliseconds: float | None, mebibytes: float | None, error: float | None) -> dict[str, str]:
    time = "{:.2f} ms" if milliseconds is None or milliseconds >= 1.0 else "{:.3f} ms"
    forms = {"time": (milliseconds, time), "memory": (mebibytes, "{:.0f} MiB"), "error": (error, "{:.0e}")}
    return {name: "not measured" if value is None else form.format(value) for name, (value, form) in forms.items()}


def bench_rule(
    *,
    positions: Sequence[int] = (32,),
    vocabularies: Sequence[int] = (126_464,),
    batches: Sequence[int] = (1,),
    dtype: str | None = None,
    device: str = "cpu",
    repeats: int = 5,
    seed: int = 0,
    naive: bool = True,
) -> list[RuleTiming]:
    """Measure every combination of vocabulary, batch and positions.

    The dtype is bfloat16 on a CUDA device and float32 elsewhere, unless it is given.
    """
    where = _check(positions, vocabularies, batches, dtype, device, repeats)
    dtype = dtype or ("bfloat16" if where.type == "cuda" else "float32")
    sizes = [(b, m, v) for v in vocabularies for b in batches for m in positions]
    for size in sizes:
        _check_room(*size, getattr(torch, dtype), where)
    timings = []
    for b, m, v in sizes:
        logits = example_logits(b, m, v, seed=seed).to(device=where, dtype=getattr(torch, dtype))
        timings.append(_measure(logits, repeats=repeats, seed=seed, naive=naive))
    return timings


def example_logits(b: int, m: int, v: int, *, seed: int) -> Float[Tensor, "b m v"]:
    """Random positions that are sure, torn between a few tokens, or without a clue; some want the same token."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2.0 * torch.randn(b, m, v, generator=generator)
    for candidate in range(3):
        token = torch.randint(min(v, 2 * m), (b, m, 1), generator=generator)
        height = (18.0 - 5.0 * candidate) * torch.rand(b, m, 1, generator=generator)
        logits.scatter_add_(-1, token, height)
    return logits


def _measure(logits: Float[Tensor, "b m v"], *, repeats: int, seed: int, naive: bool) -> RuleTiming:
    device = logits.device
    masked = torch.ones(logits.shape[:2], dtype=torch.bool, device=device)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    on_cuda = device.type == "cuda"
    # On a CUDA device the logits are trusted: only then can a graph capture the rule, and kernels serve it.
    decide = partial(mean_field_commit, masked=masked, validate=not on_cuda)
    copies = copies_beyond_cache(logits) if on_cuda else 1
    ours, printed = partial(decide, logits), partial(naive_commit, wide)
    truth, overlap = _overlap_in_float64(logits), decide(logits, normalize="none").overlap.triu(1)
    if on_cuda:
        calls = [partial(decide, logits.clone()) for _ in range(copies)]
        calls *= math.ceil(_LEAST_CALLS / copies)
        ours_ms = replayed_ms(calls, repeats=repeats, device=device)
        del calls
    else:
        ours_ms = median_ms(ours, repeats=repeats, device=device)
    figures: dict[str, Any] = {
        "copies": copies,
        "ours_ms": ours_ms,
        "ours_memory_mib": extra_memory_mib(ours, device=device),
        "ours_error": _largest(overlap - truth),
    }
    free = free_memory(device)
    if naive and (free is None or NAIVE_TEMPORARIES * wide.nbytes * wide.shape[1] < free):
        commit, naive_overlap = printed()
        figures |= {
            "naive_ms": median_ms(printed, repeats=repeats, device=device),
            "naive_memory_mib": extra_memory_mib(printed, device=device),
            "naive_error": _largest(naive_overlap.triu(1) - truth),
            "difference": _largest(naive_overlap.triu(1) - overlap),
            "same_commits": torch.equal(commit, ours().commit),
        }
    batch, positions, vocabulary = logits.shape
    return RuleTiming(
        positions=positions,
        vocabulary=vocabulary,
        batch=batch,
        dtype=str(logits.dtype).removeprefix("torch."),
        device=str(device),
        threads=torch.get_num_threads(),
        repeats=repeats,
        seed=seed,
        **figures,
    )


def _overlap_in_float64(logits: Float[Tensor, "b m v"]) -> Float[Tensor, "b m m"]:
    """The printed formula above the diagonal, one row of pairs at a time."""
    there = logits if logits.is_cuda else logits.cpu()  # MPS has no float64
    overlap = there.new_zeros(*there.shape[:2], there.shape[1], dtype=torch.float64)
    for row, into in zip(there, overlap, strict=True):
        p = row.double().softmax(-1)
        for i in range(len(p) - 1):
            one, others = p[i : i + 1], p[i + 1 :]
            middle = (one + others) / 2.0
            jsd = (torch.xlogy(one, one / middle) + torch.xlogy(others, others / middle)).sum(-1) / 2.0
            into[i, i + 1 :] = 1.0 - jsd / math.log(2.0)
    return overlap.to(logits.device)


def _check_room(b: int, m: int, v: int, dtype: torch.dtype, device: torch.device) -> None:
    """Refuse a size whose logits, with what the comparison in float64 takes, do not fit into memory."""
    made = 2 * 4 * b * m * v  # random numbers in float32, and those times two
    kept = dtype.itemsize * b * m * v + 8 * b * m * m
    truth = 5 * 8 * m * v  # of one row: see _overlap_in_float64
    host = torch.device("cpu")
    needed = {host: max(made, kept + truth)} if device == host else {host: made, device: kept + truth}
    for place, amount in needed.items():
        instead = "use fewer positions, a smaller vocabulary or a smaller batch"
        check_room(amount, place, what=f"batch {b}, {m} positions, vocabulary {v}", instead=instead)


def _largest(difference: Tensor) -> float:
    return float(difference.abs().max())


def _check(
    positions: Sequence[int],
    vocabularies: Sequence[int],
    batches: Sequence[int],
    dtype: str | None,
    device: str,
    repeats: int,
) -> torch.device:
    """The device, if all of this can be measured."""
    for name, least, values in (
        ("positions", 1, positions),
        ("vocabularies", 2, vocabularies),
        ("batches", 1, batches),
        ("repeats", 1, [repeats]),
    ):
        if not values or min(values) < least:
            raise UnmaskError(f"{name} must be at least {least}, got {', '.join(map(str, values)) or 'none'}")
    if dtype is not None and dtype not in DTYPES:
        raise UnknownName("dtype", dtype, DTYPES)
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise UnmaskError(f"cannot measure on device {device!r}: {str(error).splitlines()[0]}") from error
