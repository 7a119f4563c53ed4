"""The workload of `unmask bench serve`: its flags, and checks of the values before anything is loaded.

Knows nothing of torch, so that the command line can show its flags at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from unmask.errors import UnmaskError, WrongOption
from unmask.options import check_bounds, checked, option
from unmask.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeWorkload:
    """What the clients of a server ask for."""

    clients: int = option(8, "Clients at a time; each asks for one answer after the other.", least=1)
    requests: int = option(8, "Requests of each client.", least=1)
    minutes: float | None = option(
        None, "Go round the same requests for so long, and watch the server's memory.", within="(0, inf)"
    )
    prompt_tokens: int = option(64, "Length of the longest prompt.", least=1)
    shortest_prompt: int = option(8, "Length of the shortest prompt.", least=1)
    max_tokens: int = option(32, "Tokens of the longest answer.", least=1)
    shortest_answer: int = option(8, "Tokens of the shortest answer.", least=1)
    policies: Sequence[str] = option(
        ("mean_field", "threshold", "klass", "fixed"),
        "Policies of requests, in turn (may be repeated).",
        "--policy",
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
    url: str | None = option(
        None, "A server of the same model that runs. [default: start one for the test]", metavar="URL"
    )
    max_batch_size: int | None = option(None, "Texts that the started server decodes together. [default: 8]")
    max_queue: int | None = option(None, "Texts that may wait in the started server. [default: 64]")
    compare: bool = option(
        True, "Compare each answer with the one that its request gets alone.", "--compare/--no-compare"
    )

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
