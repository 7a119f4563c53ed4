"""What callers give to be decoded: one or many, text or token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from jaxtyping import Int
from torch import Tensor

from unmask.errors import UnmaskError
from unmask.models.base import ModelSpec
from unmask.models.checkpoint.tokenizer import TextCodec

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
        one = "[{'role': 'user', 'content': ...}]"
        raise UnmaskError(
            f"messages must be a list such as {one}, got {type(messages).__name__}; a prompt is for generate"
        )
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
    try:
        tokens = torch.as_tensor(token_ids, device=device)
        if tokens.numel() > 0 and tokens.is_floating_point():
            raise ValueError("got floats")
        tokens = tokens.long()
    except (TypeError, ValueError, RuntimeError) as error:
        raise UnmaskError(f"token_ids must be a list of ids, or rows (b, n) of equal length: {error}") from error
    tokens = tokens[None] if tokens.ndim == 1 else tokens
    if tokens.ndim != 2 or tokens.numel() == 0:
        raise UnmaskError(f"token_ids must be a list of ids, or rows (b, n), got the shape {tuple(tokens.shape)}")
    if int(tokens.min()) < 0 or int(tokens.max()) >= vocab_size:
        raise UnmaskError(f"token ids must be in [0, {vocab_size})")
    return tokens
