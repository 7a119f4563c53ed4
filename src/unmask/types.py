"""What flows between the parts: a policy sees a StepView and answers with a Decision; the loop reports every pass in
StepEvents.

Shapes: `b` rows, `k` positions of a block, `n` positions of the canvas, `v` vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from unmask.errors import UnmaskError

if TYPE_CHECKING:
    from unmask.trace.record import Trace

_SHOWN = 40  # characters of a text in a `repr`


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """What a policy may look at in one forward pass; rows may be in different blocks and steps.

    Only `logits` and `masked` are required. Logits are aligned with positions. The mask token's logit is -inf, unless
    the settings allow it. Logits may be in the model's half precision: `working` gives them in the dtype to compute in.
    Columns past the end of a short block are not masked, and hold the token -1.
    """

    logits: Float[Tensor, "b k v"]
    masked: Bool[Tensor, "b k"]  # positions that may be committed now
    proposed: Int[Tensor, "b k"] = None  # ty: ignore[invalid-assignment]  token for each position; default: arg max
    tokens: Int[Tensor, "b k"] | None = None  # what stands in the block before this pass
    decoded: Bool[Tensor, "b k"] | None = None  # filled earlier in this generation, so a policy may open it again
    start: Int[Tensor, " b"] = None  # ty: ignore[invalid-assignment]  absolute position of the first column; default 0
    step: Int[Tensor, " b"] = None  # ty: ignore[invalid-assignment]  passes already spent on this block; default 0
    remaining: Int[Tensor, " b"] = None  # ty: ignore[invalid-assignment]  masks left in the row; default: in the block
    total: Int[Tensor, " b"] = None  # ty: ignore[invalid-assignment]  masks the row began with; default k
    uniform: Float[Tensor, "b k"] | None = None  # fresh uniform numbers from the row's own seed
    sequence_logits: Float[Tensor, "b n v"] | None = None  # before temperature, for every position of the canvas
    sequence_masked: Bool[Tensor, "b n"] | None = None
    length: Int[Tensor, " b"] | None = None  # of each row's canvas without padding; None: n
    attention: Float[Tensor, "b n n"] | None = None  # query x key, mean over heads and over the policy's layers
    shadow_logits: Float[Tensor, "b k v"] | None = None  # each position predicted without seeing its own token
    open_at_most: int | None = None  # no row has more open positions, if that is known without asking the device
    model_dtype: torch.dtype | None = None  # of the model's own logits; None: that of `logits`
    exact_dtype: bool = False  # score in the logits' own dtype, as some public code does, instead of float32

    def __post_init__(self) -> None:
        rows = self.masked.shape[0]
        defaults = {
            "proposed": lambda: self.logits.argmax(-1),
            "start": lambda: self.masked.new_zeros(rows, dtype=torch.long),
            "step": lambda: self.masked.new_zeros(rows, dtype=torch.long),
            "remaining": lambda: self.masked.sum(-1),
            "total": lambda: self.masked.new_full((rows,), self.masked.shape[1], dtype=torch.long),
        }
        for name, default in defaults.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, default())

    def working(self, values: Tensor) -> Tensor:
        """Logits in the dtype in which a rule should compute: at least float32, unless the view says otherwise."""
        return values.to(self.working_dtype(values))

    def working_dtype(self, values: Tensor) -> torch.dtype:
        """The dtype of `working`, for rules that widen the logits themselves."""
        return values.dtype if self.exact_dtype or values.dtype == torch.float64 else torch.float32


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a policy wants done in this pass. An empty commit is completed by `policies.with_progress`."""

    commit: Bool[Tensor, "b k"]
    score: Float[Tensor, "b k"]  # larger means sooner
    remask: Bool[Tensor, "b k"] | None = None  # decoded positions of the block to open again
    wait: Bool[Tensor, " b"] | None = None  # rows that idle on purpose in this pass
    tokens: Int[Tensor, "b k"] | None = None  # what to write, where it is not the proposed token
    intensity: Float[Tensor, "b k"] | None = None  # for the trace: mean-field commit intensity
    overlap: Float[Tensor, "b k k"] | None = None  # for the trace: normalised predictive overlap


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One position that was written; the figures are there when a trace is recorded."""

    position: int
    token_id: int
    text: str | None = None  # how the token reads alone; None: the request has no text
    probability: float | None = None
    margin: float | None = None
    intensity: float | None = None

    def __repr__(self) -> str:
        figure = "" if self.probability is None else f", probability={self.probability:.3g}"
        return f"Commit(position={self.position}, token_id={self.token_id}, text={_short(self.text)}{figure})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """A position of the block that was open before the commits of a pass; there when a trace is recorded."""

    position: int
    candidates: tuple[tuple[int, float], ...]  # (token id, probability), best first
    score: float  # of the policy; larger means sooner
    margin: float
    intensity: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvent:
    """What one forward pass did to one row."""

    row: int
    step: int  # forward passes this row had seen before
    block: tuple[int, int]  # absolute, half-open
    committed: tuple[Commit, ...]
    remasked: tuple[int, ...] = ()
    refreshed: bool = False  # the pass renewed the row's whole cache
    open: tuple[Open, ...] | None = None  # in the order of their positions; None: no trace is recorded
    overlap: list[list[float]] | None = None  # over the positions of `open`
    finished: bool = False  # no pass will follow for this row
    error: UnmaskError | None = None  # why the row could not be decoded to its end; rows without an error go on

    def __repr__(self) -> str:
        parts = [f"committed={len(self.committed)}"]
        parts += [f"remasked={len(self.remasked)}"] if self.remasked else []
        parts += [] if self.open is None else [f"open={len(self.open)}"]
        parts += ["finished=True"] if self.finished and self.error is None else []
        parts += [f"error={_short(str(self.error))}"] if self.error is not None else []
        return f"StepEvent(row={self.row}, step={self.step}, block={self.block}, {', '.join(parts)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a generation cost."""

    prompt_tokens: int
    completion_tokens: int
    forward_passes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds that a generation took: its row's share of the time of the batch."""

    model_s: float
    policy_s: float
    rest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One finished generation.

    `text`, `token_ids` and the usage end before the first end-of-text or stop match; those of an infill are whole.
    """

    text: str
    token_ids: list[int]
    finish_reason: str  # 'stop' or 'length'
    usage: Usage
    canvas_ids: list[int]  # every token decoded, also past the end of the text
    step_map: list[int]  # the forward pass that committed each of `canvas_ids`
    trace: Trace | None = field(default=None, repr=False)
    timing: Timing | None = field(default=None, repr=False)  # with `timed=True`

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without trace and timing."""
        usage = {name: getattr(self.usage, name) for name in Usage.__slots__}
        plain = {name: getattr(self, name) for name in Output.__slots__ if name not in ("usage", "trace", "timing")}
        return plain | {"usage": usage}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent:
    """A piece of text that will not change any more; the last event carries the whole output.

    A text that cannot be decoded to its end has no output: its last event's step says why.
    """

    text_delta: str
    step: StepEvent | None = None
    output: Output | None = None

    def __repr__(self) -> str:
        done = "" if self.output is None else f", output={self.output.finish_reason!r}"
        return f"StreamEvent(text_delta={_short(self.text_delta)}, step={self.step}{done})"


def _short(text: str | None) -> str:
    """The text as Python writes it, on one line and of bounded length."""
    return repr(text) if text is None or len(text) <= _SHOWN else f"{text[:_SHOWN]!r}..."
