"""What a policy remembers of its rows from one pass to the next: checked, cut, joined, and carried along.

A state is None or a dataclass of tensors that lead with the rows.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from unmask.errors import WorkFailed
from unmask.types import StepView


def check_state(state: Any, policy: str, rows: int, device: torch.device) -> None:
    """Refuse a state that cannot be cut into rows."""
    if state is None:
        return
    if not is_dataclass(state) or isinstance(state, type) or not all(item.init for item in fields(state)):
        raise WorkFailed(f"the policy {policy} gave {type(state).__name__} for its state, not a dataclass of tensors")
    for part, value in _tensors(state).items():
        if value.shape[:1] != (rows,) or value.device != device:
            found = f"a tensor of shape {tuple(value.shape)} on {value.device}"
            raise WorkFailed(f"the policy {policy} keeps {found} as {part}, not one of {rows} rows on {device}")


def state_of(state: Any, rows: slice | Tensor) -> Any:
    """What a policy remembers of some rows only."""
    return state if state is None else replace(state, **{name: value[rows] for name, value in _tensors(state).items()})


def joined_state(states: list[Any]) -> Any:
    """What a policy remembers of the rows of several states, one behind the other; all are None, or none is."""
    if states[0] is None or len(states) == 1:
        return states[0]
    parts = [_tensors(state) for state in states]
    return replace(states[0], **{name: torch.cat([part[name] for part in parts]) for name in parts[0]})


def carried(state: Any, name: str, view: StepView, *, fresh: Tensor) -> Tensor:
    """A tensor (b, ...) of the state; `fresh` in rows that begin a block, and everywhere without a state.

    One of (b, k, ...) has this pass's columns, of which new ones hold what `fresh` holds: there are as many as the
    widest block has, so their number changes as rows come and go.
    """
    if state is None:
        return fresh
    before = getattr(state, name)
    if before.ndim > 1:
        before = torch.cat([before[:, : fresh.shape[1]], fresh[:, before.shape[1] :]], dim=1)
    begins = (view.step == 0).view(-1, *(1,) * (before.ndim - 1))
    return torch.where(begins, fresh, before)


def _tensors(state: Any) -> dict[str, Tensor]:
    values = {item.name: getattr(state, item.name) for item in fields(state)}
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}
