"""Where a server listens, how much it takes on, and the keys that it asks for.

Imports no package of the extra `serve`: flags show without it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from unmask.errors import UnmaskError, WrongOption
from unmask.options import check_bounds, option

KEY_VARIABLE = "UNMASK_API_KEY"
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://(\[[0-9a-f:]+\]|[a-z0-9.-]+)(:[0-9]+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Everything about a server that is not the model, the policy or the settings."""

    host: str = option("127.0.0.1", "Address to listen at; 0.0.0.0: every address of the machine.", metavar="ADDRESS")
    port: int = option(8000, "Port to listen at; 0: a free one.", least=0, most=65535)
    max_batch_size: int = option(8, "Texts decoded together.", least=1)
    max_queue: int = option(64, "Texts that may wait; while there are so many, a request gets 429.", least=1)
    max_body_bytes: int = option(4 * 2**20, "Largest request body.", least=1)
    max_prompt_tokens: int | None = option(None, "Longest prompt. [default: what the model has room for]", least=1)
    max_total_tokens: int | None = option(
        None, "Most tokens of one request: prompt and max_tokens, over all its texts. [default: no limit]", least=1
    )
    max_connections: int | None = option(None, "Open connections. [default: 1000, or what open files leave]", least=1)
    request_timeout_s: float = option(600.0, "Seconds for a request and its answer; 0: no limit.", within="[0, inf)")
    client_timeout_s: float = option(30.0, "Seconds for a client to send a request, or to read.", within="(0, inf)")
    served_model_name: str | None = option(None, "Name of the model for clients. [default: as loaded]")
    warmup_prompt_tokens: int | None = option(
        None, "Length of the prompts to warm up for, on CUDA; 0: do not. [default: 512, or what fits]", least=0
    )
    grace_s: float = option(30.0, "Seconds that requests have left when the server is told to stop.", within="[0, inf)")
    stall_s: float = option(120.0, "Seconds of work without a finished pass, until /health fails.", within="(0, inf)")
    watchdog_s: float = option(600.0, "The same, until the process ends with status 1; 0: never.", within="[0, inf)")
    access_log: bool = option(False, "Write a line on stderr for each request.")
    seed: int | None = option(
        None, "Seed of requests that give none. [default: 0, or a random one where the temperature is above 0]", least=0
    )
    cors_origin: Sequence[str] = option(
        (), "Origin whose pages may call the server, like https://example.com; *: all (may be repeated).", metavar="URL"
    )
    api_key_file: str | None = option(None, "File of API keys, one a line; # begins a comment.", metavar="FILE")
    max_requests_per_key: int | None = option(None, "POST requests of one key at a time; one more gets 429.", least=1)
    api_keys: Sequence[str] = field(default=(), repr=False)  # clients must send one of them; none: no key is needed

    def __post_init__(self) -> None:
        check_bounds(self)
        for name in ("host", "served_model_name", "api_key_file"):
            if getattr(self, name) == "":
                raise WrongOption(name, "must not be empty")
        if not (self.served_model_name or "").isprintable():
            raise WrongOption("served_model_name", f"must be printable, got {self.served_model_name!r}")
        for origin in self.cors_origin:
            if not _ORIGIN.fullmatch(origin):
                raise WrongOption("cors_origin", f"must be * or like https://example.com:8443, got {origin!r}")
        for key in self.api_keys:
            if not key or not key.isprintable() or key != key.strip():
                raise UnmaskError("the API key must be printable UTF-8, without white space at its ends")


def with_keys(config: ServerConfig, say: Callable[[str], None]) -> ServerConfig:
    """The config with the keys that clients may send; `say` gets a warning about a file that anyone can read."""
    key = os.environ.get(KEY_VARIABLE)
    if key == "":
        raise UnmaskError(f"{KEY_VARIABLE} is empty: give it a value, or unset it to serve without a key")
    found = [] if key is None else [key]
    if config.api_key_file is not None:
        found += _keys_in(Path(config.api_key_file), say)
    if config.max_requests_per_key is not None and not found:
        raise WrongOption("max_requests_per_key", f"needs keys: give --api-key-file, or set {KEY_VARIABLE}")
    return replace(config, api_keys=tuple(dict.fromkeys(found)))


def _keys_in(path: Path, say: Callable[[str], None]) -> list[str]:
    try:
        with path.open(encoding="utf-8") as file:
            mode, text = os.fstat(file.fileno()).st_mode, file.read()
    except OSError as error:
        raise UnmaskError(f"cannot read the API keys in {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UnmaskError(f"the file of API keys {path} is not UTF-8 text") from error
    keys = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if not keys:
        raise UnmaskError(f"the file of API keys {path} holds none; write one a line")
    if mode & stat.S_IROTH:
        say(f"everyone on this machine can read the API keys in {path}; chmod 600 keeps them secret")
    return keys
