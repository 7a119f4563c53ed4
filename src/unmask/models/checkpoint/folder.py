"""The folder of a checkpoint: found by its name, downloaded if need be, checked, and its tensors copied into a model.

Data files only, never code; of weights only safetensors, because unpickling runs code. Their headers are read first, so
that a damaged or foreign checkpoint is refused before memory is taken. Then every tensor is copied straight to its
place. Downloading, caching and credentials are huggingface_hub's; here its many failures become one line each. Knows
nothing of families.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from difflib import get_close_matches
from math import prod
from os.path import isfile  # unlike Path's, false for a name that no file can have
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub import errors as hub_errors
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from torch import Tensor

from unmask.errors import CheckpointError, OutOfMemory, UnknownName, UnmaskError, one_line
from unmask.models.checkpoint.config import MOST_TEXT, Config

TINY = Path(__file__).parents[1] / "tiny"
BUILT_IN = ("tiny", "toy")
DATA_FILES = ["*.json", "*.safetensors", "*.txt", "*.jinja", "*.model"]
_POINTER = b"version https://git-lfs.github.com/spec/"
_MOST_HEADER = 100_000_008  # bytes; safetensors refuses more
SAMPLES, SAMPLE_BYTES = 16, 64 * 1024
_INDEX = "model.safetensors.index.json"
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
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
        case hub_errors.GatedRepoError():
            return "it is gated; accept its terms on its hub page, and set HF_TOKEN (in Python, token= does too)"
        case hub_errors.HFValidationError() | hub_errors.RepositoryNotFoundError():
            return "it is neither a folder here nor a repository on the hub that this token may read"
        case hub_errors.RevisionNotFoundError():
            return f"the repository has no revision {revision!r}"
        case hub_errors.OfflineModeIsEnabled() | hub_errors.LocalEntryNotFoundError():
            return "it is neither a folder here nor in the cache, and the hub cannot be reached (offline?)"
        case _:
            return f"the download failed: {one_line(error)}"


class Stored(NamedTuple):
    """A tensor that lies in a file."""

    file: Any  # as safe_open gives it
    shape: tuple[int, ...]
    dtype: torch.dtype
    nbytes: int


class Weights:
    """Everything stored in a folder, by name. Files stay open, and are mapped into memory."""

    def __init__(self, folder: Path, on_bytes: Callable[[int, int], None]) -> None:
        self.folder, self.on_bytes = folder, on_bytes
        self.stored = {name: entry for path in files_of(folder) for name, entry in _header(path)}
        self._read, self._total = 0, sum(entry.nbytes for entry in self.stored.values())

    def dtype(self) -> torch.dtype:
        """The dtype of the largest tensor."""
        return max(self.stored.values(), key=lambda entry: entry.nbytes).dtype

    def check(self, slots: Mapping[str, Tensor]) -> None:
        """Refuse a checkpoint that does not hold exactly the tensors that the model has."""
        if missing := slots.keys() - self.stored.keys():
            raise CheckpointError(f"{self.folder}: {_listed(missing)} missing from the checkpoint")
        if unexpected := self.stored.keys() - slots.keys():
            raise CheckpointError(f"{self.folder}: {_listed(unexpected)} not part of this model")
        for name, slot in slots.items():
            found, wanted = self.stored[name].shape, tuple(slot.shape)
            if found != wanted:
                raise CheckpointError(f"{self.folder}: tensor {name} has shape {found}, the config asks for {wanted}")

    @torch.no_grad()
    def fill(self, slots: Mapping[str, Tensor]) -> None:
        """Copy every tensor to its place, converting dtype and device on the way; `on_bytes` hears of each."""
        for name, slot in slots.items():
            slot.copy_(self.stored[name].file.get_tensor(name))
            self._read += self.stored[name].nbytes
            self.on_bytes(self._read, self._total)


def files_of(folder: Path) -> list[Path]:
    """The safetensors files that make up the checkpoint."""
    if (folder / _INDEX).exists():
        return _shards(folder)
    if (folder / "model.safetensors").exists():
        return [folder / "model.safetensors"]
    if pickles := sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern)):
        raise CheckpointError(
            f"{folder}: {pickles[0]} is a pickle, and reading one can run any code; convert it where you trust it: "
            "safetensors.torch.save_file(torch.load(path, weights_only=True), 'model.safetensors')"
        )
    raise CheckpointError(f"{folder}: there is no model.safetensors and no {_INDEX}")


def _shards(folder: Path) -> list[Path]:
    index = Config.read(folder / _INDEX).get("weight_map")
    if not isinstance(index, dict) or not index or not all(isinstance(name, str) for name in index.values()):
        raise CheckpointError(f"{folder / _INDEX}: weight_map must say for each tensor which file holds it")
    names = sorted(set(index.values()))
    if outside := [name for name in names if Path(name).name != name]:
        raise CheckpointError(f"{folder / _INDEX}: {outside[0]!r} is not the name of a file in this folder")
    if missing := [name for name in names if not isfile(folder / name)]:
        raise CheckpointError(f"{folder}: {_listed(missing, 'file')} missing: the download is incomplete")
    return [folder / name for name in names]


def _header(path: Path) -> Iterator[tuple[str, Stored]]:
    try:
        file: Any = safe_open(str(path), framework="pt")
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: is damaged or not a safetensors file: {one_line(error)}") from error
    except MemoryError as error:
        size = f"{path.stat().st_size / 2**30:.2f} GiB"
        raise OutOfMemory(f"{path}: {size} cannot be mapped into memory; use a checkpoint in smaller files") from error
    for name in file.keys():  # noqa: SIM118  (not a mapping)
        part = file.get_slice(name)
        dtype = _DTYPES.get(part.get_dtype())
        if dtype is None:
            quantised = f"tensor {name} is {part.get_dtype()}; quantised checkpoints are not supported"
            raise CheckpointError(f"{path}: {quantised}")
        shape = tuple(part.get_shape())
        yield name, Stored(file, shape, dtype, nbytes=prod(shape) * dtype.itemsize)


def _listed(names: Iterable[str], kind: str = "tensor") -> str:
    """The first of the names and how many more, with the verb."""
    first, *more = sorted(names)
    return f"{kind}s {first:.200} and {len(more)} more are" if more else f"{kind} {first:.200} is"


def fingerprint(name: str, *, revision: str | None = None) -> str:
    """Which weights a result was made with, by the name that `unmask.load` takes: of another checkpoint, another hash.

    Config and tokenizer files are covered whole. Weights are not, so that 16 GB take no longer than 1 GB: a training
    step changes nearly all samples.
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
