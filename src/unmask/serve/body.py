"""Bodies of requests, read with suspicion: no more than the limit, and nothing but JSON as it is defined."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, NoReturn

from fastapi import Request, Response
from fastapi.routing import APIRoute

from unmask.serve.errors import closing, too_large, wrong

MOST_CONTAINERS = 2**14  # lists and objects: a million of them, which fit into 4 MiB, stop the event loop for seconds


class Uploads:
    """The bodies that are being read, which a server that stops does not wait for."""

    def __init__(self) -> None:
        self._limits: set[asyncio.Timeout] = set()

    async def read(self, body: AsyncIterator[bytes], most: int) -> bytes:
        """The whole of the body, unless it is too large or the server stops before it is there."""
        read = bytearray()
        try:
            async with asyncio.timeout(None) as limit:
                self._limits.add(limit)
                try:
                    async for piece in body:
                        read += piece
                        if len(read) > most:
                            raise too_large(most)
                finally:
                    self._limits.discard(limit)
        except TimeoutError as error:
            raise closing() from error
        return bytes(read)

    def drop_all(self) -> None:
        """End every reading: its client hears that the server is shutting down."""
        for limit in self._limits:
            limit.reschedule(0.0)


class CheckedRequest(Request):
    """A request whose body is read up to a limit."""

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            served = self.app.state.served
            limit = served.config.max_body_bytes
            if self.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
                # Also keeps out pages in a browser, which may send other types here without asking.
                raise wrong("send the body with the header Content-Type: application/json")
            if (told := self.headers.get("content-length", "")).isdecimal() and int(told) > limit:
                raise too_large(limit)
            if not served.worker.accepting:
                raise closing()
            self._body = await served.uploads.read(self.stream(), limit)
        return self._body

    async def json(self) -> Any:
        body = await self.body()
        _check_containers(body)
        try:
            return json.loads(body.decode("utf-8"), parse_constant=_refuse, object_pairs_hook=_object)
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


def _check_containers(body: bytes) -> None:
    """Refuse a body of very many lists and objects before it is parsed."""
    if body.count(b"[") + body.count(b"{") <= MOST_CONTAINERS:
        return
    quotes = body.replace(rb"\\", b"").replace(rb"\"", b"")  # every quote that is left begins or ends a string
    outside = b"".join(quotes.split(b'"')[::2])
    found = outside.count(b"[") + outside.count(b"{")
    if found > MOST_CONTAINERS:
        raise wrong(f"the body may hold at most {MOST_CONTAINERS} lists and objects, got {found}")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        (name, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise wrong(f"the body has {name!r} twice in one object")
    return found


def _refuse(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")
