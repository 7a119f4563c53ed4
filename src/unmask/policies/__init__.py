"""Which positions to commit after a forward pass: one algorithm, one file, one frozen dataclass of parameters."""

from unmask.policies.base import (
    WHOLE_CANVAS,
    Policy,
    decide,
    describe,
    get,
    is_pure,
    joined_state,
    most_commits,
    name_of,
    names,
    needs_of,
    owner_of,
    register,
    remasks,
    state_of,
    with_progress,
)
from unmask.policies.cumulative import Cumulative
from unmask.policies.dapd import Dapd
from unmask.policies.dawn import Dawn
from unmask.policies.eb import EB
from unmask.policies.entropy import Entropy
from unmask.policies.factor import Factor
from unmask.policies.fixed import Fixed
from unmask.policies.klass import Klass
from unmask.policies.local_leap import LocalLeap
from unmask.policies.margin import Margin
from unmask.policies.mean_field import MeanField
from unmask.policies.presets import preset, preset_settings, resolve, resolve_settings
from unmask.policies.random import Random
from unmask.policies.threshold import Threshold
from unmask.policies.wino import Wino

__all__ = [
    "EB",
    "WHOLE_CANVAS",
    "Cumulative",
    "Dapd",
    "Dawn",
    "Entropy",
    "Factor",
    "Fixed",
    "Klass",
    "LocalLeap",
    "Margin",
    "MeanField",
    "Policy",
    "Random",
    "Threshold",
    "Wino",
    "decide",
    "describe",
    "get",
    "is_pure",
    "joined_state",
    "most_commits",
    "name_of",
    "names",
    "needs_of",
    "owner_of",
    "preset",
    "preset_settings",
    "register",
    "remasks",
    "resolve",
    "resolve_settings",
    "state_of",
    "with_progress",
]
