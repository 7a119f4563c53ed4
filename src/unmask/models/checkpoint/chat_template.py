"""Conversations to text, by the template that a checkpoint carries.

A template is a program that cannot be trusted. It runs in a second process (template_worker.py), so that neither an
endless loop nor a gigabyte of text hurts this one. A mistake in it becomes an error of one line. Knows nothing of
token ids.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

from unmask.errors import CheckpointError, UnmaskError, WorkFailed

SECONDS = 10.0  # for one conversation, and for the conversations before it
CHARACTERS = 4_000_000  # of a rendered conversation

_WORKER = Path(__file__).with_name("template_worker.py")
_TURN = Lock()
_running: dict[int, subprocess.Popen[bytes]] = {}  # by the process that started it: a fork must not share its pipes


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
    order = {"template": template, "values": values, "seconds": seconds, "characters": CHARACTERS}
    try:
        line = json.dumps(order).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise UnmaskError(f"messages must be plain data, as JSON has it: {error}") from error
    if not _TURN.acquire(timeout=seconds):
        raise WorkFailed(f"the chat template was busy with other messages for more than {seconds:g} s")
    try:
        answer = _answer(line)
    finally:
        _TURN.release()
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


def _answer(order: bytes) -> dict[str, str] | None:
    """What the worker answers; None if the template has ended it."""
    line = b""
    try:
        worker = _running.get(os.getpid())
        if worker is None or worker.poll() is not None:
            command, pipe = [sys.executable, "-P", str(_WORKER)], subprocess.PIPE
            # In a session of its own: Ctrl-C in a conversation must not end it.
            worker = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, start_new_session=True
            )
            _running[os.getpid()] = worker
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(order)
        worker.stdin.flush()
        line = worker.stdout.readline()
    except OSError:
        pass  # as if it had answered nothing
    finally:
        if not line:  # it has ended, or its answer would be taken for that to the next order
            _end()
    return json.loads(line) if line else None


@atexit.register
def _end() -> None:
    worker = _running.pop(os.getpid(), None)
    if worker is not None:
        worker.kill()
        worker.communicate()  # closes the pipes
