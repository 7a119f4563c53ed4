"""From what callers give to be decoded (one or many, text or token ids) to requests: checked, and laid on a canvas."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, Unpack

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.engine.plan import Detail, Plan, plan
from unmask.engine.scheduler import Request
from unmask.errors import TooLong, UnmaskError, WrongOption
from unmask.models.base import LoadedModel, ModelSpec
from unmask.models.checkpoint.tokenizer import TextCodec
from unmask.policies import Policy
from unmask.settings import Settings, SettingsFields
from unmask.trace.record import Trace

Prompt: TypeAlias = str | Sequence[int]  # text, or token ids taken as they are
Message: TypeAlias = dict[str, str]


def as_batch(prompt: Prompt | Sequence[Prompt]) -> tuple[list[Prompt], bool]:
    """The prompts as a list, and whether there was just one."""
    prompt = prompt.tolist() if isinstance(prompt, Tensor) else prompt
    if not isinstance(prompt, str | list | tuple):
        raise UnmaskError(f"a prompt is a text or a list of token ids, got {type(prompt).__name__}")
    if isinstance(prompt, str) or (len(prompt) > 0 and isinstance(prompt[0], int)):
        return [prompt], True  # ty: ignore[invalid-return-type]
    return list(prompt), False  # ty: ignore[invalid-return-type]


def as_conversations(messages: Sequence[Message] | Sequence[Sequence[Message]]) -> tuple[list[Any], bool]:
    """The conversations as a list, and whether there was just one."""
    if not isinstance(messages, list | tuple):
        one, got = "[{'role': 'user', 'content': ...}]", type(messages).__name__
        raise UnmaskError(f"messages must be a list such as {one}, got {got}; a prompt is for generate")
    single = not messages or isinstance(messages[0], dict)
    return [messages] if single else list(messages), single


def encode_prompt(
    spec: ModelSpec, codec: TextCodec, prompt: Prompt, *, special: bool = True, begins: bool = True
) -> list[int]:
    """Token ids of a prompt, behind the family's beginning-of-text token if it `begins` a canvas; ids stay as they are.

    `special` adds what the tokenizer puts around a text.
    """
    if not isinstance(prompt, str):
        return token_list(prompt, spec.vocab_size)
    ids = codec.encode(prompt, special=special)
    if begins and spec.add_bos and spec.bos_id is not None and ids[:1] != [spec.bos_id]:
        ids = [spec.bos_id, *ids]
    return ids


def token_list(prompt: Prompt, vocab_size: int) -> list[int]:
    """A prompt's own token ids."""
    ids = prompt.tolist() if isinstance(prompt, Tensor) else prompt
    of_ids = isinstance(ids, list | tuple) and all(isinstance(token, int) and 0 <= token < vocab_size for token in ids)
    if not of_ids:
        raise UnmaskError(f"a prompt is a text, or a list of token ids in [0, {vocab_size})")
    return list(ids)


def token_rows(token_ids: Sequence[Any] | Tensor, vocab_size: int, device: torch.device) -> Int[Tensor, "b n"]:
    """Token ids as rows on the device; one list of them is one row."""
    wanted = "token_ids must be a list of ids, or rows (b, n) of equal length"
    try:
        given = torch.as_tensor(token_ids, device=device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UnmaskError(f"{wanted}: {error}") from error
    tokens = given[None] if given.ndim == 1 else given
    if tokens.ndim != 2 or tokens.numel() == 0 or not torch.can_cast(tokens.dtype, torch.int64):
        raise UnmaskError(f"{wanted}, got {given.dtype} of the shape {tuple(given.shape)}")
    tokens = tokens.long()  # of small unsigned numbers PyTorch knows no minimum
    if int(tokens.min()) < 0 or int(tokens.max()) >= vocab_size:
        raise UnmaskError(f"token ids must be in [0, {vocab_size})")
    return tokens


def requests_for(
    loaded: LoadedModel,
    prompts: list[list[int]],
    *,
    suffix: Sequence[int] = (),
    infill: bool = False,
    policy: str | Policy | None = None,
    settings: Settings | None = None,
    trace: bool | Detail = False,
    **shorthand: Unpack[SettingsFields],
) -> list[Request]:
    """Requests for the text behind each prompt, up to the suffix, or for the masks in it; all with one plan."""
    if infill:
        given = {"suffix": suffix, **shorthand}
        for name in ("suffix", "max_tokens", "stop", "stop_token_ids"):
            if given.get(name) or getattr(settings, name, None):
                raise WrongOption(name, "does not apply: infill fills the masks that are there")
    if not isinstance(trace, bool | Detail):
        raise UnmaskError(f"trace must be true, false or a Detail, got {trace!r}; a file is written by trace.save")
    job = plan(loaded.model, policy, settings, shorthand)
    detail = trace if isinstance(trace, Detail) else Detail() if trace else None
    made = []
    for prompt in prompts:
        canvas = job.canvas(_masked(loaded.codec, job, prompt, suffix, infill=infill))
        if job.spec.causal and not canvas.continues:
            raise UnmaskError(f"{job.spec.name} sees only what lies before: it cannot fill a hole that text follows")
        request = Request(canvas=canvas, plan=job, ending=job.ending(loaded.codec), infills=infill, detail=detail)
        request.trace = None if detail is None else new_trace(loaded, request)
        made.append(request)
    return made


def _masked(codec: TextCodec, job: Plan, prompt: list[int], suffix: Sequence[int], *, infill: bool) -> list[int]:
    """The tokens of a canvas, masks included."""
    spec, masks = job.spec, 0 if infill else job.max_tokens
    if infill and spec.mask_id not in prompt:
        mask = codec.token_text(spec.mask_id)
        raise UnmaskError(f"the text has no mask to fill; write {mask} for each token that is missing")
    if not infill and (spec.mask_id in prompt or spec.mask_id in suffix):
        mask, ways = codec.token_text(spec.mask_id), "infill(), --infill, or /v1/completions without a suffix"
        raise UnmaskError(f"the prompt contains the mask token {mask}; to fill masks inside a text, use {ways}")
    check_length(spec, len(prompt) + len(suffix), masks)
    return [*prompt, *[spec.mask_id] * masks, *suffix]


def check_length(spec: ModelSpec, prompt: int, new: int) -> None:
    """Refuse more tokens than the model has positions."""
    if prompt + new > spec.max_length:
        given = f"{prompt} prompt tokens and {new} to generate" if new else f"{prompt} tokens"
        raise TooLong(f"{given} are more than the {spec.max_length} positions of {spec.name}")


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
