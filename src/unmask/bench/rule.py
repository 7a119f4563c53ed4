"""The mean-field rule beside the formula as it is printed: time, memory, and how far both are from the truth.

The command is `unmask bench rule`. The logits are made up, not a model's: positions that are sure, torn or without a
clue. On a CUDA device the rule is replayed from a graph, as in a decoding loop, on copies of the logits in turn that do
not fit into the L2 cache together. The printed formula is called without a graph: beside its milliseconds, the cost of
a call does not show.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from unmask import policies
from unmask.bench.measure import Measurement, extra_memory_mib, median_ms
from unmask.bench.workload import RuleWorkload
from unmask.models.device import check_memory, choose_device, free_memory
from unmask.policies import Policy
from unmask.rules import mean_field_commit
from unmask.rules.mean_field import without_diagonal
from unmask.types import StepView

# Tensors of m x m x v numbers that the formula as printed keeps alive at once: the mixture, a ratio, and its logarithm.
_NAIVE_TEMPORARIES = 3
# Starting a graph and waiting for it takes the host some microseconds: at least this many calls share them.
_LEAST_CALLS = 32


def bench_rule(asked: RuleWorkload) -> list[Measurement]:
    """A measurement for each form of the rule, in every combination of vocabulary, batch and positions."""
    device = choose_device(asked.device)
    dtype = getattr(torch, asked.dtype or ("bfloat16" if device.type == "cuda" else "float32"))
    sizes = [(b, m, v) for v in asked.vocabularies for b in asked.batches for m in asked.positions]
    for size in sizes:
        _check_room(*size, dtype, device)
    made = (example_logits(*size, seed=asked.seed).to(device, dtype) for size in sizes)
    return [form for logits in made for form in _measure(logits, asked)]


def example_logits(b: int, m: int, v: int, *, seed: int) -> Float[Tensor, "b m v"]:
    """Random positions that are sure, torn between a few tokens, or without a clue; some want the same token."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2.0 * torch.randn(b, m, v, generator=generator)
    for candidate in range(3):
        token = torch.randint(min(v, 2 * m), (b, m, 1), generator=generator)
        height = (18.0 - 5.0 * candidate) * torch.rand(b, m, 1, generator=generator)
        logits.scatter_add_(-1, token, height)
    return logits


def _measure(logits: Float[Tensor, "b m v"], asked: RuleWorkload) -> list[Measurement]:
    """One size: ours, the formula as printed, other policies. Errors are of the overlap before it is normalised."""
    device, repeats = logits.device, asked.repeats
    batch, positions, vocabulary = logits.shape
    masked = torch.ones(batch, positions, dtype=torch.bool, device=device)
    # On a CUDA device the logits are not validated: only then can a graph capture the rule, and kernels serve it.
    decide = partial(mean_field_commit, masked=masked, validate=not logits.is_cuda)
    ours, copies = partial(decide, logits), _copies_beyond_cache(logits) if logits.is_cuda else 1
    truth, ours_ms = exact_overlap(logits), _timed(decide, logits, copies, repeats)
    forms: dict[str, dict[str, Any]] = {"ours": {"ms": ours_ms} | _cost(ours, ours(normalize="none").overlap, truth)}
    wide, free = logits.to(torch.promote_types(logits.dtype, torch.float32)), free_memory(device)
    if asked.naive and free is not None and _NAIVE_TEMPORARIES * wide.nbytes * positions >= free:
        forms["as printed"] = {"ms": None}  # no room
    elif asked.naive:
        printed = partial(naive_commit, wide)
        commit, overlap = printed()
        forms["as printed"] = {"ms": median_ms(printed, repeats=repeats, device=device)}
        forms["as printed"] |= _cost(printed, overlap, truth) | {"same_commits": torch.equal(commit, ours().commit)}
    for name in asked.policies:
        decision = partial(_decision, policies.get(name), masked)
        forms[f"policy {name}"] = {"ms": _timed(decision, logits, copies, repeats)}
    about = {"positions": positions, "vocabulary": vocabulary, "batch": batch, "device": str(device)}
    about |= {"dtype": str(logits.dtype).removeprefix("torch."), "threads": torch.get_num_threads()}
    about |= {"repeats": repeats, "seed": asked.seed, "copies": copies}  # of the logits, read in turn
    how = f"median of {repeats} runs; error of the overlap against float64, before it is normalised"
    if copies > 1:
        how += "; ours replayed from a graph, on copies of the logits that do not fit into the L2 cache together"
    title = f"mean-field rule: {device}, {about['threads']} threads, {about['dtype']}; {how}"
    return [_measurement(title, about, form, found, ours_ms) for form, found in forms.items()]


def _cost(call: Callable[[], Any], overlap: Float[Tensor, "b m m"], truth: Float[Tensor, "b m m"]) -> dict[str, Any]:
    """The memory that a form takes, and the largest error of its overlaps."""
    error = float((overlap.cpu().double() - truth.cpu().double()).abs().max())
    return {"memory_mib": extra_memory_mib(call, device=overlap.device), "error": error}


def _measurement(title: str, about: dict[str, Any], form: str, found: dict[str, Any], ours_ms: float) -> Measurement:
    missing = dict.fromkeys(("times_ours", "memory_mib", "error", "same_commits"))
    figures = about | {"form": form} | missing | found
    if (ms := found["ms"]) is not None:
        figures["times_ours"] = ms / ours_ms
    row = {
        "batch": about["batch"],
        "m x V": f"{about['positions']} x {about['vocabulary']}",
        "form": form,
        "ms": "no room" if ms is None else ms,
        "times ours": "" if ms is None else ms / ours_ms,
        "MiB": found.get("memory_mib", ""),
        "error": f"{found['error']:.0e}" if "error" in found else "",
        "commits": {None: "", True: "same", False: "differ"}[found.get("same_commits")],
    }
    return Measurement(title=title, figures=figures, rows=[row])


def _decision(policy: Policy, masked: Bool[Tensor, "b m"], logits: Float[Tensor, "b m v"]) -> Tensor:
    view = StepView(logits=logits, masked=masked, proposed=logits.argmax(-1), open_at_most=masked.shape[1])
    return policy.select(view)[0].commit


def _copies_beyond_cache(logits: Float[Tensor, "b m v"]) -> int:
    """How many copies, read in turn, are too many for the L2 cache of the device to keep any; at most 256."""
    cache = torch.cuda.get_device_properties(logits.device).L2_cache_size
    return min(1 + math.ceil(2 * cache / logits.nbytes), 256)


def _timed(decide: Callable[[Tensor], Any], logits: Float[Tensor, "b m v"], copies: int, repeats: int) -> float:
    """Milliseconds of a decision; on a CUDA device of one that is replayed from a graph, on copies in turn."""
    device = logits.device
    if not logits.is_cuda:
        return median_ms(partial(decide, logits), repeats=repeats, device=device)
    calls = [partial(decide, logits.clone()) for _ in range(copies)] * math.ceil(_LEAST_CALLS / copies)
    with torch.cuda.device(device):
        for call in calls:
            call()  # compiling and setting up must not be captured
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in calls:
                call()
        return median_ms(graph.replay, repeats=repeats, device=device) / len(calls)


def _check_room(b: int, m: int, v: int, dtype: torch.dtype, device: torch.device) -> None:
    """Refuse a size whose logits, with what the comparison in float64 takes, do not fit into memory."""
    made = 2 * 4 * b * m * v  # random numbers in float32, and those times two
    kept = dtype.itemsize * b * m * v + 8 * b * m * m
    truth = 5 * 8 * m * v  # of one row: see exact_overlap
    for place, amount in ((torch.device("cpu"), made), (device, kept + truth)):
        instead = "use fewer positions, a smaller vocabulary or a smaller batch"
        check_memory(amount, place, what=f"batch {b}, {m} positions, vocabulary {v}", instead=instead)


def naive_commit(
    logits: Float[Tensor, "b m v"], *, threshold: float = 0.85, iterations: int = 2
) -> tuple[Bool[Tensor, "b m"], Float[Tensor, "b m m"]]:
    """The rule evaluated as it is printed, with both Kullback-Leibler terms over an m x m x v tensor.

    Every position must be open, and no probability 0. Gives the positions to commit, and the overlap before it is
    normalised (0 on the diagonal).
    """
    p = logits.softmax(-1)
    best, second = p.topk(2, dim=-1).values.log().unbind(-1)
    margin = best - second
    overlap = without_diagonal(naive_overlap(p.unsqueeze(2), p.unsqueeze(1)))
    interaction = overlap / overlap.amax((-2, -1), keepdim=True).clamp(min=1e-12)
    field = margin
    for _ in range(iterations):
        field = margin - (interaction @ field.sigmoid().unsqueeze(-1)).squeeze(-1)
    commit = field.sigmoid() >= threshold
    largest = torch.zeros_like(commit).scatter(-1, field.argmax(-1, keepdim=True), True)
    return torch.where(commit.any(-1, keepdim=True), commit, largest), overlap


def exact_overlap(logits: Float[Tensor, "b m v"]) -> Float[Tensor, "b m m"]:
    """The overlap in float64, a position at a time: the truth, with m times less memory."""
    there = logits if logits.is_cuda else logits.cpu()  # MPS has no float64
    rows = (row.double().softmax(-1) for row in there)
    return without_diagonal(torch.stack([torch.stack([naive_overlap(one, p) for one in p]) for p in rows]))


def naive_overlap(p: Float[Tensor, "*p v"], q: Float[Tensor, "*q v"]) -> Float[Tensor, "*pq"]:
    """1 - JSD / ln 2, with JSD = KL(p || (p + q) / 2) / 2 + KL(q || (p + q) / 2) / 2."""
    middle = (p + q) / 2.0
    from_p, from_q = ((one * (one / middle).log()).sum(-1) for one in (p, q))
    return (1.0 - (from_p + from_q) / 2.0 / math.log(2.0)).clamp(0.0, 1.0)
