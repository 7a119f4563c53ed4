"""The door: with an API key set, only who shows it comes in; /health is open to all."""

from __future__ import annotations

import hmac
from collections.abc import Callable
from typing import Any

from starlette.responses import JSONResponse

from unmask.serve.errors import ApiError

OPEN = "/health"


class Guard:
    """Compares `Authorization: Bearer KEY` with the key, in a time that does not depend on where they differ."""

    def __init__(self, app: Callable[..., Any], key: str | None) -> None:
        self.app = app
        self.expected = None if key is None else key.encode()

    async def __call__(self, scope: dict[str, Any], receive: Callable[..., Any], send: Callable[..., Any]) -> None:
        if scope["type"] != "http" or scope["path"] == OPEN or self._welcome(scope["headers"]):
            await self.app(scope, receive, send)
            return
        error = ApiError(
            401, "the API key is missing or wrong; send it as Authorization: Bearer KEY", code="invalid_api_key"
        )
        answer = JSONResponse(error.body, status_code=401, headers={"WWW-Authenticate": "Bearer"})
        await answer(scope, receive, send)

    def _welcome(self, headers: list[tuple[bytes, bytes]]) -> bool:
        if self.expected is None:
            return True
        scheme, _, shown = dict(headers).get(b"authorization", b"").partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(shown.strip(), self.expected)
