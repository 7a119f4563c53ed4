"""Conversations to text, by the template that a checkpoint carries.

A template is a program that cannot be trusted. It runs in a worker process (template_worker.py), so that neither an
endless loop nor a gigabyte of text hurts this one. A mistake in it becomes an error of one line. Knows nothing of
token ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from unmask.errors import CheckpointError, UnmaskError
from unmask.worker_process import WorkerProcess

SECONDS = 10.0  # for one conversation, and for the conversations before it
CHARACTERS = 4_000_000  # of a rendered conversation

_worker = WorkerProcess(
    "unmask.models.checkpoint.template_worker", name="the process that renders chat templates", memory_mib=1024
)


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
    order = {"template": template, "values": values, "characters": CHARACTERS}
    try:
        answer = _worker.ask(order, seconds=seconds)
    except UnmaskError:
        raise
    except (TypeError, ValueError, RecursionError) as error:
        raise UnmaskError(f"messages must be plain data, as JSON has it: {error}") from error
    if answer is None:
        raise UnmaskError(f"the chat template took more than {seconds:g} s, or brought its process down")
    if "invalid" in answer:
        raise CheckpointError(f"the chat template is not valid: {answer['invalid']}")
    if "refused" in answer:
        raise UnmaskError(f"the chat template refused the messages: {answer['refused']}")
    return answer["text"]


def _check(messages: list[dict[str, Any]]) -> None:
    if not isinstance(messages, list) or not messages:
        raise UnmaskError(f"messages must be a list of at least one message, got {messages!r}")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise UnmaskError(f"message {number} must have a role and a content, got {message!r}")
        for key in ("role", "content"):
            if not isinstance(message.get(key), str):
                raise UnmaskError(f"message {number} must have a {key} that is a string, got {message.get(key)!r}")
