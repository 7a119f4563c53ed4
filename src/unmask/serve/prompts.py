"""What a request gives to be decoded, as prompts or as token ids: texts, texts with holes, or a conversation."""

from __future__ import annotations

from typing import Any

from unmask.engine.generator import Generator
from unmask.engine.prompts import as_batch, encode_prompt, token_list
from unmask.errors import TooLong, UnmaskError
from unmask.serve.errors import blaming, wrong
from unmask.serve.schema import Body, ChatRequest, DetokenizeRequest, GivenPart, MaskPart, Message, TokenizeRequest


def prompts_of(body: Body, llm: Generator) -> list[Any]:
    """Each prompt is a text, token ids or messages."""
    if isinstance(body, ChatRequest):
        return [_messages(body.messages)]
    if isinstance(body.prompt, list) and body.prompt and isinstance(body.prompt[0], GivenPart | MaskPart):
        with blaming("prompt"):
            return [_joined(body.prompt, llm)]  # ty: ignore[invalid-argument-type]
    prompts, _ = as_batch(body.prompt)  # ty: ignore[invalid-argument-type]
    if not prompts or [] in prompts:
        raise wrong("prompt is an empty list, or has one", param="prompt")
    return prompts


def _joined(parts: list[GivenPart | MaskPart], llm: Generator) -> list[int]:
    """The token ids of a text with holes, behind what the family begins a text with."""
    if (masks := sum(part.mask for part in parts if isinstance(part, MaskPart))) > llm.spec.max_length:
        raise TooLong(f"{masks} masks are more than the {llm.spec.max_length} positions of {llm.spec.name}")
    if masks == 0:
        raise UnmaskError('the parts of prompt have no hole; give one as {"mask": N}, or the prompt as a text')
    ids: list[int] = []
    for number, part in enumerate(parts):
        text, missing = ("", part.mask) if isinstance(part, MaskPart) else (part.text, 0)
        ids += encode_prompt(llm.spec, llm.codec, text, special=False, begins=number == 0)
        ids += [llm.spec.mask_id] * missing
    return ids


def has_mask(prompt: Any, llm: Generator) -> bool:
    """Whether a prompt is a text with holes; a conversation is none."""
    return (llm.codec.token_text(llm.spec.mask_id) if isinstance(prompt, str) else llm.spec.mask_id) in prompt


def _messages(given: list[Message]) -> list[dict[str, str]]:
    found = []
    for number, message in enumerate(given):
        for name in ("tool_calls", "function_call"):
            if (message.model_extra or {}).get(name):
                raise wrong("tools are not supported", param=f"messages[{number}].{name}")
        parts = [message.content] if isinstance(message.content, str) else [part.text for part in message.content]
        # `developer` is OpenAI's newer word for `system`; no checkpoint of ours was trained with it.
        role = "system" if message.role == "developer" else message.role
        found.append({"role": role, "content": "\n".join(parts)})
    return found


def tokenize(body: TokenizeRequest, llm: Generator) -> dict[str, Any]:
    """The token ids of a prompt or a conversation, the text of each, and how many positions the model has."""
    if (body.prompt is None) == (body.messages is None):
        raise wrong("give either prompt or messages", param="prompt")
    if body.messages is not None:
        with blaming("messages"):
            ids = llm.codec.chat(_messages(body.messages))
    else:
        special = body.add_special_tokens is not False
        with blaming("prompt"):
            ids = encode_prompt(llm.spec, llm.codec, body.prompt or "", special=special, begins=special)
    found = {"tokens": ids, "token_texts": [llm.codec.token_text(token) for token in ids], "count": len(ids)}
    return found | {"max_model_len": llm.spec.max_length, "ignored": sorted(body.model_extra or {})}


def detokenize(body: DetokenizeRequest, llm: Generator) -> dict[str, Any]:
    """The text of token ids."""
    with blaming("tokens"):
        text = llm.codec.decode(token_list(body.tokens, llm.spec.vocab_size), special=True)
    return {"prompt": text, "ignored": sorted(body.model_extra or {})}
