"""Renders chat templates in a process of its own, which a template can exhaust without harm; chat_template.py asks it.

A script that imports nothing of ours. It reads an order a line and answers in a line of JSON: the text, or what was
wrong. A template runs in jinja2's immutable sandbox and sees the messages and the names of the special tokens. The
process ends when a template takes too long, and a template that wants more memory than MEMORY fails.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import signal
import sys
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY = 2**30  # bytes of address space


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
        return {"invalid": _one_line(error)}
    try:
        # Templates test tools and documents against none, and an undefined name is not none.
        text = compiled.render(order["values"] | {"tools": None, "documents": None})
    except Exception as error:  # a template can fail in any way that its expressions can
        return {"refused": _one_line(error)}
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


def _one_line(error: Exception) -> str:
    return " ".join(str(error)[:1000].split()) or type(error).__name__


def _end_after(seconds: float) -> None:
    """End this process when so many seconds have passed; 0 takes it back."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)  # a signal that is not handled ends a process
    elif seconds:  # Windows
        faulthandler.dump_traceback_later(seconds, exit=True)
    else:
        faulthandler.cancel_dump_traceback_later()


def main() -> None:
    with contextlib.suppress(ImportError, ValueError, OSError):  # systems without such a limit
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for line in sys.stdin.buffer:
        order = json.loads(line)
        _end_after(order["seconds"])
        answered = json.dumps(answer(order)).encode()
        _end_after(0)
        sys.stdout.buffer.write(answered + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
