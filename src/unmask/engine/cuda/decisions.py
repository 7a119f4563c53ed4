"""Decisions captured as CUDA graphs: the dozens of small launches between a prediction and the host's read become one.

Captured decisions live as long as the generator's storage pool, and serve every generation with the same policy and
settings.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from unmask import policies
from unmask.cache.storage import StoragePool
from unmask.engine.commit import Decided
from unmask.engine.plan import Plan
from unmask.engine.rows import Group
from unmask.engine.runner import Runner
from unmask.engine.window import Pass, Window
from unmask.models.base import Prediction
from unmask.models.kernels.graphs import Graphs, Run
from unmask.rules.kernels import serves

_MOST = 4  # policies whose graphs are kept
_SHAPES = 16  # shapes of each: a graph holds a copy of its logits, or keeps alive the logits that it reads in place
_LOOKING = Lock()
_KEPT: WeakKeyDictionary[StoragePool, OrderedDict[Any, Decisions]] = WeakKeyDictionary()


def forget_decisions(pool: StoragePool) -> None:
    """Drop the decisions captured for generations with this pool."""
    with _LOOKING:
        _KEPT.pop(pool, None)


def kept_for(pool: StoragePool) -> list[Decisions]:
    """The decisions captured for generations with this pool, the latest to be used last."""
    with _LOOKING:
        return list(_KEPT.get(pool, {}).values())


class Decisions:
    """The graphs for one policy."""

    def __init__(self) -> None:
        self.graphs = Graphs(after=2, pads=True, steady=(3, 4, 5, 6, 7), most=_SHAPES)
        self._lock = Lock()

    @classmethod
    def of(cls, pool: StoragePool, plan: Plan) -> Decisions:
        """The captured decisions for the plan's policy and settings, none at first."""
        with _LOOKING:
            kept, key = _KEPT.setdefault(pool, OrderedDict()), (plan.spec, plan.policy, plan.decision_settings)
            found = kept.setdefault(key, cls())
            kept.move_to_end(key)
            if len(kept) > _MOST:
                kept.popitem(last=False)
            return found

    def __call__(self, runner: Runner, group: Group, done: Pass) -> Decided:
        """What comes of the decision: copies, which the next call leaves alone."""
        # A graph has its logits to itself, so a captured decision may write to them.
        decide, inputs, flags = decision_of(runner, group, done, own=torch.cuda.is_current_stream_capturing)
        # Logits that the model always leaves in the same place are read there.
        home = inputs[0].data_ptr() if done.prediction.fleeting else None
        with self._lock:
            at_home = () if home is None else (0,)
            tokens, table = self.graphs(decide, *inputs, kind=(flags, home), at_home=at_home)
            tokens, table = tokens.clone(), table.clone()
        return Decided(tokens=tokens, table=table, blocks=done.window.blocks, refreshed=done.refreshed)


def decision_of(
    runner: Runner, group: Group, done: Pass, *, own: Callable[[], bool]
) -> tuple[Run, tuple[Tensor, ...], tuple[str, ...]]:
    """A group's decision as a function of tensors alone, these tensors, and the flags that are among them.

    The fourth to the eighth tensor stay as they are from pass to pass. `own`: the function may write to its logits.
    """
    window = done.window
    optional = {name: getattr(done, name) for name in ("drifted", "first_only", "pin_first")} | {"first": window.first}
    flags = {name: flag for name, flag in optional.items() if flag is not None}

    def decide(logits: Tensor, tokens: Tensor, step: Tensor, *steady: Tensor) -> tuple[Tensor, Tensor]:
        holes, at, inside, length, total, *values = steady
        here: dict[str, Any] = dict.fromkeys(optional) | dict(zip(flags, values, strict=True))
        first = here.pop("first")
        window = Window(blocks=(), at=at, inside=inside, first=first, step=step, length=length, total=total)
        part = Pass(window=window, prediction=Prediction(logits=logits), **here)
        decided = runner.decide_once(replace(group, rows=[], tokens=tokens, holes=holes), part, own=own())
        return decided.tokens, decided.table

    steady = (group.holes, window.at, window.inside, window.length, window.total)
    return decide, (done.prediction.logits, group.tokens, window.step, *steady, *flags.values()), tuple(flags)


def can_capture(group: Group, done: Pass) -> bool:
    """Whether the decision of the group is a function of tensors alone, and kernels serve its logits."""
    plan = group.plan
    pure = policies.is_pure(plan.policy) and not plan.needs
    return pure and plan.settings.temperature == 0.0 and group.detail is None and serves(done.prediction.logits)
