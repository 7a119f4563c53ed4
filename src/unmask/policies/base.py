"""What a policy is and remembers, and the guarantees that hold for every policy, whatever it answers.

A policy decides which open positions of a block to commit after one forward pass. It never touches a model or a canvas.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Protocol, TypeVar, dataclass_transform, runtime_checkable

import torch
from jaxtyping import Bool
from torch import Tensor

from unmask.device import out_of_memory
from unmask.errors import UnknownName, UnmaskError, WorkFailed, one_line
from unmask.options import check_bounds
from unmask.options import parameter as parameter  # for policies, as Decision and StepView are
from unmask.registry import Registry
from unmask.rules.selection import best_if_none
from unmask.types import Decision, StepView


@runtime_checkable
class Policy(Protocol):
    """Anything that selects positions; if it has parameters, a frozen dataclass whose fields they are.

    It may also define `needs`, `remasks` and `pure`, as in `Base`. A policy that needs attention says which layers'
    maps are averaged: `attention_layers(n_layers) -> range`. A policy that can bound the commits of a pass before it
    sees the logits says so: `most_commits(open_now, step) -> int` (see `most_commits` below).

    State is None or a frozen dataclass of tensors that lead with `b`; it lives as long as the generation, and a policy
    that starts afresh in each block does so in the rows where `view.step == 0`.
    """

    __slots__ = ()

    def select(self, view: StepView, state: Any = None) -> tuple[Decision, Any]: ...


class Base(Policy):
    """What holds for a policy unless it says otherwise."""

    __slots__ = ()
    # Users set parameters: a wrong value must reach the policy's own checks, not a run-time type checker.
    __no_type_check__ = True

    needs: ClassVar[frozenset[str]] = frozenset()  # of NEEDS
    remasks: ClassVar[bool] = False  # may open decoded positions of the current block again
    pure: ClassVar[bool] = False  # keeps no state and asks the device nothing, so that a CUDA graph can capture it

    def __post_init__(self) -> None:
        check_bounds(self)


P = TypeVar("P", bound=Policy)

WHOLE_CANVAS = frozenset({"sequence_logits", "attention", "shadow"})  # only passes over whole canvases give these
NEEDS = WHOLE_CANVAS | {"uniform"}

registry: Registry[Policy] = Registry("policy", "unmask.policies")
name_of = registry.name_of


def register(name: str) -> Callable[[type[P]], type[P]]:
    """Class decorator that makes a policy known by name."""
    return registry.register(name)


@dataclass_transform(frozen_default=True, kw_only_default=True)
def policy(name: str, **facts: Any) -> Callable[[type[P]], type[P]]:
    """Class decorator of our own policies: registers a frozen dataclass, with `facts` in place of those of `Base`."""

    def add(cls: type[P]) -> type[P]:
        for fact, value in facts.items():
            setattr(cls, fact, value)
        return register(name)(dataclass(frozen=True, slots=True, kw_only=True)(cls))

    return add


def get(name: str, **params: Any) -> Policy:
    """The policy of that name; a parameter that is not given keeps its default."""
    return registry.build(name, params)


def names() -> list[str]:
    """Every installed policy, plug-ins included."""
    return registry.names()


def owner_of(parameter: str) -> str | None:
    """A policy that has a parameter of that name; plug-ins that cannot be imported have none."""
    for name in names():
        with contextlib.suppress(UnmaskError):
            if parameter in registry.parameters(name):
                return name
    return None


def describe(policy: Policy) -> dict[str, Any]:
    """The policy as plain data: `get(**describe(policy)) == policy`."""
    parameters = fields(policy) if is_dataclass(policy) else ()
    return {"name": name_of(policy)} | {field.name: getattr(policy, field.name) for field in parameters}


def needs_of(policy: Policy) -> frozenset[str]:
    """What the policy must see beyond the logits of its block; a policy without `needs` needs nothing."""
    needs = frozenset(getattr(policy, "needs", ()))
    for need in needs - NEEDS:
        raise UnknownName("need of a policy", need, sorted(NEEDS))
    return needs


def remasks(policy: Policy) -> bool:
    """Whether the policy may open decoded positions again."""
    return getattr(policy, "remasks", False)


def is_pure(policy: Policy) -> bool:
    """Whether a CUDA graph can capture the policy's decisions: it says so, and is hashable."""
    with contextlib.suppress(TypeError):
        hash(policy)
        return _speaks_of(policy, "pure") and bool(getattr(policy, "pure", False))
    return False


def most_commits(policy: Policy, open_now: int, step: int) -> int:
    """How many of a row's open positions a pass may commit, as far as the policy knows before it has seen the logits.

    `step`: decisions already made in the block (one a pass, unless guesses are verified).
    """
    if not _speaks_of(policy, "most_commits", "select"):
        return open_now
    told: Any = policy.most_commits  # ty: ignore[missing-attribute]
    try:
        return min(open_now, max(1, int(told(open_now, step))))
    except Exception as error:
        raise WorkFailed(f"the policy {name_of(policy)} failed in most_commits: {one_line(error)}") from error


def _speaks_of(policy: Policy, name: str, *methods: str) -> bool:
    """Whether the policy's attribute holds for these methods, or for all if none is named.

    A class that overrides one of them must define the attribute again.
    """
    for kind in type(policy).__mro__:
        if name in vars(kind):
            return True
        own = [method for method, value in vars(kind).items() if callable(value) and not method.startswith("__")]
        if any(method in own for method in methods or own):
            return False
    return False


def decide(policy: Policy, view: StepView, state: Any) -> tuple[Decision, Any]:
    """The policy's decision and its new state; an error that names the policy if it gives anything else."""
    name = name_of(policy)
    try:
        answer = policy.select(view, state)
    except Exception as error:
        if isinstance(error, UnmaskError) or out_of_memory(error):
            raise
        raise WorkFailed(f"the policy {name} failed: {one_line(error)}") from error
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[0], Decision):
        raise WorkFailed(f"the policy {name} must answer (Decision, state), got {type(answer).__name__}")
    (b, k), device = view.masked.shape, view.masked.device
    for part, (sides, dtypes) in _PARTS.items():
        value, expected = getattr(answer[0], part), (b, k, k)[:sides]
        if value is None and part not in ("commit", "score"):
            continue
        if not isinstance(value, Tensor) or tuple(value.shape) != expected:
            found = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise WorkFailed(f"the policy {name} gave {found} for {part}, not a tensor of shape {expected}")
        if value.dtype not in dtypes:
            raise WorkFailed(f"the policy {name} gave {value.dtype} for {part}, not {dtypes[0]}")
        if value.device != device:
            raise WorkFailed(f"the policy {name} gave a tensor on {value.device} for {part}, not on {device}")
    _check_state(answer[1], name, b, device)
    return answer


_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_REAL = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.bool, *_WHOLE)
# Of each part of a decision: how many sides the tensor has, of (b, k, k), and its dtypes.
_PARTS = {
    "commit": (2, (torch.bool,)),
    "remask": (2, (torch.bool,)),
    "wait": (1, (torch.bool,)),
    "tokens": (2, _WHOLE),
    "score": (2, _REAL),
    "intensity": (2, _REAL),
    "overlap": (3, _REAL),
}


def _check_state(state: Any, policy: str, rows: int, device: torch.device) -> None:
    """Refuse a state that cannot be cut into rows."""
    if state is None:
        return
    if not is_dataclass(state) or isinstance(state, type) or not all(item.init for item in fields(state)):
        raise WorkFailed(f"the policy {policy} gave {type(state).__name__} for its state, not a dataclass of tensors")
    for part, value in _tensors(state).items():
        if value.shape[:1] != (rows,) or value.device != device:
            found = f"a tensor of shape {tuple(value.shape)} on {value.device}"
            raise WorkFailed(f"the policy {policy} keeps {found} as {part}, not one of {rows} rows on {device}")


def with_progress(
    decision: Decision, masked: Bool[Tensor, "b k"], first: Bool[Tensor, "b k"] | None = None
) -> Bool[Tensor, "b k"]:
    """The policy's commits at open positions; a row with none commits its best-scored open one, unless it waits.

    `first`: the columns in which each row must commit one; None: any column will do.
    """
    commit = decision.commit & masked
    here = masked if first is None else masked & first
    added = best_if_none(commit & here, decision.score, here)
    return commit | (added if decision.wait is None else added & ~decision.wait[:, None])


def require(view: StepView, name: str, policy: str) -> Tensor:
    """What the policy needs from the view, or an error that names it."""
    value = getattr(view, name)
    if value is None:
        raise UnmaskError(f"the policy {policy} needs {name}, and the view has none")
    return value


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
