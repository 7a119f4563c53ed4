"""Conversations to text, by the template that a checkpoint carries.

A template is a program that cannot be trusted. `render` has it run by `answer` in a worker process, so that neither an
endless loop nor a gigabyte of text hurts this one. There it runs in jinja2's immutable sandbox, and sees the messages
and the names of the special tokens. A mistake in it becomes an error of one line. Knows nothing of token ids.
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

from unmask.errors import CheckpointError, UnmaskError, one_line
from unmask.worker_process import WorkerProcess

SECONDS = 10.0  # for one conversation, and for the conversations before it
CHARACTERS = 4_000_000  # of a rendered conversation

_worker = WorkerProcess(__name__, name="the process that renders chat templates", memory_mib=1024)


def render(
    template: str,
    messages: list[dict[str, Any]],
    special_tokens: Mapping[str, str],
    add_generation_prompt: bool,
    *,
    seconds: float = SECONDS,
) -> str:
    """The conversation as one text."""
    _check(messages)
    values = {"messages": [*map(dict, messages)], "add_generation_prompt": add_generation_prompt, **special_tokens}
    try:
        found = _worker.ask({"template": template, "values": values}, seconds=seconds)
    except UnmaskError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise UnmaskError(f"messages must be plain data, as JSON has it: {error}") from error
    if found is None:
        raise UnmaskError(f"the chat template took more than {seconds:g} s, or brought its process down")
    if "invalid" in found:
        raise CheckpointError(f"the chat template is not valid: {found['invalid']}")
    if "refused" in found:
        raise UnmaskError(f"the chat template refused the messages: {found['refused']}")
    return found["text"]


def _check(messages: list[dict[str, Any]]) -> None:
    if not isinstance(messages, list) or not messages:
        raise UnmaskError(f"messages must be a list of at least one message, got {messages!r}")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise UnmaskError(f"message {number} must have a role and a content, got {message!r}")
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                raise UnmaskError(f"message {number} must have a {key} that is a string, got {message.get(key)!r}")


def answer(order: dict[str, Any]) -> dict[str, str]:
    """The text, or the fault: `invalid` if the template can render nothing, `refused` if it fails on this order."""
    try:
        compiled = _compile(order["template"])
    except Exception as error:  # beside jinja2's own errors: nested too deeply, too large
        return {"invalid": one_line(error)}
    try:
        # Templates test tools and documents against none, and an undefined name is not none.
        text = compiled.render(order["values"] | {"tools": None, "documents": None})
    except Exception as error:  # a template can fail in any way that its expressions can
        return {"refused": one_line(error)}
    if len(text) > CHARACTERS:
        return {"refused": f"it made {len(text)} characters of them, more than {CHARACTERS}"}
    return {"text": text}


class _TransparentGeneration(Extension):
    """`{% generation %}` marks text to train on. Here the text inside is kept and the mark ignored."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@lru_cache(maxsize=8)
def _compile(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_TransparentGeneration, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    functions = {"raise_exception": _raise_exception, "strftime_now": lambda form: datetime.now().strftime(form)}
    return environment.from_string(template, globals=functions)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    # jinja2's own filter escapes for HTML, which no model was trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
