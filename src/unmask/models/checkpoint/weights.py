"""The tensors of a checkpoint folder: finding them, checking them and copying them into a model.

Safetensors only, because unpickling runs code. Headers are read first, so that a damaged or foreign checkpoint is
refused before memory is taken. Then every tensor is copied straight to its place. Knows nothing of families.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from os.path import isfile  # unlike Path's, false for a name that no file can have
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from unmask.errors import CheckpointError, OutOfMemory, one_line
from unmask.models.checkpoint.config import Config

_INDEX = "model.safetensors.index.json"
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A tensor that lies in a file."""

    path: Path
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class Weights:
    """Everything stored in a folder, by name. One file at a time is open, and mapped into memory."""

    def __init__(self, folder: Path, on_bytes: Callable[[int, int], None]) -> None:
        self.folder, self.on_bytes = folder, on_bytes
        self.stored = {name: entry for path in files_of(folder) for name, entry in _header(path)}
        self._read, self._total = 0, sum(entry.nbytes for entry in self.stored.values())

    def dtype(self) -> torch.dtype:
        """The dtype of most numbers."""
        sizes: Counter[torch.dtype] = Counter()
        for entry in self.stored.values():
            sizes[entry.dtype] += prod(entry.shape)
        return max(sizes, key=sizes.__getitem__, default=torch.float32)

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
        for path in sorted({self.stored[name].path for name in slots}):
            with _opened(path) as file:
                for name, slot in slots.items():
                    if self.stored[name].path == path:
                        slot.copy_(file.get_tensor(name))
                        self._read += self.stored[name].nbytes
                        self.on_bytes(self._read, self._total)


def files_of(folder: Path) -> list[Path]:
    """The safetensors files that make up the checkpoint."""
    if (folder / _INDEX).exists():
        return _shards(folder)
    if (folder / "model.safetensors").exists():
        return [folder / "model.safetensors"]
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found
    if found:
        problem = f"there are {len(found)} safetensors files but no {_INDEX} to say how they belong together"
        raise CheckpointError(f"{folder}: {problem}")
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
    with _opened(path) as file:
        for name in file.keys():  # noqa: SIM118  (not a mapping)
            part = file.get_slice(name)
            dtype = _DTYPES.get(part.get_dtype())
            if dtype is None:
                problem = f"tensor {name} is {part.get_dtype()}; quantised checkpoints are not supported"
                raise CheckpointError(f"{path}: {problem}")
            yield name, Stored(path=path, shape=tuple(part.get_shape()), dtype=dtype)


@contextmanager
def _opened(path: Path) -> Generator[Any]:
    try:
        with safe_open(str(path), framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: is damaged or not a safetensors file: {one_line(error)}") from error
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "unable to mmap" not in str(error):  # torch maps the file once more
            raise
        size = f"{path.stat().st_size / 2**30:.2f} GiB"
        raise OutOfMemory(f"{path}: {size} cannot be mapped into memory; use a checkpoint in smaller files") from error


def _listed(names: Iterable[str], kind: str = "tensor") -> str:
    """The first of the names and how many more, with the verb."""
    first, *more = sorted(names)
    return f"{kind}s {first:.200} and {len(more)} more are" if more else f"{kind} {first:.200} is"
