"""Errors as OpenAI's clients expect them: a status, and `{"error": {message, type, param, code}}`."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from starlette.exceptions import HTTPException

from unmask.errors import KEYWORD, OutOfMemory, TooLong, UnmaskError, WrongOption
from unmask.settings import Settings

LONGEST = 500  # letters of a message: it may quote what a client sent


class ApiError(HTTPException):
    """An answer that is an error; as an HTTPException it passes through FastAPI unchanged."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        message = " ".join(message.split())
        message = message if len(message) <= LONGEST else f"{message[:LONGEST]}..."
        super().__init__(status, detail=message, headers=headers)
        self.param, self.code = param, code

    @property
    def body(self) -> dict[str, Any]:
        kind = "server_error" if self.status_code >= 500 else "invalid_request_error"
        kind = "rate_limit_error" if self.status_code == 429 else kind
        return {"error": {"message": self.detail, "type": kind, "param": self.param, "code": self.code}}


def _as_field(found: re.Match[str]) -> str:
    return f"{found[1]}: {found[2]}" if found[1] in Settings.__dataclass_fields__ else found[0]


def wrong(message: object, *, param: str | None = None) -> ApiError:
    """A request that cannot be served as it was made; `message` may be the error that says why."""
    code = "context_length_exceeded" if isinstance(message, TooLong) else None
    if isinstance(message, WrongOption):  # by the name of the field, which may lie inside another
        param = f"decoding.{message.name}" if param == "decoding" else param or message.name
        message = f"{param} {message.problem}"
    elif isinstance(message, UnmaskError):  # which speaks of settings as Python does
        message = KEYWORD.sub(_as_field, str(message))
    return ApiError(400, str(message), param=param, code=code)


@contextmanager
def blaming(param: str | None) -> Generator[None]:
    """Answer an error of ours, or a number that is too large, with 400 and the name of the field."""
    try:
        yield
    except (ValueError, OverflowError) as error:
        raise wrong(error, param=param) from error
    except RecursionError as error:  # raised while an error quotes the value
        raise wrong(f"{param or 'the body'} is nested too deeply", param=param) from error


def closing() -> ApiError:
    return ApiError(503, "the server is shutting down", code="shutting_down")


def overdue() -> ApiError:
    """A request whose time is up; the header keeps OpenAI's clients from asking the same again."""
    message = "the request was not finished in time; ask for fewer tokens, or start the server with --request-timeout-s"
    return ApiError(504, message, code="timeout", headers={"x-should-retry": "false"})


def dawdling(what: str, limit_s: float) -> ApiError:
    """A client that keeps the server waiting for a part of its request."""
    message = f"the {what} of the request did not arrive within {limit_s:g} s"
    return ApiError(408, message, code="timeout", headers={"Connection": "close"})


def answer_to(error: BaseException) -> ApiError:
    """What a client gets for an error that was raised while its request was read or answered."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, MemoryError):
        return failed(error)
    return ApiError(500, f"internal error: {type(error).__name__}; the log has more")


def failed(error: BaseException) -> ApiError:
    """What a client gets for an error of the engine: the message of an error of ours, the type alone of any other."""
    if isinstance(error, OutOfMemory | MemoryError):
        return ApiError(503, str(error) or "the server ran out of memory", code="out_of_memory")
    if isinstance(error, UnmaskError):
        return ApiError(500, str(error), code="engine_failed")
    return ApiError(500, f"decoding failed: {type(error).__name__}; the log has more", code="engine_failed")
