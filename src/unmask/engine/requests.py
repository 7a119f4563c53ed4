"""Requests from token ids: checked against the model, and laid on a canvas. Knows neither texts nor the loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from unmask.engine.detail import Detail
from unmask.engine.plan import Plan
from unmask.engine.prompts import Prompt
from unmask.engine.scheduler import Request
from unmask.errors import TooLong, UnmaskError, WrongOption
from unmask.models.base import LoadedModel, ModelSpec
from unmask.settings import Settings
from unmask.trace.record import Trace


def continuing(
    loaded: LoadedModel, prompt: list[int], job: Plan, detail: Detail | None, suffix: Sequence[int] = ()
) -> Request:
    """A request for the text between the prompt and the suffix."""
    spec = loaded.model.spec
    if spec.mask_id in prompt or spec.mask_id in suffix:
        mask = loaded.codec.token_text(spec.mask_id)
        problem = f"the prompt contains the mask token {mask}; to fill masks inside a text,"
        raise UnmaskError(
            f"{problem} use infill",
            flags=f"{problem} use --infill of `unmask generate`",
            http=f"{problem} give it as the prompt of /v1/completions, without a suffix",
        )
    check_length(spec, len(prompt) + len(suffix), job.max_tokens)
    return _made(loaded, [*prompt, *[spec.mask_id] * job.max_tokens, *suffix], job, detail, infills=False)


def infilling(loaded: LoadedModel, text: list[int], job: Plan, detail: Detail | None) -> Request:
    """A request for the masks in a text."""
    spec = loaded.model.spec
    if spec.mask_id not in text:
        mask = loaded.codec.token_text(spec.mask_id)
        raise UnmaskError(f"the text has no mask to fill; write {mask} for each token that is missing")
    check_length(spec, len(text), 0)
    return _made(loaded, text, job, detail, infills=True)


def _made(loaded: LoadedModel, tokens: list[int], job: Plan, detail: Detail | None, *, infills: bool) -> Request:
    spec = loaded.model.spec
    canvas = job.canvas(tokens)
    if spec.causal and not canvas.continues:
        raise UnmaskError(f"{spec.name} sees only what lies before: it cannot fill a hole that text follows")
    request = Request(canvas=canvas, plan=job, ending=job.ending(loaded.codec), infills=infills, detail=detail)
    request.trace = None if detail is None else new_trace(loaded, request)
    return request


def new_trace(loaded: LoadedModel, request: Request) -> Trace:
    """A trace of the request without passes."""
    canvas, codec = request.canvas, loaded.codec
    # The masks of a continuation are not part of its prompt; masks inside an infilled text are.
    prompt = canvas.tokens[: canvas.holes[0]] if canvas.continues and not request.infills else canvas.tokens
    about = {
        "text": codec.decode(prompt, special=True),
        "token_ids": list(prompt),
        "tokens": [codec.token_text(token) for token in prompt],
        "holes": list(canvas.holes),
    }
    return Trace(header=request.plan.header(loaded.model) | {"prompts": [about]})


def check_length(spec: ModelSpec, prompt: int, new: int) -> None:
    """Refuse more tokens than the model has positions."""
    if prompt + new > spec.max_length:
        extra = f" and {new} to generate" if new else ""
        raise TooLong(f"{prompt} tokens{extra} are more than the {spec.max_length} positions of {spec.name}")


def check_infill(suffix: Prompt | None, settings: Settings | None, shorthand: Mapping[str, Any]) -> None:
    """Refuse options that mean nothing where the masks of a text are filled."""
    given = {"suffix": suffix, **shorthand}
    for name in ("suffix", "max_tokens", "stop", "stop_token_ids"):
        if given.get(name) or getattr(settings, name, None):
            raise WrongOption(name, "does not apply: infill fills the masks that are there")


def detail_of(trace: bool | Detail) -> Detail | None:
    """What the option `trace` asks for; None: nothing is recorded."""
    if not isinstance(trace, bool | Detail):
        raise UnmaskError(f"trace must be true, false or a Detail, got {trace!r}; a file is written by trace.save")
    return trace if isinstance(trace, Detail) else Detail() if trace else None
