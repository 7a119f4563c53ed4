"""What goes over HTTP: OpenAI's requests and answers, and what we add to them under `decoding`.

A request is checked for its shape; what its values mean is for translate.py. An answer is plain data, made in
answers.py; its shape is for the OpenAPI document. pydantic is used only here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from unmask.serve.errors import ApiError, wrong
from unmask.settings import Settings

MOST_CANDIDATES = 20  # of each token
MOST_STOPS = 64  # strings, each of which is looked for after every pass; counted in translate.py
# Error texts for fields that may have several forms, instead of pydantic's line for each form.
FORMS = {
    "prompt": 'a text, a list of texts, token ids, a list of lists of them, or parts {"text": ...} and {"mask": N}',
    "suffix": "a text or a list of token ids",
    "stop": "a string or a list of strings",
    "logprobs": f"a number from 0 to {MOST_CANDIDATES} for a prompt, true or false for a conversation",
    "content": 'a string or a list of parts {"type": "text", "text": ...}',
    "events": f'true, false or {{"candidates": 0 to {MOST_CANDIDATES}, "overlap": true or false}}',
}
SAID = {
    "missing": "is missing",
    "bool_type": "must be true or false",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
}
FirstFault = Field(fail_fast=True)  # for every list: one error for each of a million faults would take minutes
TokenIds = Annotated[list[int], FirstFault]
ManyTokenIds = Annotated[list[TokenIds], FirstFault]
Texts = Annotated[list[str], FirstFault]


def _about(description: str, **more: Any) -> Any:
    """A field that may be left out."""
    return Field(None, description=description, **more)


def _example(**body: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [body]})


def _add_settings(schema: dict[str, Any]) -> None:
    """Our settings, which are checked elsewhere, among the fields of an object in the OpenAPI document."""
    known = TypeAdapter(Settings).json_schema()["properties"]
    for item in fields(Settings):
        schema["properties"][item.name] = known[item.name] | {"description": item.metadata["help"]}


class _Checked(BaseModel, strict=True, extra="allow"):
    """Neither "5" nor true is a number. Fields that we do not know are kept, to be reported as ignored."""


class GivenPart(BaseModel, strict=True, extra="forbid"):
    """A piece of a text with holes that is there."""

    text: str


class MaskPart(BaseModel, strict=True, extra="forbid"):
    """A hole of so many tokens."""

    mask: int = Field(ge=1)


Parts = Annotated[list[GivenPart | MaskPart], FirstFault]


class TextPart(_Checked):
    """A piece of a message."""

    type: Literal["text"]
    text: str


class Message(_Checked):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], FirstFault]


class StreamOptions(_Checked):
    """What a stream has beside the text."""

    include_usage: bool | None = _about("A last chunk with the usage of the whole request.")


class Events(BaseModel, strict=True, extra="forbid"):
    """The numbers behind each pass; they cost time."""

    candidates: int = Field(5, ge=0, le=MOST_CANDIDATES, description="Likeliest tokens of every open position.")
    overlap: bool = Field(False, description="The overlap matrix, for policies that have one.")


class Decoding(_Checked):
    """How to decode: a policy, its parameters, any of our settings; whether a step map and events are wanted."""

    model_config = ConfigDict(json_schema_extra=_add_settings)
    policy: str | None = _about("A policy's name; its parameters may stand beside it.")
    step_map: bool | None = _about("Tell which forward pass committed each token.")
    events: bool | Events | None = _about("Send what each pass did between the chunks of a stream.")


Messages = Annotated[list[Message], Field(min_length=1, fail_fast=True)]
MODEL = _about("The served model; left out: the same.")


class _Request(_Checked):
    chat: ClassVar[bool] = False
    model: str | None = MODEL
    max_tokens: int | None = _about("Tokens to write; left out: the server's, else the checkpoint's, else 256.")
    max_completion_tokens: int | None = _about("The same, by OpenAI's newer name.")
    temperature: float | None = _about("0 takes the likeliest token; left out: the server's, which is 0 by default.")
    top_p: float | None = _about("Draw from the likeliest tokens that hold this much probability.")
    n: int | None = _about("Choices for each prompt; choice i uses seed + i.", ge=1, le=128)  # as with OpenAI
    seed: int | None = _about("Left out: random where the temperature is above 0; the answer states it.")
    stop: str | Annotated[Texts, Field(json_schema_extra={"maxItems": MOST_STOPS})] | None = _about(
        "End the text before any of these."
    )
    stream: bool | None = _about("Send the text as server-sent events, as it becomes certain.")
    stream_options: StreamOptions | None = None
    user: Any = _about("Accepted, without effect.")
    decoding: Decoding | None = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


class CompletionRequest(_Request):
    """A prompt to continue, the gap between it and a suffix to fill, or a text with holes to fill."""

    model_config = _example(prompt="Countdown: 3,4,5,12", max_tokens=48)
    prompt: str | Texts | TokenIds | ManyTokenIds | Parts = Field(
        description="Texts, token ids, or a text with holes: mask tokens, or parts with lengths."
    )
    suffix: str | TokenIds | None = _about("What follows; the text between is written.")
    logprobs: Annotated[int, Field(ge=0, le=MOST_CANDIDATES)] | Literal[False] | None = _about(
        "Tell the log-probability of each token at the pass that committed it, and of so many candidates."
    )


class ChatRequest(_Request):
    """A conversation to answer."""

    chat: ClassVar[bool] = True
    model_config = _example(messages=[{"role": "user", "content": "Countdown: 3,4,5,12"}], max_tokens=48)
    messages: Messages = Field(description="The turns so far, which go through the checkpoint's chat template.")
    logprobs: bool | None = _about("Tell the log-probability of each token at the pass that committed it.")
    top_logprobs: int | None = _about("And of so many candidates.", ge=0, le=MOST_CANDIDATES)


class TokenizeRequest(_Checked):
    """A prompt, or a conversation, whose tokens are asked for."""

    model_config = _example(prompt="Countdown: 3,4,5,12")
    model: str | None = MODEL
    prompt: str | None = None
    messages: Messages | None = _about("Instead of a prompt.")
    add_special_tokens: bool | None = _about("With what begins a text; left out: true.")


class DetokenizeRequest(_Checked):
    """Token ids whose text is asked for."""

    model_config = _example(tokens=[72, 105])
    model: str | None = MODEL
    tokens: TokenIds


Body = CompletionRequest | ChatRequest


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


class ChatText(BaseModel):
    role: Literal["assistant"]
    content: str


class _Choice(BaseModel):
    index: int
    logprobs: dict[str, Any] | None = _about("Of each token, at the pass that committed it; in OpenAI's form.")


class CompletionChoice(_Choice):
    text: str
    finish_reason: Literal["stop", "length"] | None = None


class ChatChoice(_Choice):
    message: ChatText
    finish_reason: Literal["stop", "length"]


class _Answer(BaseModel):
    id: str
    created: int
    model: str
    usage: Usage | None = None
    decoding: DecodingReport | None = None


class Completion(_Answer):
    """The answer to a CompletionRequest, and each chunk of one that is streamed."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class ChatCompletion(_Answer):
    """The answer to a ChatRequest."""

    object: Literal["chat.completion"]
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
    """A model that is served."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(BaseModel):
    """All models that are served: one."""

    object: Literal["list"]
    data: list[Model]


class Health(BaseModel):
    """All is well."""

    status: Literal["ok"]


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """What every error looks like."""

    error: ErrorDetail


def request_of(body: Any, kind: type[Body]) -> Body:
    """The body as a request of that kind; raises what the server would answer if it is not one."""
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        raise complaint(error.errors(include_url=False)) from error


def complaint(errors: Sequence[Any]) -> ApiError:
    """The first of pydantic's errors in one line, with the field that it is about."""
    first, param = errors[0], ""
    for part in (part for part in first["loc"] if part != "body"):
        param += f"[{part}]" if isinstance(part, int) else f".{part}" if param else str(part)
        if part in FORMS:  # what follows names the form that was tried, not a place
            return wrong(f"{param} must be {FORMS[part]}", param=param)
    if first["type"] == "string_unicode":
        return wrong(f"{param or 'the body'} has a field whose name holds half a surrogate pair", param=param or None)
    if not param:
        return wrong("the body must be a JSON object")
    said = SAID.get(first["type"]) or re.sub(r"^\w+ should", "must", first["msg"])
    got = "" if isinstance(first["input"], dict | list) else f", got {first['input']!r:.80}"
    return wrong(f"{param} {said}{got}", param=param)
