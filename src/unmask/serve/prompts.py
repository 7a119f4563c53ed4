"""What a request gives to be decoded: texts, token ids, texts with holes, or a conversation."""

from __future__ import annotations

from typing import Any

from unmask.engine.generator import Generator
from unmask.engine.prompts import as_batch, encode_prompt
from unmask.errors import TooLong, UnmaskError
from unmask.serve.errors import blaming, wrong
from unmask.serve.schema import Body, ChatRequest, GivenPart, MaskPart, Message


def prompts_of(body: Body, llm: Generator) -> list[Any]:
    """Each prompt is a text, token ids or messages."""
    if isinstance(body, ChatRequest):
        return [[message_of(message, number) for number, message in enumerate(body.messages)]]
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
    ids = [] if isinstance(parts[0], GivenPart) else encode_prompt(llm.spec, llm.codec, "", special=False)
    for number, part in enumerate(parts):
        if isinstance(part, MaskPart):
            ids += [llm.spec.mask_id] * part.mask
        else:
            ids += encode_prompt(llm.spec, llm.codec, part.text, special=False, begins=number == 0)
    return ids


def has_mask(prompt: Any, llm: Generator) -> bool:
    """Whether a prompt is a text with holes; a conversation is none."""
    return (llm.codec.token_text(llm.spec.mask_id) if isinstance(prompt, str) else llm.spec.mask_id) in prompt


def message_of(message: Message, number: int) -> dict[str, str]:
    for name in ("tool_calls", "function_call"):
        if (message.model_extra or {}).get(name):
            raise wrong("tools are not supported", param=f"messages[{number}].{name}")
    text = message.content if isinstance(message.content, str) else "\n".join(part.text for part in message.content)
    # `developer` is OpenAI's newer word for `system`; no checkpoint of ours was trained with it.
    return {"role": "system" if message.role == "developer" else message.role, "content": text}
