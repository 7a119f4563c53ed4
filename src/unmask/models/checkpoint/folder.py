"""The folder of a checkpoint: found by its name, downloaded from the hub if need be, and checked before it is read.

Data files only, never code. Downloading, caching and credentials are huggingface_hub's; here its many failures become
one line each.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from huggingface_hub import errors as hub_errors
from huggingface_hub import snapshot_download

from unmask.errors import CheckpointError, UnknownName, UnmaskError, one_line
from unmask.models.checkpoint.config import MOST_TEXT
from unmask.models.checkpoint.weights import files_of

TINY = Path(__file__).parents[1] / "tiny"
BUILT_IN = ("tiny", "toy")
DATA_FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]
_HUB_PAGE = re.compile(
    r"https?://(www\.)?(huggingface\.co|hf\.co)/(?P<name>[^/]+/[^/?#]+)(/(tree|blob|resolve)/(?P<revision>[^/?#]+))?"
)
_POINTER = b"version https://git-lfs.github.com/spec/"
_MOST_HEADER = 100_000_008  # bytes; safetensors refuses more
SAMPLES, SAMPLE_BYTES = 16, 64 * 1024
_TEXTS = ("config.json", "tokenizer.json", "tokenizer_config.json")  # what the weights mean, and what prompts become


def checkpoint_folder(
    name: str, *, revision: str | None = None, token: str | None = None, cache_dir: str | Path | None = None
) -> Path:
    """The folder of a checkpoint. The files of a hub name are downloaded if they are not cached."""
    path = TINY if name == "tiny" else Path(name).expanduser()
    if name == "tiny" and not (path / "config.json").exists():
        raise CheckpointError("the embedded model 'tiny' is not part of this installation; use 'toy' or a checkpoint")
    if path.is_file():
        raise CheckpointError(f"{name}: is a file; give the folder that holds it, with config.json beside it")
    if path.is_dir():
        if revision is not None:
            raise UnmaskError(f"revision={revision!r} applies to names on the hub, but {name!r} is a folder here")
        return _checked(path)
    if found := _HUB_PAGE.match(name):
        at = f" and the revision {found['revision']}" if found["revision"] else ""
        raise CheckpointError(f"{name}: is an address; give the name on the hub, {found['name']}{at}")
    if "://" in name:
        raise CheckpointError(f"{name}: is an address; give the name on the hub, OWNER/NAME")
    if path.is_absolute() or name.startswith((".", "~")) or len(path.parts) > 2:
        raise CheckpointError(f"{name}: there is no such folder")
    if near := get_close_matches(name, BUILT_IN, n=1, cutoff=0.7):
        raise UnknownName("model", name, [*near, "a folder", "a name on the hub"])
    return _checked(_download(name, revision, token=token, cache_dir=cache_dir))


def _checked(folder: Path) -> Path:
    """The folder, if reading its files ends (no pipe, no device, no text without bounds) and they were fetched."""
    try:
        for path in folder.iterdir():
            if not any(path.match(pattern) for pattern in DATA_FILES) or not path.exists():
                continue
            if not path.is_file():
                raise CheckpointError(f"{path}: is not a regular file")
            if path.suffix != ".safetensors" and path.stat().st_size > MOST_TEXT:
                raise CheckpointError(f"{path}: is larger than {MOST_TEXT // 2**20} MiB; only weights are")
            with path.open("rb") as file:
                if file.read(len(_POINTER)) == _POINTER:
                    way = f"run `git lfs pull` in {folder}, or load the name on the hub"
                    raise CheckpointError(f"{path}: is a Git LFS pointer, not the file itself; {way}")
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be read: {error.strerror or error}") from error
    return folder


def _download(name: str, revision: str | None, **access: Any) -> Path:
    """The folder with a hub checkpoint's files, downloaded if they are not cached."""
    # In folders of a repository lie other formats of the same weights.
    patterns: dict[str, Any] = {"allow_patterns": DATA_FILES, "ignore_patterns": "*/*"}
    try:
        return Path(snapshot_download(name, revision=revision, **patterns, **access))
    except Exception as error:  # network libraries differ between versions of the hub client
        raise CheckpointError(f"cannot load {name!r}: {_reason(error, revision)}") from error


def _reason(error: Exception, revision: str | None) -> str:
    match error:
        case hub_errors.HFValidationError():
            return "it is neither a folder here nor a possible name on the hub"
        case hub_errors.GatedRepoError():
            return "it is gated; accept its terms on its hub page, and set HF_TOKEN (in Python, token= does too)"
        case hub_errors.RepositoryNotFoundError():
            return "it is neither a folder here nor a repository on the hub that this token may read"
        case hub_errors.RevisionNotFoundError():
            return f"the repository has no revision {revision!r}"
        case hub_errors.OfflineModeIsEnabled() | hub_errors.LocalEntryNotFoundError():
            return "it is neither a folder here nor in the cache, and the hub cannot be reached (offline?)"
        case hub_errors.HfHubHTTPError():
            return f"the hub answered: {one_line(error)}"
        case _:
            return f"the download failed: {one_line(error)}"


def fingerprint(name: str, *, revision: str | None = None) -> str:
    """Which weights a result was made with, by the name that `unmask.load` takes: of another checkpoint, another hash.

    Config and tokenizer files are covered whole. Weights are not, so that 16 GB take no longer than 1 GB: the hash
    covers a file's size, its header and samples spread over the rest. A training step changes nearly all samples.
    """
    if name == "toy":  # made from a fixed seed
        return name
    folder, digest = checkpoint_folder(name, revision=revision), hashlib.blake2b(digest_size=12)
    texts = [folder / name for name in _TEXTS if (folder / name).exists()]
    for path in [*texts, *files_of(folder)]:
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        for part in [path.read_bytes()] if path in texts else _samples(path):
            digest.update(part)
    return digest.hexdigest()


def _samples(path: Path) -> Iterator[bytes]:
    """The header of a safetensors file, then pieces of its data, the last bytes among them."""
    size = path.stat().st_size
    with path.open("rb") as file:
        begin = min(8 + int.from_bytes(file.read(8), "little"), _MOST_HEADER)
        file.seek(0)
        yield file.read(begin)
        last = max(begin, size - SAMPLE_BYTES)
        for number in range(SAMPLES):
            file.seek(begin + (last - begin) * number // (SAMPLES - 1))
            yield file.read(SAMPLE_BYTES)
