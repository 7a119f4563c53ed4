"""The workloads of `unmask bench`: their flags, and checks of the values before anything is loaded.

Knows nothing of torch, so that the command line can show its flags at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unmask.errors import UnmaskError, WrongOption
from unmask.options import check_bounds, checked, option
from unmask.settings import Settings

DTYPES = ("float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The requests of `bench step` and `bench generate`; every combination is measured."""

    prompt_tokens: Sequence[int] = option((256,), "Length of the prompts (may be repeated).", least=1)
    shortest_prompt: int | None = option(None, "Spread a batch's prompts evenly from this length. [default: all alike]")
    batches: Sequence[int] = option((1,), "Rows decoded together (may be repeated).", "--batch", least=1)
    caches: Sequence[str] = option(
        (), "none, prefix, dual or exact (may be repeated). [default: each that policy and model can use]", "--cache"
    )
    refreshes: Sequence[str] = option(
        ("block",), "When to refresh caches: block, blocks:N or drift:X (may be repeated).", "--refresh", metavar="WHEN"
    )
    max_tokens: int = option(256, "Tokens to generate.")
    block_size: int | None = option(None, "Positions per block. [default: 32, or what a block-causal model has]")
    repeats: int = option(3, "Runs of each that count, after one that does not.", least=1)
    seed: int = option(0, "Of the random weights and prompts.")
    policy: Any = None  # a Policy, whose type imports torch; default: see `loads_of`

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.shortest_prompt is not None:
            checked("shortest_prompt", self.shortest_prompt, least=1, most=min(self.prompt_tokens))
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
        None, f"Of the logits: {', '.join(DTYPES)}. [default: bfloat16 on cuda, else float32]", choices=DTYPES
    )
    device: str = option("cpu", "cpu, cuda or mps.")
    repeats: int = option(5, "Runs of each; the median counts.", least=1)
    seed: int = option(0, "Of the random logits.", least=0)
    policies: Sequence[str] = option((), "Also time this policy (may be repeated).", "--policy")
    naive: bool = option(True, "Also time the formula as printed, over m x m x V.", "--printed/--no-printed")

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeWorkload:
    """What the clients of a server ask for."""

    clients: int = option(8, "Clients at a time; each asks for one answer after the other.", least=1)
    requests: int = option(8, "Requests of each client.", least=1)
    minutes: float | None = option(None, "Repeat the requests for so long, and watch the memory.", within="(0, inf)")
    prompt_tokens: int = option(64, "Length of the longest prompt.", least=1)
    shortest_prompt: int = option(8, "Length of the shortest prompt.", least=1)
    max_tokens: int = option(32, "Tokens of the longest answer.", least=1)
    shortest_answer: int = option(8, "Tokens of the shortest answer.", least=1)
    policies: Sequence[str] = option(
        ("mean_field", "threshold", "klass", "fixed"), "Policies of requests, in turn (may be repeated).", "--policy"
    )
    set_: Sequence[str] = option((), "A parameter of the policy, if there is one only.", metavar="KEY=VALUE")
    caches: Sequence[str] = option((), "Caches of the requests, in turn (may be repeated).", "--cache")
    block_size: int | None = option(None, "Positions per block. [default: the server's]")
    share_streamed: float = option(0.5, "Share of answers that are streamed.", within="[0, 1]")
    share_cancelled: float = option(0.1, "Share of requests whose client leaves before the answer.", within="[0, 1]")
    share_bad: float = option(0.1, "Share of requests that no server can answer.", within="[0, 1]")
    plain: bool = option(
        False, "Alike requests: longest lengths, first policy, no streams, no client that leaves.", "--plain"
    )
    seed: int = option(0, "Of the prompts and their order.", least=0)
    url: str | None = option(None, "A running server of the same model. [default: start one]", metavar="URL")
    max_batch_size: int | None = option(None, "Texts that the started server decodes together. [default: 8]")
    max_queue: int | None = option(None, "Texts that may wait in the started server. [default: 64]")
    compare: bool = option(True, "Compare each answer with that of a lone request.", "--compare/--no-compare")

    def __post_init__(self) -> None:
        check_bounds(self)
        checked("prompt_tokens", self.prompt_tokens, least=self.shortest_prompt)
        checked("max_tokens", self.max_tokens, least=self.shortest_answer)
        if self.set_ and len(self.policies) > 1:
            raise UnmaskError(f"--set is for one --policy, got {', '.join(self.policies)}")
        if not (self.url or "http://x").startswith("http://"):
            raise UnmaskError(f"--url must begin with http://, got {self.url!r}")
        for name, value in self.limits().items() if self.url else ():
            raise WrongOption(name, f"is for the server that is started here, got {value} with --url {self.url}")
        for cache in self.caches:
            self.settings(cache)  # raises if a value is wrong

    def limits(self) -> dict[str, int]:
        """How much the started server takes on, where that is said."""
        given = {"max_batch_size": self.max_batch_size, "max_queue": self.max_queue}
        return {name: value for name, value in given.items() if value is not None}

    def settings(self, cache: str | None = None) -> Settings:
        """What the requests have in common; every position is decoded where all are to be the same work."""
        given: dict[str, Any] = {"cache": cache or next(iter(self.caches), None), "block_size": self.block_size}
        return Settings(max_tokens=self.max_tokens, early_stop=not self.plain, **given)
