"""What goes out over HTTP, for the OpenAPI document: OpenAI's answers, and what we add to them under `decoding`.

An answer itself is plain data, made in answers.py.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

Reason = Literal["stop", "length"]


class Usage(BaseModel):
    """What was read and written, in tokens; a prompt counts once, however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class DecodingReport(BaseModel):
    """How it was decoded; passes count for all choices together."""

    policy: str
    seed: int
    forward_passes: int
    tokens_per_pass: float
    ignored: list[str]
    step_map: list[int] | list[list[int]] | None = None


class _Choice(BaseModel):
    index: int
    logprobs: dict[str, Any] | None = Field(
        None, description="Of each token that was committed, at the pass that committed it; in OpenAI's form."
    )


class CompletionChoice(_Choice):
    text: str
    finish_reason: Reason | None = None


class ChatText(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str


class ChatChoice(_Choice):
    message: ChatText
    finish_reason: Reason


class _Answer(BaseModel):
    id: str
    created: int
    model: str
    usage: Usage | None = None
    decoding: DecodingReport | None = None


class Completion(_Answer):
    """The answer to a CompletionRequest, and each chunk of one that is streamed."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[CompletionChoice]


class ChatCompletion(_Answer):
    """The answer to a ChatRequest."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]


class Tokenized(BaseModel):
    """Token ids, the text of each, and how many positions the model has for prompt and answer."""

    tokens: list[int]
    token_texts: list[str]
    count: int
    max_model_len: int
    ignored: list[str]


class Detokenized(BaseModel):
    """The text of token ids."""

    prompt: str
    ignored: list[str]


class Model(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "unmask"


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]


class Health(BaseModel):
    status: Literal["ok"] = "ok"


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """What every error looks like."""

    error: ErrorDetail
