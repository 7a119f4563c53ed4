"""The paper's own numbers, and which cell they may stand beside: only one that ran the paper's protocol and setting.

Where the paper does not state a setting, the preset is taken for it; see `unmask.policies.presets`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from unmask.report.measured import Measured

ANSWER_TOKENS, BLOCK = 256, 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """What the paper prints for one cell; None where it prints nothing."""

    accuracy: float
    tokens_per_second: float
    passes: float | None = None
    printed_speedup: float | None = None
    baseline_tokens_per_second: float | None = None

    @property
    def speedup(self) -> float | None:
        """The ratio of the two TPS: several of the speed-ups as printed are something else."""
        return self.baseline_tokens_per_second and self.tokens_per_second / self.baseline_tokens_per_second


def main(cell: Measured) -> Printed | None:
    """The entry of the main table for that checkpoint, policy and benchmark."""
    values = _values()
    model = _named(cell.model, values["main"])
    row = values["main"].get(model, {}).get(cell.policy, {}).get(cell.cell.task)
    if row is None or not _may_stand_beside(cell) or not _is_preset(cell):
        return None
    baseline = values["main"][model]["entropy"][cell.cell.task]
    accuracy, speed, ratio = row
    return Printed(
        accuracy=accuracy, tokens_per_second=speed, printed_speedup=ratio, baseline_tokens_per_second=baseline[1]
    )


def ablation(cell: Measured, variant: str) -> Printed | None:
    """The entry of the ablation table: 'baseline', 'none', 'uniform', 'one_shot' or 'full'."""
    table = _values()["ablation"]
    own = {"none": {"interaction": "none"}, "uniform": {"interaction": "uniform"}, "one_shot": {"iterations": 1}}
    if not _is_of(cell, table) or not _is_variant(cell, variant, table["setting"] | own.get(variant, {})):
        return None
    accuracy, speed, passes = table["rows"][variant]
    base = table["rows"]["baseline"][1]
    return Printed(accuracy=accuracy, tokens_per_second=speed, passes=passes, baseline_tokens_per_second=base)


def sensitivity(cell: Measured, knob: str | None) -> Printed | None:
    """The entry of the sensitivity table at the cell's own value of the knob; its baseline where the knob is None."""
    table = _values()["sensitivity"]
    value = cell.cell.policy.get(knob) if knob else None
    row = table[knob].get(value) if knob else table["baseline"]
    variant, own = ("full", {knob: value}) if knob else ("baseline", {})
    if row is None or not _is_of(cell, table) or not _is_variant(cell, variant, table["setting"] | own):
        return None
    accuracy, speed, ratio, passes = row
    return Printed(
        accuracy=accuracy,
        tokens_per_second=speed,
        passes=passes,
        printed_speedup=ratio,
        baseline_tokens_per_second=table["baseline"][1],
    )


def _may_stand_beside(cell: Measured) -> bool:
    return cell.cell.paper and cell.cell.settings.get("max_tokens") == ANSWER_TOKENS


def _is_of(cell: Measured, table: dict[str, Any]) -> bool:
    model = _named(cell.model, [table["model"]])
    return _may_stand_beside(cell) and model is not None and cell.cell.task == table["task"]


def _is_preset(cell: Measured) -> bool:
    """Whether policy and settings are as published for that checkpoint and task."""
    from unmask import policies

    preset = policies.preset(cell.policy, cell.model, cell.cell.task)
    wanted = {"block_size": BLOCK} | policies.preset_settings(cell.policy, cell.model, cell.cell.task)
    return cell.cell.policy == policies.describe(preset) and _agrees(cell, wanted)


def _is_variant(cell: Measured, variant: str, setting: dict[str, Any]) -> bool:
    """Whether it is the baseline as published, or mean-field with these parameters and nothing else changed."""
    if variant == "baseline":
        return cell.policy == "entropy" and _is_preset(cell)
    from unmask import policies

    own = {key: value for key, value in setting.items() if key != "block_size"}
    wanted = policies.describe(policies.get("mean_field", **own))
    return cell.cell.policy == wanted and _agrees(cell, {"block_size": setting["block_size"]})


def _agrees(cell: Measured, wanted: dict[str, Any]) -> bool:
    plain = {"temperature": 0.0, "top_p": 1.0} | wanted
    return all(cell.cell.settings.get(key) == value for key, value in plain.items())


def _named(model: str, known: Any) -> str | None:
    """The paper's name of a checkpoint, whichever way its letters are written."""
    return next((name for name in known if name.lower() == model.lower()), None)


@cache
def _values() -> dict[str, Any]:
    return yaml.safe_load(Path(__file__).with_name("paper.yaml").read_text(encoding="utf-8"))
