"""Bodies of requests, read with suspicion: no more than the limit, and nothing but JSON as it is defined."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from fastapi import Request, Response
from fastapi.routing import APIRoute

from unmask.serve.errors import too_large, wrong


class CheckedRequest(Request):
    """A request whose body is read up to a limit."""

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            limit = self.app.state.served.config.max_body_bytes
            if self.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
                # Also keeps out pages in a browser, which may send other types here without asking.
                raise wrong("send the body with the header Content-Type: application/json")
            if (told := self.headers.get("content-length", "")).isdecimal() and int(told) > limit:
                raise too_large(limit)
            read = bytearray()
            async for piece in self.stream():
                read += piece
                if len(read) > limit:
                    raise too_large(limit)
            self._body = bytes(read)
        return self._body

    async def json(self) -> Any:
        body = await self.body()
        try:
            return json.loads(body.decode("utf-8"), parse_constant=_refuse)
        except UnicodeDecodeError as error:
            raise wrong(f"the body is not UTF-8: {error.reason} at byte {error.start}") from error
        except RecursionError as error:
            raise wrong("the body is nested too deeply") from error
        except ValueError as error:
            raise wrong(f"the body is not JSON: {str(error).partition(';')[0]}") from error


class CheckedRoute(APIRoute):
    """A route whose handler gets such requests."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_checked(request: Request) -> Response:
            return await handle(CheckedRequest(request.scope, request.receive))

        return handle_checked


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")
