"""`engine/commit.py`'s `apply` in one launch."""

from __future__ import annotations

from types import NotImplementedType
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.engine.commit import BROKEN, DRIFTED, FLAGS, GOES_ON, PARTS, WAITING, CommitInputs
from unmask.engine.kernels import triton_decision
from unmask.engine.kernels.observe import POSITIONS, columns_together
from unmask.rules.kernels.selection import bits

_KERNELS: Any = triton_decision  # a launch is no call that a type checker understands


def apply(
    tokens: Int[Tensor, "b n"], inputs: CommitInputs
) -> tuple[Int[Tensor, "b n"], Int[Tensor, "b results"]] | NotImplementedType:
    """For proposals that are the likeliest tokens, so that a row which commits only its first position has it."""
    if not inputs.observed.greedy:
        return NotImplemented
    decision, observed, state = inputs.decision, inputs.observed, inputs.observed.state
    masked, (b, k), n = bits(observed.view.masked), inputs.at.shape, tokens.shape[1]
    wanted = observed.view.proposed if decision.tokens is None else decision.tokens
    score = decision.score if decision.score.is_floating_point() else decision.score.float()
    ends = torch.finfo(score.dtype)
    logits = observed.logits if observed.logits.stride(-1) == 1 else observed.logits.contiguous()

    def rows(values: Tensor) -> Tensor:
        return values.expand(b, k).contiguous()

    def flags(values: Tensor | None, *shape: int) -> Tensor:
        """What is not there is not read."""
        return masked if values is None else bits(values.expand(shape))

    canvas, results = tokens.new_empty((b, n)), tokens.new_empty((b, PARTS * k + FLAGS))
    with torch.cuda.device_of(tokens):  # a launch goes to the current device
        _KERNELS.apply_rows[(b,)](
            *(bits(rows(decision.commit)), rows(score.detach()), masked),
            *(rows(observed.view.proposed), rows(wanted), rows(state.tokens)),
            *(flags(decision.remask, b, k), bits(state.decoded), flags(decision.wait, b)),
            *(flags(inputs.drifted, b), flags(inputs.first_only, b), flags(inputs.pinned, b)),
            *(logits.detach(), tokens.contiguous(), inputs.at.contiguous(), canvas, results),
            *(logits.stride(0), logits.stride(1), n, k, inputs.mask_id),
            LOWEST=ends.min,
            HIGHEST=ends.max,
            MASK_ALLOWED=inputs.mask_allowed,
            REMASKS=decision.remask is not None,
            WAITS=decision.wait is not None,
            DRIFTS=inputs.drifted is not None,
            FIRST_ONLY=inputs.first_only is not None,
            PINNED=inputs.pinned is not None,
            PARTS=PARTS,
            FLAGS=FLAGS,
            WAITING=WAITING,
            DRIFTED=DRIFTED,
            BROKEN=BROKEN,
            GOES_ON=GOES_ON,
            N=POSITIONS,
            K=columns_together(k),
            num_warps=4,
        )
    return canvas, results
