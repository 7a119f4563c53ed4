"""The workloads of `unmask bench`: their flags, and checks of the values before anything is loaded.

Knows nothing of torch, so that the command line can show its flags at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unmask.errors import WrongOption
from unmask.options import check_bounds, option
from unmask.settings import Settings

DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The requests of `bench step` and `bench generate`; every combination is measured."""

    prompt_tokens: Sequence[int] = option((256,), "Length of the prompts (may be repeated).", least=1)
    shortest_prompt: int | None = option(
        None, "Spread the lengths of a batch's prompts evenly from this one. [default: all alike]"
    )
    batches: Sequence[int] = option((1,), "Rows decoded together (may be repeated).", "--batch", least=1)
    caches: Sequence[str] = option(
        (),
        "none, prefix, dual or exact (may be repeated). [default: each that policy and model can use]",
        "--cache",
    )
    refreshes: Sequence[str] = option(
        ("block",),
        "When a cache is recomputed: block, blocks:N or drift:X (may be repeated).",
        "--refresh",
        metavar="WHEN",
    )
    max_tokens: int = option(256, "Tokens to generate.")
    block_size: int | None = option(None, "Positions per block. [default: 32, or what a block-causal model has]")
    repeats: int = option(3, "Runs of each that count, after one that does not.", least=1)
    seed: int = option(0, "Of the random weights and prompts.")
    policy: Any = None  # a Policy, whose type imports torch; default: see `default_policy`

    def __post_init__(self) -> None:
        check_bounds(self)
        most = min(self.prompt_tokens)
        if self.shortest_prompt is not None and not 1 <= self.shortest_prompt <= most:
            raise WrongOption("shortest_prompt", f"must be in [1, {most}], got {self.shortest_prompt}")
        sizes: dict[str, Any] = {"max_tokens": self.max_tokens, "block_size": self.block_size, "seed": self.seed}
        for cache in self.caches or ("none",):
            for refresh in self.refreshes:
                Settings(cache=cache, refresh=refresh, **sizes)  # raises if a value is wrong


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleWorkload:
    """The logits of `bench rule`; every combination is measured."""

    positions: Sequence[int] = option((32,), "Open positions m (may be repeated).", least=1)
    vocabularies: Sequence[int] = option((126_464,), "Vocabulary V (may be repeated).", "--vocabulary", least=2)
    batches: Sequence[int] = option((1,), "Rows (may be repeated).", "--batch", least=1)
    dtype: str | None = option(
        None,
        "Of the logits: float32, bfloat16, float16 or float64. [default: bfloat16 on cuda, else float32]",
        choices=DTYPES,
    )
    device: str = option("cpu", "cpu, cuda or mps.")
    repeats: int = option(5, "Runs of each; the median counts.", least=1)
    seed: int = option(0, "Of the random logits.", least=0)
    policies: Sequence[str] = option((), "Also time this policy (may be repeated).", "--policy")
    naive: bool = option(
        True, "Also time the formula as printed in the paper, over m x m x V.", "--printed/--no-printed"
    )

    def __post_init__(self) -> None:
        check_bounds(self)
