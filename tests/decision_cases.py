"""Passes drawn at random, hard cases included, for what the loop does around a decision; on any device."""

from __future__ import annotations

import math
from dataclasses import fields

import torch

from unmask.engine.commit import CommitInputs, apply
from unmask.engine.observe import Observed, window_state
from unmask.types import Decision, StepView

MASK, V = 7, 11
FLAGS = ("remask", "wait", "tokens", "drifted", "first_only", "pinned", "mask_allowed")
HARD = torch.tensor([math.nan, math.inf, -math.inf, torch.finfo(torch.float32).min, torch.finfo(torch.float32).max])


def window(generator, b, n, k):
    """Canvases half full, and blocks of which some are narrow: tokens, holes, at, inside."""
    draw = _drawing(generator)
    tokens = draw(torch.randint, 0, V, (b, n))
    tokens[draw(torch.rand, b, n) < 0.5] = MASK
    holes = (tokens == MASK) | (draw(torch.rand, b, n) < 0.3)
    start = draw(torch.randint, 0, n - k + 1, (b, 1))
    width = torch.where(draw(torch.rand, b, 1) < 0.5, k, draw(torch.randint, 1, k + 1, (b, 1)))
    columns = torch.arange(k, device=generator.device)
    return tokens, holes, start + torch.minimum(columns, width - 1), columns < width


def scores(generator, b, k, dtype=torch.float32):
    """Many are equal, some are no numbers or at the ends of what there is."""
    draw = _drawing(generator)
    values = draw(torch.randn, b, k).mul(2).round().to(dtype)
    hard = HARD.to(generator.device).to(dtype)[draw(torch.randint, 0, len(HARD), (b, k))]
    return torch.where(draw(torch.rand, b, k) < draw(torch.rand, b, 1), hard, values)


def case(generator, b, n, k, *, given=(), dtype=torch.float32, score_dtype=torch.float32):
    """The inputs of a commit, and the canvases; `given` are those of FLAGS that it has."""
    draw = _drawing(generator)
    tokens, holes, at, inside = window(generator, b, n, k)
    state = window_state.__wrapped__(tokens, holes, at, inside, mask_id=MASK)
    # Rows lie apart, as in a part of a larger tensor.
    logits = draw(torch.randn, b, k, V + 3).to(dtype)[..., :V]
    if "mask_allowed" not in given:
        logits[..., MASK] = -math.inf
    spoilt = draw(torch.rand, b, k) < 0.3 * draw(torch.rand, b, 1).round()
    logits[spoilt] = HARD[0].to(dtype)
    logits[spoilt & (draw(torch.rand, b, k) < 0.5)] = -math.inf
    some = lambda share: draw(torch.rand, b, k) < share * draw(torch.rand, b, 1).round()  # noqa: E731
    decision = Decision(
        commit=some(0.4),
        score=scores(generator, b, k, score_dtype),
        remask=some(0.5) if "remask" in given else None,
        wait=draw(torch.rand, b) < 0.5 if "wait" in given else None,
        tokens=draw(torch.randint, 0, V, (b, k)) if "tokens" in given else None,
    )
    view = StepView(logits=logits, masked=state.masked, proposed=logits.argmax(-1), tokens=state.tokens)
    flags = {name: draw(torch.rand, b) < 0.5 if name in given else None for name in ("drifted", "first_only", "pinned")}
    made = CommitInputs(
        decision=decision,
        observed=Observed(view=view, state=state, logits=logits, greedy=True),
        at=at,
        **flags,
        mask_id=MASK,
        mask_allowed="mask_allowed" in given,
    )
    return made, tokens


def some_flags(generator):
    """Each of FLAGS or not."""
    return [
        flag for flag, number in zip(FLAGS, _drawing(generator)(torch.rand, len(FLAGS)), strict=True) if number < 0.5
    ]


def check_state(*given) -> None:
    """Fails unless the kernel finds what plain torch finds."""
    from unmask.engine.kernels import observe as kernels

    found, expected = (f(*given, mask_id=MASK) for f in (kernels.window_state, window_state.__wrapped__))
    for field in fields(expected):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        assert one.dtype == other.dtype, field.name
        assert torch.equal(one, other), field.name


def check_case(made: CommitInputs, tokens) -> None:
    """Fails unless the kernel commits as plain torch does, and leaves the canvas that it was given alone."""
    from unmask.engine.kernels import commit as kernels

    before = tokens.clone()
    for one, other in zip(kernels.apply(tokens, made), apply.__wrapped__(tokens, made), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other), (one, other)
    assert torch.equal(tokens, before)


def _drawing(generator):
    return lambda function, *given: function(*given, generator=generator, device=generator.device)
