"""What flows between the parts: a policy sees a StepView and answers with a Decision; the loop reports every pass in
StepEvents.

Shapes: `b` rows, `k` positions of a block, `n` positions of the canvas, `v` vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
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

    Attributes:
        logits: Predictions for the positions of the block.
        masked: Positions that may be committed now.
        proposed: Token for each position; default: the arg max.
        tokens: What stands in the block before this pass.
        decoded: Positions filled earlier in this generation, so a policy may open them again.
        start: Absolute position of the first column; default 0.
        step: Decisions already made in this block, one a pass unless guesses are verified; default 0.
        remaining: Masks left in the row; default: those of the block.
        total: Masks the row began with; default k.
        uniform: Fresh uniform numbers from the row's own seed.
        sequence_logits: Logits before temperature, for every position of the canvas.
        sequence_masked: Open positions of the canvas.
        length: Length of each row's canvas without padding; None: n.
        attention: Query x key, mean over heads and over the policy's layers.
        shadow_logits: Each position predicted without seeing its own token.
        open_at_most: No row has more open positions, if that is known without asking the device.
        model_dtype: Dtype of the model's own logits; None: that of `logits`.
        exact_dtype: Score in the logits' own dtype, as some public code does, instead of float32.
    """

    logits: Float[Tensor, "b k v"]
    masked: Bool[Tensor, "b k"]
    proposed: Int[Tensor, "b k"] = None  # ty: ignore[invalid-assignment]
    tokens: Int[Tensor, "b k"] | None = None
    decoded: Bool[Tensor, "b k"] | None = None
    start: Int[Tensor, " b"] = None  # ty: ignore[invalid-assignment]
    step: Int[Tensor, " b"] = None  # ty: ignore[invalid-assignment]
    remaining: Int[Tensor, " b"] = None  # ty: ignore[invalid-assignment]
    total: Int[Tensor, " b"] = None  # ty: ignore[invalid-assignment]
    uniform: Float[Tensor, "b k"] | None = None
    sequence_logits: Float[Tensor, "b n v"] | None = None
    sequence_masked: Bool[Tensor, "b n"] | None = None
    length: Int[Tensor, " b"] | None = None
    attention: Float[Tensor, "b n n"] | None = None
    shadow_logits: Float[Tensor, "b k v"] | None = None
    open_at_most: int | None = None
    model_dtype: torch.dtype | None = None
    exact_dtype: bool = False

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
    """What a policy wants done in this pass. An empty commit is completed by `policies.with_progress`.

    Attributes:
        commit: Positions to write.
        score: Order of the positions; larger means sooner.
        remask: Decoded positions of the block to open again.
        wait: Rows that idle on purpose in this pass.
        tokens: What to write, where it is not the proposed token.
        intensity: For the trace: mean-field commit intensity.
        overlap: For the trace: normalised predictive overlap.
    """

    commit: Bool[Tensor, "b k"]
    score: Float[Tensor, "b k"]
    remask: Bool[Tensor, "b k"] | None = None
    wait: Bool[Tensor, " b"] | None = None
    tokens: Int[Tensor, "b k"] | None = None
    intensity: Float[Tensor, "b k"] | None = None
    overlap: Float[Tensor, "b k k"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One position that was written; the figures are there when a trace is recorded.

    Attributes:
        position: Where it was written; the prompt begins at 0.
        token_id: The token.
        text: How the token reads alone; None: the request has no text.
        probability: Of that token, in the distribution that the policy saw.
        margin: Log-probability of the best token less that of the second best.
        intensity: The policy's commit intensity; None for policies that have none.
    """

    position: int
    token_id: int
    text: str | None = None
    probability: float | None = None
    margin: float | None = None
    intensity: float | None = None

    def __repr__(self) -> str:
        figure = "" if self.probability is None else f", probability={self.probability:.3g}"
        return f"Commit(position={self.position}, token_id={self.token_id}, text={_short(self.text)}{figure})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """A position of the block that was open before the commits of a pass; there when a trace is recorded.

    Attributes:
        position: Where it is; the prompt begins at 0.
        candidates: The likeliest tokens as (token id, probability), best first.
        score: The policy's; larger means sooner.
        margin: Log-probability of the best token less that of the second best.
        intensity: The policy's commit intensity; None for policies that have none.
    """

    position: int
    candidates: tuple[tuple[int, float], ...]
    score: float
    margin: float
    intensity: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEvent:
    """What one forward pass did to one row.

    Attributes:
        row: Number of the prompt in its batch.
        step: Forward passes that the row had seen before this one, across blocks.
        block: First position of the block, and the one behind its last.
        committed: What was written, in the order of the positions.
        remasked: Positions that were opened again.
        refreshed: Whether the pass renewed the row's whole cache.
        open: Positions that were open before the commits, in their order; None: no trace is recorded.
        overlap: Normalised predictive overlap of the positions of `open`; None: not asked for, or the policy has none.
        finished: Whether the row is done: no pass will follow for it.
        error: Why the row could not be decoded to its end; rows without an error go on.
    """

    row: int
    step: int
    block: tuple[int, int]
    committed: tuple[Commit, ...]
    remasked: tuple[int, ...] = ()
    refreshed: bool = False
    open: tuple[Open, ...] | None = None
    overlap: list[list[float]] | None = None
    finished: bool = False
    error: UnmaskError | None = None

    def __repr__(self) -> str:
        parts = [f"committed={len(self.committed)}"]
        parts += [f"remasked={len(self.remasked)}"] if self.remasked else []
        parts += [] if self.open is None else [f"open={len(self.open)}"]
        parts += ["finished=True"] if self.finished and self.error is None else []
        parts += [f"error={_short(str(self.error))}"] if self.error is not None else []
        return f"StepEvent(row={self.row}, step={self.step}, block={self.block}, {', '.join(parts)})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What a generation cost.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        completion_tokens: Tokens of the text, up to its end.
        forward_passes: Passes until the last position was filled.
    """

    prompt_tokens: int
    completion_tokens: int
    forward_passes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds that a generation took: its row's share of the time of the batch.

    Attributes:
        model_s: In forward passes of the model.
        policy_s: In decisions of the policy.
        rest_s: In everything else.
    """

    model_s: float
    policy_s: float
    rest_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One finished generation.

    `text`, `token_ids` and the usage end before the first end-of-text or stop match; those of an infill are whole.

    Attributes:
        text: The text, without the prompt.
        token_ids: Its tokens.
        finish_reason: 'stop' if the text ended by itself or by a stop match, 'length' if the room was used up.
        usage: Tokens and forward passes.
        canvas_ids: Every token decoded, also past the end of the text.
        step_map: The forward pass that committed each of `canvas_ids`.
        trace: What every pass did, with `trace=True`.
        timing: Where the time went, with `timed=True`.
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    usage: Usage
    canvas_ids: list[int]
    step_map: list[int]
    trace: Trace | None = field(default=None, repr=False)
    timing: Timing | None = field(default=None, repr=False)

    def _repr_html_(self) -> str:
        """What a notebook shows: the viewer where there is a trace, else the text and its cost."""
        if self.trace is not None:
            return self.trace._repr_html_()
        cost = f"{self.usage.completion_tokens} tokens, {self.usage.forward_passes} forward passes"
        return f"<pre>{escape(self.text)}</pre><small>{cost}</small>"

    def to_dict(self) -> dict[str, Any]:
        """Plain data, without trace and timing."""
        usage = {name: getattr(self.usage, name) for name in Usage.__slots__}
        plain = {name: getattr(self, name) for name in Output.__slots__ if name not in ("usage", "trace", "timing")}
        return plain | {"usage": usage}


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvent:
    """A piece of text that will not change any more; the last event carries the whole output.

    A text that cannot be decoded to its end has no output: its last event's step says why.

    Attributes:
        text_delta: Text that follows what earlier events gave.
        step: What the pass did; None for a request that was abandoned before it began.
        output: The whole output, in the last event.
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
