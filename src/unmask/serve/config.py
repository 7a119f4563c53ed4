"""Where a server listens, and how much it takes on. Imports nothing of the extra, so that the flags can be shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from unmask.errors import UnmaskError


def _option(default: Any, about: str) -> Any:
    return field(default=default, metadata={"help": about})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Everything about a server that is not the model, the policy or the settings."""

    host: str = _option("127.0.0.1", "Address to listen at; 0.0.0.0: every address of the machine.")
    port: int = _option(8000, "Port to listen at; 0: a free one.")
    max_batch_size: int = _option(8, "Texts decoded together.")
    max_queue: int = _option(64, "Texts that may wait; a request beyond them gets 429.")
    max_body_bytes: int = _option(4 * 2**20, "Largest request body.")
    served_model_name: str | None = _option(None, "Name of the model for clients. [default: as loaded]")
    warmup_prompt_tokens: int | None = _option(
        None, "Length of the prompts to warm up for, on CUDA; 0: do not. [default: 512, or what fits]"
    )
    grace_s: float = _option(30.0, "Seconds that requests have left when the server is told to stop.")
    access_log: bool = _option(False, "Write a line on stderr for each request.")
    api_key: str | None = field(default=None, repr=False)  # what clients must show; None: nothing

    def __post_init__(self) -> None:
        least = {"max_batch_size": 1, "max_queue": 1, "max_body_bytes": 1, "warmup_prompt_tokens": 0}
        for name, low in least.items():
            if (value := getattr(self, name)) is not None and value < low:
                raise UnmaskError(f"{name} must be at least {low}, got {value}")
        if not 0.0 <= self.grace_s < float("inf"):
            raise UnmaskError(f"grace_s must be a number of at least 0, got {self.grace_s}")
        if not 0 <= self.port < 2**16:
            raise UnmaskError(f"port must be in [0, 65535], got {self.port}")
        for name in ("host", "served_model_name", "api_key"):
            if getattr(self, name) == "":
                raise UnmaskError(f"{name} must not be empty")
        if not (self.served_model_name or "").isprintable():
            raise UnmaskError(f"served_model_name must be printable, got {self.served_model_name!r}")
        key = self.api_key or ""
        if not key.isprintable() or key != key.strip():
            raise UnmaskError("the API key must be printable UTF-8, without white space at its ends")
