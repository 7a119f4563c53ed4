"""What is measured: a cell is one model, policy, settings and task; its result is one generation per item, scored.

These are the records that the files of a run hold; see `store.py` for where they lie. Beside the cell, its answers
depend on the weights, on the code that decodes and scores, and on the questions. Every cell.json notes a digest of
each, so that a change shows: items that differ in one of them never meet in a cell. Times depend on the device, the
threads and the versions as well.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from unmask import __version__, policies
from unmask.policies import Policy
from unmask.settings import Settings

PACKAGE = Path(__file__).parents[1]
FOLDERS = ("rules", "policies", "engine", "models", "cache", "tasks", "evals")  # with the code that answers depend on
SCHEMA = "unmask.eval/1"
TABLES = ("main", "ablation", "sensitivity", "blocks", "curves", "lengths", "speed", "weights")  # a run is for one


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What cells need to know of a loaded model."""

    family: str  # 'llada' or 'dream'
    preset: str  # the name under which presets know it
    dtype: str
    device: str  # type only
    recommended: dict[str, Any] = field(default_factory=dict)  # settings that go with the checkpoint
    device_name: str = ""
    threads: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of a table, with every default filled in: equal cells ask for the same measurement."""

    model: str  # as the recipe names it
    family: str  # 'llada' or 'dream'
    policy: dict[str, Any]  # {'name': ..., and every parameter}
    settings: dict[str, Any]  # every field of Settings, save those that are left out (LATER in recipe.py)
    task: str
    shots: int | None = None  # None: the task has none
    template: str = "none"  # 'chat' (one user message) or 'none'
    items: int = 0  # how many are asked for, after the limit
    seed: int = 0  # of the items, where they are drawn
    batch_size: int = 1
    dtype: str = "float32"
    device: str = "cpu"  # type only
    headline: str = "correct"  # the score that tables show; `scores` of an item may have more
    paper: bool = False  # whether the protocol is the paper's, so that a table may print the paper's values beside it

    @property
    def key(self) -> str:
        """A readable folder name that is the same for the same cell and different for any other."""
        digest = hashlib.blake2b(json.dumps(asdict(self), sort_keys=True).encode(), digest_size=5).hexdigest()
        words = f"{self.model.rstrip('/').rsplit('/', 1)[-1]}-{self.task}-{self.policy['name']}"
        return "".join(c if c.isalnum() or c in "-_." else "-" for c in words) + f"-{digest}"

    def decoding(self) -> tuple[Policy, Settings]:
        """Policy and settings, as objects."""
        return policies.get(**self.policy), Settings.from_dict(self.settings)

    def label(self) -> str:
        """The policy, and its parameters that are not at their defaults."""
        policy, _ = self.decoding()
        defaults = {item.name: item.default for item in fields(policy)} if is_dataclass(policy) else {}
        changed = [f"{key}={self.policy[key]}" for key, value in defaults.items() if self.policy[key] != value]
        return f"{self.policy['name']} ({', '.join(changed)})" if changed else self.policy["name"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One finished item."""

    id: int  # its number within the task
    prompt: str
    text: str  # what is scored: after the cuts of the protocol
    token_ids: list[int] = field(default_factory=list)  # everything decoded
    tokens_reference: int = 0  # counted as the public wrapper of the family counts
    tokens_answer: int = 0  # up to the first end of text or stop string
    passes: int
    seconds: dict[str, float]  # 'model', 'policy', 'rest'; in a batch, the row's share
    truncated: bool = False  # shots or text were left out to fit the model
    refreshes: int | None = None  # passes that renewed a cache; None: not counted
    note: dict[str, Any] = field(default_factory=dict)  # task-specific, e.g. the kind of item


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
