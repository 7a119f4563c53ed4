"""Between text and token ids, for clients that count tokens or send ids."""

from __future__ import annotations

from typing import Any

from unmask.engine.generator import Generator
from unmask.engine.prompts import encode_prompt, token_list
from unmask.serve.errors import blaming, wrong
from unmask.serve.prompts import message_of
from unmask.serve.schema import DetokenizeRequest, TokenizeRequest


def tokenize(body: TokenizeRequest, llm: Generator) -> dict[str, Any]:
    """The token ids of a prompt or a conversation, the text of each, and how many positions the model has."""
    if (body.prompt is None) == (body.messages is None):
        raise wrong("give either prompt or messages", param="prompt")
    if body.messages is not None:
        messages = [message_of(message, number) for number, message in enumerate(body.messages)]
        with blaming("messages"):
            ids = llm.codec.chat(messages)
    else:
        special = body.add_special_tokens is not False
        with blaming("prompt"):
            ids = encode_prompt(llm.spec, llm.codec, body.prompt or "", special=special, begins=special)
    texts = {token: llm.codec.token_text(token) for token in set(ids)}
    found = {"tokens": ids, "token_texts": [texts[token] for token in ids], "count": len(ids)}
    return found | {"max_model_len": llm.spec.max_length, "ignored": sorted(body.model_extra or {})}


def detokenize(body: DetokenizeRequest, llm: Generator) -> dict[str, Any]:
    """The text of token ids."""
    with blaming("tokens"):
        text = llm.codec.decode(token_list(body.tokens, llm.spec.vocab_size), special=True)
    return {"prompt": text, "ignored": sorted(body.model_extra or {})}
