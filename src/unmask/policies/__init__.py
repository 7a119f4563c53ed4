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
from unmask.policies.bound import Bound
from unmask.policies.certainty_prior import CertaintyPrior
from unmask.policies.context_threshold import ContextThreshold
from unmask.policies.credit import Credit
from unmask.policies.cumulative import Cumulative
from unmask.policies.dapd import Dapd
from unmask.policies.dawn import Dawn
from unmask.policies.eb import EB
from unmask.policies.entropy import Entropy
from unmask.policies.factor import Factor
from unmask.policies.fixed import Fixed
from unmask.policies.from_file import named
from unmask.policies.hierarchical import Hierarchical
from unmask.policies.joint import Joint
from unmask.policies.klass import Klass
from unmask.policies.local_leap import LocalLeap
from unmask.policies.margin import Margin
from unmask.policies.mean_field import MeanField
from unmask.policies.p2 import P2
from unmask.policies.position_entropy import PositionEntropy
from unmask.policies.presets import preset, preset_settings, resolve, resolve_settings
from unmask.policies.random import Random
from unmask.policies.remask import Remask
from unmask.policies.saber import Saber
from unmask.policies.threshold import Threshold
from unmask.policies.wino import Wino

__all__ = [
    "EB",
    "P2",
    "WHOLE_CANVAS",
    "Bound",
    "CertaintyPrior",
    "ContextThreshold",
    "Credit",
    "Cumulative",
    "Dapd",
    "Dawn",
    "Entropy",
    "Factor",
    "Fixed",
    "Hierarchical",
    "Joint",
    "Klass",
    "LocalLeap",
    "Margin",
    "MeanField",
    "Policy",
    "PositionEntropy",
    "Random",
    "Remask",
    "Saber",
    "Threshold",
    "Wino",
    "decide",
    "describe",
    "get",
    "is_pure",
    "joined_state",
    "most_commits",
    "name_of",
    "named",
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
