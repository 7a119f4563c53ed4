"""What goes wrong, as OpenAI's clients expect to hear it: a status, and `{"error": {message, type, param, code}}`."""

from __future__ import annotations

from typing import Any

from starlette.exceptions import HTTPException

from unmask.errors import OutOfMemory, UnmaskError

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
        self.message = message if len(message) <= LONGEST else f"{message[:LONGEST]}..."
        self.param, self.code = param, code
        super().__init__(status, detail=self.message, headers=headers)

    @property
    def body(self) -> dict[str, Any]:
        kind = {429: "rate_limit_error"}.get(
            self.status_code, "server_error" if self.status_code >= 500 else "invalid_request_error"
        )
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def wrong(message: object, *, param: str | None = None) -> ApiError:
    """A request that cannot be served as it was made."""
    return ApiError(400, str(message), param=param)


def unknown_model(name: str, served: str) -> ApiError:
    message = f"the model {name!r} does not exist here; this server has {served!r}"
    return ApiError(404, message, param="model", code="model_not_found")


def too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is larger than {limit} bytes", code="body_too_large")


def queue_full(limit: int) -> ApiError:
    message = f"the queue of {limit} is full; come again in a moment"
    return ApiError(429, message, code="queue_full", headers={"Retry-After": "1"})


def closing() -> ApiError:
    return ApiError(503, "the server is shutting down", code="shutting_down")


def failed(error: BaseException) -> ApiError:
    """What a client hears of an error in the engine: ours in full, of others nothing that it could not use."""
    if isinstance(error, OutOfMemory):
        return ApiError(503, str(error), code="out_of_memory")
    if isinstance(error, UnmaskError):
        return ApiError(500, str(error), code="engine_failed")
    return ApiError(500, f"decoding failed: {type(error).__name__}; the server's log has more", code="engine_failed")
