"""What is measured: a cell is one model, policy, settings and task; its result is one generation per item, scored.

These are the records that the files of a run hold; see `store.py` for where they lie.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from unmask.settings import Settings

if TYPE_CHECKING:
    from unmask.policies import Policy

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
        from unmask import policies  # brings torch, which a report does without

        return policies.get(**self.policy), Settings.from_dict(self.settings)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


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
