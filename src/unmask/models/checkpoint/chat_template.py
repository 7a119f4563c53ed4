"""Conversations to text, by the template that a checkpoint carries.

A template is a program that cannot be trusted. It runs in jinja2's immutable sandbox and sees the messages and the
names of the special tokens. A mistake in it becomes an error of one line. Knows nothing of token ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from unmask.errors import CheckpointError, UnmaskError


class _TransparentGeneration(Extension):
    """`{% generation %}` marks text to train on. Here the text inside is kept and the mark ignored."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def render(
    template: str, messages: list[dict[str, Any]], special_tokens: Mapping[str, str], add_generation_prompt: bool
) -> str:
    """The conversation as one text."""
    _check(messages)
    compiled = _compile(template)
    try:
        return compiled.render(
            messages=messages,
            tools=None,  # templates test these against none, and an undefined name is not none
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **special_tokens,
        )
    except Exception as error:  # a template can fail in any way that its expressions can
        raise UnmaskError(f"the chat template refused the messages: {_one_line(error)}") from error


def _check(messages: list[dict[str, Any]]) -> None:
    if not isinstance(messages, list) or not messages:
        raise UnmaskError(f"messages must be a list of at least one message, got {messages!r}")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise UnmaskError(f"message {number} must have a role and a content, got {message!r}")
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                raise UnmaskError(f"message {number} must have a {key} that is a string, got {message.get(key)!r}")


@lru_cache(maxsize=8)
def _compile(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_TransparentGeneration, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    try:
        return environment.from_string(template, globals=_FUNCTIONS)
    except jinja2.TemplateError as error:
        raise CheckpointError(f"the chat template is not valid: {_one_line(error)}") from error


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    # jinja2's own filter escapes for HTML, which no model was trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


_FUNCTIONS: dict[str, Any] = {"raise_exception": _raise_exception, "strftime_now": _strftime_now}


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
