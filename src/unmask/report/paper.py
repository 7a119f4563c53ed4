"""The paper's own numbers, and which cell they may stand beside: only one that ran the paper's protocol and setting.

Where the paper does not state a setting, the preset is taken for it; see `unmask.policies.presets`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from unmask import policies
from unmask.report.measured import Measured

SETTINGS = {"max_tokens": 256, "block_size": 32, "temperature": 0.0, "top_p": 1.0}


class Printed(NamedTuple):
    """What the paper prints for one cell; None where it prints nothing."""

    accuracy: float
    tokens_per_second: float
    printed_speedup: float | None
    passes: float | None
    baseline_tokens_per_second: float

    @property
    def speedup(self) -> float:
        """The ratio of the two TPS: several of the printed speed-ups differ from it."""
        return self.tokens_per_second / self.baseline_tokens_per_second


def main(cell: Measured) -> Printed | None:
    """The entry of the main table for that checkpoint, policy and benchmark."""
    # A checkpoint's name may differ from the paper's in upper and lower case.
    tasks = next((rows for name, rows in values()["main"].items() if name.lower() == cell.model.lower()), {})
    row = tasks.get(cell.policy, {}).get(cell.cell.task)
    return Printed(*row, None, tasks["entropy"][cell.cell.task][1]) if row and _is_preset(cell) else None


def study(kind: str, cell: Measured, knob: str | None = None) -> Printed | None:
    """The entry of the table 'ablation' or 'sensitivity'; with a knob, among the rows that turn it."""
    table = values()[kind]
    if (cell.model.lower(), cell.cell.task) != (table["model"].lower(), table["task"]):
        return None
    baseline = table["baseline"]
    if cell.policy == "entropy" and _is_preset(cell):
        return Printed(*baseline, baseline[1])
    for changed, *row in table["rows"]:
        own = table["setting"] | changed
        settings = {"block_size": own.pop("block_size")}
        if (knob is None or knob in changed) and _ran(cell, policies.get("mean_field", **own), settings):
            return Printed(*row, baseline[1])
    return None


def _is_preset(cell: Measured) -> bool:
    """Whether policy and settings are as published for that checkpoint and task."""
    asked = cell.policy, cell.model, cell.cell.task
    return _ran(cell, policies.preset(*asked), policies.preset_settings(*asked))


def _ran(cell: Measured, policy: Any, settings: dict[str, Any]) -> bool:
    """Whether the cell ran the paper's protocol with that policy and these settings."""
    same = cell.cell.policy == policies.describe(policy)
    return same and cell.cell.paper and (SETTINGS | settings).items() <= cell.cell.settings.items()


@cache
def values() -> dict[str, Any]:
    """The paper's numbers, from the file beside this one."""
    return yaml.safe_load(Path(__file__).with_name("paper.yaml").read_text(encoding="utf-8"))
