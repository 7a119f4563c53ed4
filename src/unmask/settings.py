"""How to decode, apart from the policy: the same fields in Python and on the command line.

Knows nothing of torch, so that the command line can show its flags at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from math import inf
from typing import Any, TypedDict, Unpack

from unmask.errors import WrongOption, check_known
from unmask.options import check_bounds, documented, option

CACHES = ("none", "prefix", "dual", "exact")
MOST_GUIDANCE = 1000  # beyond it, logits overflow
_LEAST_TEMPERATURE = 1e-30  # divided by less, logits overflow


class SettingsFields(TypedDict, total=False):
    """The fields of `Settings` as keywords of a call, so that type checkers and editors know them."""

    max_tokens: int | None
    block_size: int | None
    sliding: float
    verify: int
    temperature: float
    top_p: float
    top_k: int
    seed: int
    cache: str | None
    refresh: str
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    early_stop: bool
    cfg_scale: float
    suppress_mask_token: bool
    logits_eos_inf: bool
    confidence_eos_eot_inf: bool
    reference_dtype: bool


@documented
@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything about one generation that is not the model, the prompt or the policy."""

    max_tokens: int | None = option(None, "Tokens to generate; default: the checkpoint's, else 256.", least=1)
    block_size: int | None = option(
        None, "Positions per block; default: the checkpoint's, else the policy's, else 32.", least=1
    )
    sliding: float = option(
        1.0,
        "Keep two blocks open, and open one more when this share of the newest is committed; 1: one after another.",
        within="(0, 1]",
    )
    verify: int = option(
        0,
        "Guesses of coming states that each pass predicts beside the row; a guess that comes true saves a pass."
        " The tokens stay the same.",
        least=0,
        most=16,
    )
    temperature: float = option(0.0, "0 takes the likeliest token; above 0 draws one.", within="[0, inf)")
    top_p: float = option(1.0, "Draw from the likeliest tokens that hold this much probability.", within="(0, 1]")
    top_k: int = option(0, "Draw from this many likeliest tokens; 0: all.", least=0)
    seed: int = option(0, "Seed of every draw; each prompt of a batch starts from it.", least=0, most=2**63 - 1)
    cache: str | None = option(
        None,
        "Keys and values reused between passes: none, prefix, dual or exact; default: exact for block-causal models.",
        choices=CACHES,
    )
    refresh: str = option(
        "block",
        "When a cache is recomputed: block, blocks:N for every N blocks, or drift:X when states have moved by X.",
        metavar="WHEN",
    )
    stop: Sequence[str] = option((), "Cut the text before this string (may be repeated).", metavar="TEXT")
    stop_token_ids: Sequence[int] = option((), "Cut the text before this token id (may be repeated).", least=0)
    early_stop: bool = option(False, "Stop decoding after the block in which the text ends.")
    cfg_scale: float = option(0.0, "Classifier-free guidance; 0: off.", within=f"[0, {MOST_GUIDANCE}]")
    suppress_mask_token: bool = option(True, "Never propose the mask token.")
    logits_eos_inf: bool = option(False, "Never propose the end-of-text token.")
    confidence_eos_eot_inf: bool = option(False, "Commit end-of-text and end-of-turn last.")
    reference_dtype: bool = option(
        False, "Score in the dtype of the public code: float64 for LLaDA, the model's for Dream."
    )

    def __post_init__(self) -> None:
        for name in ("stop", "stop_token_ids"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Sequence):
                raise WrongOption(name, f"must be a list, got {value!r}")
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value or ()))
        check_bounds(self)
        if 0.0 < self.temperature < _LEAST_TEMPERATURE:
            raise WrongOption("temperature", f"must be 0 or at least {_LEAST_TEMPERATURE}, got {self.temperature!r}")
        self.refresh_rule()  # raises on a malformed value
        for text in self.stop:
            if not (isinstance(text, str) and text):
                raise WrongOption("stop", f"must hold strings that are not empty, got {text!r:.80}")

    def refresh_rule(self) -> tuple[int | None, float | None]:
        """How many blocks one refresh of the cache serves, or None; how far states may drift (1 - cosine), or None."""
        if self.refresh == "block":
            return 1, None
        kind, _, value = str(self.refresh).partition(":")
        with suppress(ValueError):
            if kind == "blocks" and value.isdecimal() and 1 <= int(value) < 10**9:
                return int(value), None
            if kind == "drift" and 0.0 < float(value) < inf:
                return None, float(value)
        forms = "'block' or 'blocks:N' with N of at least 1, or 'drift:X' with X above 0"
        raise WrongOption("refresh", f"must be {forms}, got {self.refresh!r:.80}")

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Settings:
        """Settings from plain data; an unknown key is an error with a near match."""
        check_known("setting", values, [item.name for item in fields(cls)])
        return cls(**values)

    def with_(self, **changes: Unpack[SettingsFields]) -> Settings:
        """These settings with some fields changed."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as JSON and YAML know it."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(self).items()}
