"""The program that renders chat templates, in a worker process; chat_template.py asks it.

A template runs in jinja2's immutable sandbox and sees the messages and the names of the special tokens.
"""

from __future__ import annotations

import json
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from unmask.errors import one_line


class _TransparentGeneration(Extension):
    """`{% generation %}` marks text to train on. Here the text inside is kept and the mark ignored."""

    tags = {"generation"}  # noqa: RUF012  (jinja2 declares it so)

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


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
    if len(text) > order["characters"]:
        return {"refused": f"it made {len(text)} characters of them, more than {order['characters']}"}
    return {"text": text}


@lru_cache(maxsize=8)
def _compile(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_TransparentGeneration, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    return environment.from_string(template, globals=_FUNCTIONS)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    # jinja2's own filter escapes for HTML, which no model was trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


_FUNCTIONS: dict[str, Any] = {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
