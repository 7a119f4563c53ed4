"""What happens between a prediction and the host's read of it, captured as CUDA graphs: dozens of small launches.

Captured decisions live as long as the storage pool of those who decode, and serve every generation with the same
policy and settings.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

from unmask.cache.kv import StoragePool
from unmask.models.base import ModelSpec
from unmask.models.graphs import Graphs, Run
from unmask.policies import Policy
from unmask.rules.kernels import kernels_serve
from unmask.settings import Settings

_MOST = 4  # policies whose graphs are kept
_SHAPES = 16  # and shapes of each: a graph has a copy of its logits, or keeps those alive that it reads elsewhere
_LOOKING = Lock()
_KEPT: WeakKeyDictionary[StoragePool, OrderedDict[Any, Decisions]] = WeakKeyDictionary()


def forget_decisions(pool: StoragePool) -> None:
    """Let go of what was captured for those who decode with this pool."""
    with _LOOKING:
        _KEPT.pop(pool, None)


class Decisions:
    """The graphs for one policy."""

    def __init__(self) -> None:
        self._graphs = Graphs(after=2, pads=True, steady=(3, 4, 5, 6), most=_SHAPES)
        self._alone = Lock()

    @classmethod
    def of(cls, pool: StoragePool, spec: ModelSpec, policy: Policy, settings: Settings) -> Decisions:
        """Those of earlier generations like this one, or new ones."""
        barred = (settings.suppress_mask_token, settings.logits_eos_inf, settings.confidence_eos_eot_inf)
        with _LOOKING:
            kept, key = _KEPT.setdefault(pool, OrderedDict()), (spec, policy, barred, settings.reference_dtype)
            found = kept.setdefault(key, cls())
            kept.move_to_end(key)
            if len(kept) > _MOST:
                kept.popitem(last=False)
            return found

    def serve(self, logits: Tensor) -> bool:
        """Whether decisions about these logits are to be captured."""
        return kernels_serve(logits)

    def __call__(self, kind: Any, run: Run, *inputs: Tensor, fleeting: bool) -> tuple[Tensor, ...]:
        """What `run` gives: copies, which the next call leaves alone. The fourth to seventh input stay as they are.

        Logits, the first input, that are fleeting are read where the model always leaves them.
        """
        kind = (kind, inputs[0].data_ptr() if fleeting else None)
        with self._alone:
            found = self._graphs(run, *inputs, kind=kind, at_home=(0,) if fleeting else ())
            return tuple(value.clone() for value in found)
