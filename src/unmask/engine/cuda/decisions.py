"""Decisions captured as CUDA graphs: the dozens of small launches between a prediction and the host's read become one.

Captured decisions live as long as the generator's storage pool, and serve every generation with the same policy and
settings.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from unmask import policies
from unmask.cache.storage import StoragePool
from unmask.engine.commit import CommitInputs, apply
from unmask.engine.forward import Pass
from unmask.engine.rows import Group
from unmask.engine.window import Window
from unmask.models.base import ModelSpec, Prediction
from unmask.models.kernels.graphs import Graphs, Run
from unmask.rules.kernels.serving import serves

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
    def of(cls, pool: StoragePool, spec: ModelSpec, group: Group) -> Decisions:
        """The captured decisions for the group's policy and settings, none at first."""
        with _LOOKING:
            kept, key = _KEPT.setdefault(pool, OrderedDict()), (spec, group.policy, group.settings)
            found = kept.setdefault(key, cls())
            kept.move_to_end(key)
            if len(kept) > _MOST:
                kept.popitem(last=False)
            return found

    def __call__(self, spec: ModelSpec, group: Group, done: Pass) -> tuple[Tensor, Tensor]:
        """The group's tokens after the pass, and its results: copies, which the next call leaves alone."""
        # A graph has its logits to itself, so a captured decision may write to them.
        decide, inputs, flags = decision_of(spec, group, done, own=torch.cuda.is_current_stream_capturing)
        # Logits that the model always leaves in the same place are read there.
        home = inputs[0].data_ptr() if done.prediction.fleeting else None
        with self._lock:
            at_home = () if home is None else (0,)
            tokens, results = self.graphs(decide, *inputs, kind=(flags, home), at_home=at_home)
            return tokens.clone(), results.clone()


def decision_of(
    spec: ModelSpec, group: Group, done: Pass, *, own: Callable[[], bool]
) -> tuple[Run, tuple[Tensor, ...], tuple[str, ...]]:
    """A group's decision as a function of tensors alone, these tensors, and the flags that are among them.

    The fourth to the eighth tensor stay as they are from pass to pass. `own`: the function may write to its logits.
    """
    flags = {
        "drifted": done.drifted,
        "first": done.window.first,
        "first_only": done.first_only(),
        "pin_first": done.pin_first(),
    }
    given = {name: flag for name, flag in flags.items() if flag is not None}

    def decide(logits: Tensor, tokens: Tensor, step: Tensor, *steady: Tensor) -> tuple[Tensor, Tensor]:
        holes, at, inside, length, total, *values = steady
        here = dict(zip(given, values, strict=True))
        window = Window(blocks=(), at=at, inside=inside, first=None, step=step, length=length, total=total)
        observed = group.observer(Prediction(logits=logits), window, tokens, holes, [], None, own=own())
        decision, _ = policies.decide(group.policy, observed.view, None)
        inputs = CommitInputs(
            decision=decision,
            observed=observed,
            at=at,
            drifted=here.get("drifted"),
            first=here.get("first"),
            first_only=here.get("first_only"),
            pin_first=here.get("pin_first"),
            mask_id=spec.mask_id,
            mask_allowed=not group.settings.suppress_mask_token,
        )
        return apply(tokens, inputs)

    window = done.window
    steady = (group.holes, window.at, window.inside, window.length, window.total)
    return decide, (done.prediction.logits, group.tokens, window.step, *steady, *given.values()), tuple(given)


def can_capture(group: Group, done: Pass) -> bool:
    """Whether the decision of the group is a function of tensors alone, and kernels serve its logits."""
    pure = policies.is_pure(group.policy) and not group.observer.needs
    plain = group.settings.temperature == 0.0 and group.detail is None and not group.settings.verify
    return pure and plain and serves(done.prediction.logits)
