"""What the answers of a cell depend on beside the cell itself. Every cell.json notes it, so that a change shows.

A digest stands for the weights, the code that decodes and scores, and the questions. Items that differ in one of them
never meet in a cell. Times depend on the device, the threads and the versions as well.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from unmask import __version__
from unmask.policies import Policy

PACKAGE = Path(__file__).parents[1]
FOLDERS = ("rules", "policies", "engine", "models", "cache", "tasks", "evals")


@cache
def code_digest(policy: type[Policy], package: Path = PACKAGE) -> str:
    """The digest of our own source, and of a policy's source where the policy is not ours.

    Cached, because a process goes on with the code that it began with.
    """
    ours = {path for name in FOLDERS for path in (package / name).rglob("*") if path.suffix in (".py", ".yaml")}
    foreign = [path for cls in policy.__mro__ for path in _source_of(cls)]
    return records_digest([path.name, path.read_text(encoding="utf-8")] for path in sorted({*ours, *foreign}))


def records_digest(records: Iterable[Any]) -> str:
    """The digest of plain data; a value that JSON cannot hold counts by its text, without its address in memory."""
    digest = hashlib.blake2b(digest_size=12)
    for record in records:
        plain = json.dumps(record, sort_keys=True, default=lambda value: re.sub(r" at 0x[0-9a-f]+", "", str(value)))
        digest.update(plain.encode() + b"\n")
    return digest.hexdigest()


def _source_of(cls: type) -> list[Path]:
    """The files of a foreign class's package, which it may use; its own file where it has no package."""
    root, module = cls.__module__.partition(".")[0], sys.modules.get(cls.__module__)
    file = getattr(module, "__file__", None)
    if file is None or root == "unmask" or root in sys.stdlib_module_names:
        return []
    return [*Path(file).parent.rglob("*.py")] if getattr(module, "__package__", "") else [Path(file)]


@cache
def versions() -> dict[str, str]:
    """The versions of Python and of the packages that the numbers depend on, as far as they are installed."""
    found = {"python": platform.python_version(), "unmask": __version__, "torch": torch.__version__}
    for name in ("lm_eval", "math-verify"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found
