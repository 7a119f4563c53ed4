"""The mean-field rule beside the formula as it is printed: time, memory, and how far both are from the truth.

The command is `unmask bench rule`. The logits are made up, not a model's: positions that are sure, torn or without a
clue. On a CUDA device the rule is replayed from a graph, as in a decoding loop, on copies of the logits in turn that do
not fit into the L2 cache together. The printed formula is called without a graph: beside its milliseconds, the cost of
a call does not show.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unmask import policies
from unmask.bench.measure import copies_beyond_cache, extra_memory_mib, median_ms, replayed_ms
from unmask.bench.naive_rule import NAIVE_TEMPORARIES, exact_overlap, naive_commit
from unmask.bench.workload import RuleWorkload
from unmask.models.checkpoint.memory import check_memory, free_memory
from unmask.models.device import choose_device
from unmask.policies import Policy
from unmask.rules import mean_field_commit
from unmask.types import StepView

# Starting a graph and waiting for it takes the host some microseconds: at least this many calls share them.
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
    policies_ms: dict[str, float] = field(default_factory=dict)  # the decisions of other policies, by name

    @property
    def speedup(self) -> float | None:
        return None if self.naive_ms is None else self.naive_ms / self.ours_ms

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"speedup": self.speedup}

    def rows(self) -> list[dict[str, Any]]:
        """The timing as lines of a table: ours, the formula as printed, and other policies over ours."""
        size = {"batch": self.batch, "m x V": f"{self.positions} x {self.vocabulary}", "form": "ours"}
        ours = _in_words(self.ours_ms, self.ours_memory_mib, self.ours_error)
        printed = _in_words(self.naive_ms, self.naive_memory_mib, self.naive_error)
        compared = {
            "speed-up": "" if self.speedup is None else f"{self.speedup:.1f} x",
            "commits": {True: "same", False: "differ", None: ""}[self.same_commits],
        }
        first = size | ours | compared
        lines = [first, dict.fromkeys(first, "") | {"form": "as printed"} | printed]
        for name, milliseconds in self.policies_ms.items():
            figures = _in_words(milliseconds, None, None) | {"memory": "", "error": ""}
            ratio = {"speed-up": f"{self.ours_ms / milliseconds:.1f} x"}
            lines.append(dict.fromkeys(first, "") | {"form": f"policy {name}"} | figures | ratio)
        return lines

    def in_words(self) -> str:
        how = f"median of {self.repeats} runs; error of the overlap against float64, before it is normalised"
        if self.copies > 1:
            how += "; ours replayed from a graph, on copies of the logits that do not fit into the L2 cache together"
        return f"mean-field rule: {self.device}, {self.threads} threads, {self.dtype}; {how}"


def _in_words(milliseconds: float | None, mebibytes: float | None, error: float | None) -> dict[str, str]:
    time = "{:.2f} ms" if milliseconds is None or milliseconds >= 1.0 else "{:.3f} ms"
    forms = {"time": (milliseconds, time), "memory": (mebibytes, "{:.0f} MiB"), "error": (error, "{:.0e}")}
    return {name: "not measured" if value is None else form.format(value) for name, (value, form) in forms.items()}


def bench_rule(**options: Any) -> list[RuleTiming]:
    """Measure every combination of vocabulary, batch and positions; the options are the fields of `RuleWorkload`.

    The dtype is bfloat16 on a CUDA device and float32 elsewhere, unless it is given.
    """
    asked = RuleWorkload(**options)
    device = choose_device(asked.device)
    dtype = getattr(torch, asked.dtype or ("bfloat16" if device.type == "cuda" else "float32"))
    sizes = [(b, m, v) for v in asked.vocabularies for b in asked.batches for m in asked.positions]
    for size in sizes:
        _check_room(*size, dtype, device)
    return [_measure(example_logits(*size, seed=asked.seed).to(device, dtype), asked) for size in sizes]


def example_logits(b: int, m: int, v: int, *, seed: int) -> Float[Tensor, "b m v"]:
    """Random positions that are sure, torn between a few tokens, or without a clue; some want the same token."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2.0 * torch.randn(b, m, v, generator=generator)
    for candidate in range(3):
        token = torch.randint(min(v, 2 * m), (b, m, 1), generator=generator)
        height = (18.0 - 5.0 * candidate) * torch.rand(b, m, 1, generator=generator)
        logits.scatter_add_(-1, token, height)
    return logits


def _measure(logits: Float[Tensor, "b m v"], asked: RuleWorkload) -> RuleTiming:
    device, on_cuda, repeats = logits.device, logits.is_cuda, asked.repeats
    batch, positions, vocabulary = logits.shape
    masked = torch.ones(batch, positions, dtype=torch.bool, device=device)
    # On a CUDA device the logits are not validated: only then can a graph capture the rule, and kernels serve it.
    decide = partial(mean_field_commit, masked=masked, validate=not on_cuda)
    ours, copies = partial(decide, logits), copies_beyond_cache(logits) if on_cuda else 1
    truth, overlap = exact_overlap(logits), ours(normalize="none").overlap
    figures: dict[str, Any] = {"ours_error": _largest(overlap, truth)}
    figures["ours_ms"] = _timed(decide, logits, copies, repeats)
    figures["policies_ms"] = {
        name: _timed(partial(_decision, policies.get(name), masked), logits, copies, repeats) for name in asked.policies
    }
    figures["ours_memory_mib"] = extra_memory_mib(ours, device=device)
    wide, free = logits.to(torch.promote_types(logits.dtype, torch.float32)), free_memory(device)
    if asked.naive and (free is None or NAIVE_TEMPORARIES * wide.nbytes * positions < free):
        printed = partial(naive_commit, wide)
        commit, naive_overlap = printed()
        figures |= {
            "naive_ms": median_ms(printed, repeats=repeats, device=device),
            "naive_memory_mib": extra_memory_mib(printed, device=device),
            "naive_error": _largest(naive_overlap, truth),
            "difference": _largest(naive_overlap, overlap),
            "same_commits": torch.equal(commit, ours().commit),
        }
    return RuleTiming(
        positions=positions,
        vocabulary=vocabulary,
        batch=batch,
        dtype=str(logits.dtype).removeprefix("torch."),
        device=str(device),
        threads=torch.get_num_threads(),
        repeats=repeats,
        seed=asked.seed,
        copies=copies,
        **figures,
    )


def _decision(policy: Policy, masked: Bool[Tensor, "b m"], logits: Float[Tensor, "b m v"]) -> Tensor:
    view = StepView(logits=logits, masked=masked, proposed=logits.argmax(-1), open_at_most=masked.shape[1])
    return policy.select(view)[0].commit


def _timed(decide: Callable[[Tensor], Any], logits: Float[Tensor, "b m v"], copies: int, repeats: int) -> float:
    """Milliseconds of a decision; on a CUDA device of one that is replayed from a graph, on copies in turn."""
    device = logits.device
    if not logits.is_cuda:
        return median_ms(partial(decide, logits), repeats=repeats, device=device)
    calls = [partial(decide, logits.clone()) for _ in range(copies)]
    return replayed_ms(calls * math.ceil(_LEAST_CALLS / copies), repeats=repeats, device=device)


def _largest(one: Float[Tensor, "b m m"], other: Float[Tensor, "b m m"]) -> float:
    """The largest difference."""
    return float((one.cpu().double() - other.cpu().double()).abs().max())


def _check_room(b: int, m: int, v: int, dtype: torch.dtype, device: torch.device) -> None:
    """Refuse a size whose logits, with what the comparison in float64 takes, do not fit into memory."""
    made = 2 * 4 * b * m * v  # random numbers in float32, and those times two
    kept = dtype.itemsize * b * m * v + 8 * b * m * m
    truth = 5 * 8 * m * v  # of one row: see exact_overlap
    for place, amount in ((torch.device("cpu"), made), (device, kept + truth)):
        instead = "use fewer positions, a smaller vocabulary or a smaller batch"
        check_memory(amount, place, what=f"batch {b}, {m} positions, vocabulary {v}", instead=instead)
