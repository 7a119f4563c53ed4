"""The API keys of a server: from the environment, and from a file. Imports no package of the extra `serve`."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from unmask.errors import UnmaskError, WrongOption
from unmask.serve.config import ServerConfig

VARIABLE = "UNMASK_API_KEY"


def with_keys(config: ServerConfig, say: Callable[[str], None]) -> ServerConfig:
    """The config with the keys that clients may send; `say` gets a warning about a file that anyone can read."""
    key = os.environ.get(VARIABLE)
    if key == "":
        raise UnmaskError(f"{VARIABLE} is empty: give it a value, or unset it to serve without a key")
    found = [] if key is None else [key]
    if config.api_key_file is not None:
        found += _read(Path(config.api_key_file), say)
    if config.max_requests_per_key is not None and not found:
        raise WrongOption("max_requests_per_key", f"needs keys: give --api-key-file, or set {VARIABLE}")
    return replace(config, api_keys=tuple(dict.fromkeys(found)))


def _read(path: Path, say: Callable[[str], None]) -> list[str]:
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
