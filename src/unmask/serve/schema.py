"""What comes in over HTTP: OpenAI's requests, and what we add to them under `decoding`.

A request is checked for its shape; what its values mean is for translate.py. pydantic is used only here and in
answer_schema.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter, ValidationError, WithJsonSchema

from unmask.engine.detail import Detail
from unmask.serve.errors import ApiError, wrong
from unmask.settings import Settings

MOST_LOGPROBS = 20  # candidates of each token
MOST_STOPS = 64  # strings, each of which is looked for after every pass; counted in translate.py
# Error texts for fields that may have several forms, instead of pydantic's line for each form.
FORMS = {
    "prompt": 'a text, a list of texts, token ids, a list of lists of them, or parts {"text": ...} and {"mask": N}',
    "suffix": "a text or a list of token ids",
    "stop": "a string or a list of strings",
    "logprobs": f"a number from 0 to {MOST_LOGPROBS} for a prompt, true or false for a conversation",
    "content": 'a string or a list of parts {"type": "text", "text": ...}',
}


def _decoding_schema() -> dict[str, Any]:
    known = TypeAdapter(Settings).json_schema()["properties"]
    for item in fields(Settings):
        known[item.name]["description"] = item.metadata["help"]
    events: dict[str, Any] = {"anyOf": [{"type": "boolean"}, TypeAdapter(Detail).json_schema()]}
    events["description"] = "Send what each pass did between the chunks of a stream."
    own = {
        "policy": {"type": "string", "description": "A policy's name; its parameters may stand beside it."},
        "step_map": {"type": "boolean", "description": "Tell which forward pass committed each token."},
        "events": events,
    }
    about = "How to decode: a policy, its parameters, any of our settings; whether a step map and events are wanted."
    return {"type": "object", "description": about, "properties": own | known, "additionalProperties": True}


def _form(prompt: Any) -> str:
    """Which form of a prompt is meant, by its first element: to try one after the other would take too long."""
    if not isinstance(prompt, list):
        return "text"
    if not prompt or isinstance(prompt[0], int):
        return "ids"
    return {str: "texts", dict: "parts"}.get(type(prompt[0]), "lists")


class GivenPart(BaseModel):
    """A piece of a text with holes that is there."""

    model_config = ConfigDict(strict=True, extra="forbid")
    text: str


class MaskPart(BaseModel):
    """A hole of so many tokens."""

    model_config = ConfigDict(strict=True, extra="forbid")
    mask: int = Field(ge=1)


Decoding = Annotated[dict[str, Any], WithJsonSchema(_decoding_schema())]
FirstFault = Field(fail_fast=True)  # for every list: one error for each of a million faults would take minutes
TokenIds = Annotated[list[int], FirstFault]
Texts = Annotated[list[str], FirstFault]
Prompts = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[Texts, Tag("texts")]
    | Annotated[TokenIds, Tag("ids")]
    | Annotated[list[TokenIds], FirstFault, Tag("lists")]
    | Annotated[list[GivenPart | MaskPart], FirstFault, Tag("parts")],
    Discriminator(_form),
]


def _about(description: str, **more: Any) -> Any:
    """A field that may be left out."""
    return Field(None, description=description, **more)


def _example(**body: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": [body]})


class _Checked(BaseModel):
    # Strict: neither "5" nor true is a number. Extra fields are kept, to be reported as ignored.
    model_config = ConfigDict(strict=True, extra="allow")


class StreamOptions(_Checked):
    """What a stream has beside the text."""

    include_usage: bool | None = _about("A last chunk with the usage of the whole request.")


class TextPart(_Checked):
    """A piece of a message."""

    type: Literal["text"]
    text: str


class Message(_Checked):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], FirstFault]


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
    prompt: Prompts = Field(description="Texts, token ids, or a text with holes: mask tokens, or parts with lengths.")
    suffix: str | TokenIds | None = _about("What follows; the text between is written.")
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | Literal[False] | None = _about(
        "Tell the log-probability of each token at the pass that committed it, and of so many candidates."
    )


class ChatRequest(_Request):
    """A conversation to answer."""

    chat: ClassVar[bool] = True
    model_config = _example(messages=[{"role": "user", "content": "Countdown: 3,4,5,12"}], max_tokens=48)
    messages: Messages = Field(description="The turns so far, which go through the checkpoint's chat template.")
    logprobs: bool | None = _about("Tell the log-probability of each token at the pass that committed it.")
    top_logprobs: int | None = _about("And of so many candidates.", ge=0, le=MOST_LOGPROBS)


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
    said = "is missing" if first["type"] == "missing" else re.sub(r"^\w+ should", "must", first["msg"])
    return wrong(f"{param} {said}", param=param)
