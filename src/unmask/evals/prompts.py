"""From a task's text to the tokens a model sees, and from what it decoded back to the text that is scored.

Both follow the public wrapper of the model's family, byte for byte and count for count; the two families differ, which
is why their columns are not comparable with each other. Knows nothing of lm-eval.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from unmask.engine.prompts import encode_prompt
from unmask.engine.text import Ending
from unmask.errors import UnknownName, UnmaskError
from unmask.models.base import ModelSpec
from unmask.models.checkpoint.tokenizer import TextCodec

TEMPLATES = ("none", "chat")


def template_of(family: str, model: str) -> str:
    """'chat' for LLaDA checkpoints that are called instruct, else 'none': what the public scripts do.

    The scripts look for the word in the path, so LLaDA-1.5 gets raw text. Dream's instruct models get raw text as well.
    """
    return "chat" if family == "llada" and "instruct" in model.lower() else "none"


@runtime_checkable
class TextModel(Protocol):
    """A model's special tokens and tokenizer. Generators and executors have both."""

    spec: ModelSpec
    codec: TextCodec


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedPrompt:
    """A prompt that leaves room for its answer."""

    ids: list[int]
    text: str  # of the ids, special tokens included
    truncated: bool


def fitted_prompt(
    model: TextModel, *, shots: Sequence[str], question: str, template: str, new_tokens: int
) -> FittedPrompt:
    """The prompt with as many of the last shots as leave room for `new_tokens`; else the end of the question alone."""
    if template not in TEMPLATES:
        raise UnknownName("template", template, TEMPLATES)
    codec, room = model.codec, model.spec.max_length - new_tokens

    def encoded(first: int) -> list[int]:
        return _encode(model, "".join([*shots[first:], question]), template)

    def fits(first: int) -> bool:
        return len(encoded(first)) <= room

    first = 0 if fits(0) else bisect_left(range(len(shots)), True, lo=min(1, len(shots)), key=fits)
    ids = encoded(first)
    if len(ids) <= room:
        return FittedPrompt(ids=ids, text=codec.decode(ids, special=True), truncated=first > 0)
    words = codec.encode(question, special=False)
    kept = len(words)
    while len(ids) > room:
        kept -= len(ids) - room
        if kept <= 0:
            raise UnmaskError(
                f"{new_tokens} new tokens leave no room for a prompt in the {model.spec.max_length} positions of "
                f"{model.spec.name}"
            )
        ids = _encode(model, codec.decode(words[-kept:]), template)
    return FittedPrompt(ids=ids, text=codec.decode(ids, special=True), truncated=True)


def _encode(model: TextModel, text: str, template: str) -> list[int]:
    if template == "chat":
        return model.codec.chat([{"role": "user", "content": text}])
    return encode_prompt(model.spec, model.codec, text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was decoded, as it is scored and counted."""

    text: str
    tokens_reference: int  # as the public wrapper of the family counts
    tokens_answer: int  # up to the first end of text or stop string


def read_answer(model: TextModel, ids: Sequence[int], *, until: Sequence[str], whole: bool = False) -> Answer:
    """The answer among the decoded ids; `whole`: counted before the cuts, as LLaDA's wrapper does it for HumanEval."""
    spec, codec, strings = model.spec, model.codec, tuple(until)
    counted = ids = [token for token in ids if token != spec.mask_id]  # left open behind an early stop
    if spec.convention == "dream":
        # The public code counts the text behind the cuts as well.
        end = codec.token_text(spec.eos_id)
        text = _cut(codec.decode(ids, special=True), (end, *strings))
    elif whole:
        text = _cut(codec.decode(ids), strings)
    else:
        # The end-of-text token is no stop string: text decoded behind it stays, and the last step drops the token.
        counted = codec.encode(_cut(codec.decode(ids, special=True), strings), special=False)
        text = codec.decode(counted)
    kept, _, _ = Ending(token_ids=spec.end_ids, strings=strings, codec=codec).cut(ids)
    reference = sum(token != spec.eos_id for token in counted)
    return Answer(text=text, tokens_reference=reference, tokens_answer=len(kept))


def _cut(text: str, strings: Sequence[str]) -> str:
    """The text before the first string, then before the second in what is left, and so on."""
    for string in strings:
        text = text.partition(string)[0]
    return text
