"""Checkpoints by their name on the Hugging Face hub: data files only, never code.

Downloading, caching and credentials are huggingface_hub's; here its many failures become one line each.
"""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from unmask.errors import CheckpointError

DATA_FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]
_SUBFOLDERS = "*/*"  # other formats of the same weights lie there


def download(name: str, *, revision: str | None, token: str | None, cache_dir: str | Path | None) -> Path:
    """The folder with a hub checkpoint's files, downloaded if they are not cached."""
    try:
        folder = snapshot_download(
            name,
            revision=revision,
            token=token,
            cache_dir=cache_dir,
            allow_patterns=DATA_FILES,
            ignore_patterns=_SUBFOLDERS,
        )
    except Exception as error:  # network libraries differ between versions of the hub client
        raise CheckpointError(f"cannot load {name!r}: {_reason(error, revision)}") from error
    return Path(folder)


def _reason(error: Exception, revision: str | None) -> str:
    match error:
        case HFValidationError():
            return "it is neither a folder here nor a possible name on the hub"
        case GatedRepoError():
            return "it is gated; accept its terms on its hub page, and set HF_TOKEN (in Python, token= does too)"
        case RepositoryNotFoundError():
            return "it is neither a folder here nor a repository on the hub that this token may read"
        case RevisionNotFoundError():
            return f"the repository has no revision {revision!r}"
        case OfflineModeIsEnabled() | LocalEntryNotFoundError():
            return "it is neither a folder here nor in the cache, and the hub cannot be reached (offline?)"
        case HfHubHTTPError():
            return f"the hub answered: {_first_line(error)}"
        case _:
            return f"the download failed: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
