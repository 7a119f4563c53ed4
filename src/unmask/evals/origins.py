"""What an answer comes from besides the cell: digests of the code that decodes and scores, and of the questions."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from unmask.policies import Policy

PACKAGE = Path(__file__).parents[1]
FOLDERS = ("rules", "policies", "engine", "models", "cache", "tasks", "evals/lm_tasks")
# What stands between a benchmark's record and its score; the rest of this folder keeps books.
FILES = ("prompts.py", "language_model.py", "answers.py", "code_answers.py", "tiny_suite.py")


def code_digest(policy: Policy) -> str:
    """Of our own source, and of a policy's where it is not ours."""
    places = {_place_of(cls) for cls in type(policy).__mro__ if _is_foreign(cls)}
    return _digest_of_code(tuple(sorted(place for place in places if place)))


def records_digest(records: Iterable[Any]) -> str:
    """Of plain data; what JSON has no form for counts by its text, without where it lies in memory."""
    digest = hashlib.blake2b(digest_size=12)
    for record in records:
        digest.update(json.dumps(record, sort_keys=True, default=_text).encode() + b"\n")
    return digest.hexdigest()


def _text(value: Any) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


@cache
def _digest_of_code(foreign: tuple[str, ...]) -> str:
    """Kept: a process goes on with the code that it began with."""
    ours = [path for name in FOLDERS for path in (PACKAGE / name).rglob("*") if path.suffix in (".py", ".yaml")]
    ours += [PACKAGE / "evals" / name for name in FILES]
    digest = hashlib.blake2b(digest_size=12)
    for path in sorted(ours):
        _add(digest, path, path.relative_to(PACKAGE))
    for place in map(Path, foreign):
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            _add(digest, path, path.relative_to(place.parent))
    return digest.hexdigest()


def _add(digest: Any, path: Path, name: Path) -> None:
    content = path.read_bytes()
    digest.update(f"{name.as_posix()} {len(content)}\n".encode() + content)


def _is_foreign(cls: type) -> bool:
    root = cls.__module__.partition(".")[0]
    return root != "unmask" and root not in sys.stdlib_module_names


def _place_of(cls: type) -> str | None:
    """The folder of the class's package, which may lend it a hand; its file where it has no package."""
    module = sys.modules.get(cls.__module__)
    if module is None or getattr(module, "__file__", None) is None:
        return None
    file = Path(str(module.__file__))
    return str(file.parent if module.__package__ else file)
