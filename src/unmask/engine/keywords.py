"""The keywords of `generate`, `chat` and `infill`, so that type checkers and editors know them behind `**options`."""

from __future__ import annotations

from collections.abc import Callable

from unmask.engine.detail import Detail
from unmask.policies import Policy
from unmask.settings import Settings, SettingsFields
from unmask.types import Output, StepEvent


class Keywords(SettingsFields, total=False):
    """What the three take beside their first argument; `Generator.generate` says what each means."""

    policy: str | Policy | None
    settings: Settings | None
    trace: bool | Detail
    batch_size: int
    timed: bool
    on_step: Callable[[StepEvent], None] | None
    on_output: Callable[[Output], None] | None
