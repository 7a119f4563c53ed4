"""From a task's text to the tokens a model sees, and from what it decoded back to the text that is scored.

Both follow the public wrapper of the model's family, byte for byte and count for count; the two families differ, which
is why their columns are not comparable with each other. Knows nothing of lm-eval.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

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


def fitted_prompt(
    model: TextModel, *, shots: Sequence[str], question: str, template: str, new_tokens: int
) -> tuple[list[int], bool]:
    """The tokens of the prompt, and whether it is truncated: shots, then text at its start give way to the answer."""
    if template not in TEMPLATES:
        raise UnknownName("template", template, TEMPLATES)
    spec, codec, words = model.spec, model.codec, model.codec.encode(question, special=False)

    def encoded(lost: int) -> list[int]:
        text = "".join([*shots[lost:], question]) if lost <= len(shots) else codec.decode(words[lost - len(shots) :])
        if template == "chat":
            return codec.chat([{"role": "user", "content": text}])
        return encode_prompt(spec, codec, text)

    def fits(lost: int) -> bool:
        return len(encoded(lost)) <= spec.max_length - new_tokens

    parts = max(1, len(shots) + len(words))
    lost = 0 if fits(0) else bisect_left(range(parts), True, lo=1, key=fits)
    if lost == parts:
        room = f"in the {spec.max_length} positions of {spec.name}"
        raise UnmaskError(f"{new_tokens} new tokens leave no room for a prompt {room}")
    return encoded(lost), lost > 0


class Answer(NamedTuple):
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
    return Answer(text, sum(token != spec.eos_id for token in counted), len(kept))


def _cut(text: str, strings: Sequence[str]) -> str:
    """The text before the first string, then before the second in what is left, and so on."""
    for string in strings:
        text = text.partition(string)[0]
    return text
