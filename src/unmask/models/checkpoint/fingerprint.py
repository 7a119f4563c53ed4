"""Which weights a result was made with: a short hash that differs for another checkpoint under the same name.

Weights are not read whole, so that 16 GB take no longer than 1 GB. Of a file with weights the hash covers the size, the
header (names, types and places of the tensors) and samples spread evenly over the rest. A training step changes nearly
all samples. Config and tokenizer files are covered whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from unmask.models.checkpoint.loading import checkpoint_folder
from unmask.models.checkpoint.weights import files_of

TOY = "toy"  # made from a fixed seed
_MOST_HEADER = 100_000_008  # bytes; safetensors refuses more
SAMPLES, SAMPLE_BYTES = 16, 64 * 1024
_TEXTS = ("config.json", "tokenizer.json", "tokenizer_config.json")  # what the weights mean, and what prompts become


def fingerprint(name: str, *, revision: str | None = None) -> str:
    """The fingerprint of a model, by the name that `unmask.load` takes."""
    if name == "toy":
        return TOY
    folder, digest = checkpoint_folder(name, revision=revision), hashlib.blake2b(digest_size=12)

    def add(path: Path, parts: Iterable[bytes]) -> None:
        digest.update(f"{path.name} {path.stat().st_size}\n".encode())
        for part in parts:
            digest.update(part)

    for path in (folder / name for name in _TEXTS):
        if path.exists():
            add(path, [path.read_bytes()])
    for path in files_of(folder):
        add(path, _samples(path))
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
